"""The life cycle: installed, resolved, started, stopped, uninstalled; whatever goes wrong, the platform runs on."""

from __future__ import annotations

import inspect
import json
import linecache
import sys
import traceback
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from exop import Application, Platform
from exop.bundle import bundles
from exop.bundle.modules import load_code
from exop.errors import BundleBroken, BundleError, BundleInUse, RequirementMissing, StateError, UnknownName
from exop.stock.slets import count_up
from tests.bundle.folders import SLETS, adding_up, manifest, speeds, started, states, write
from tests.rig import PATIENCE


def run(platform: Platform, slet: str, node: str = "sum") -> Any:
    """Run a slet over 1, 2, 3 and return the sum in its memento."""
    app = Application("run", plugins=platform.plugins)
    app.add(node, slet, number=app.add("numbers", count_up, to=3, start=1))
    platform.apply(app.build())
    platform.wait("run", 60)
    total = platform.deployment("run").components[node].state.sum
    platform.remove("run")
    return total


def test_the_life_of_a_bundle(platform: Platform, tmp_path: Path):
    """Each event leads to its state; what was started offers slets, what is stopped does not."""
    assert platform.bundles.install(speeds(tmp_path))["state"] == "resolved"
    assert not any("speeds" in name for name in platform.slets())
    assert platform.bundles.start("speeds")["state"] == "started"
    assert platform.bundles.start("speeds")["state"] == "started"
    assert "speeds@1.0.0:add_up" in platform.slets()
    assert run(platform, "speeds@1.0.0:add_up") == 6
    assert platform.bundles.stop("speeds")["state"] == "resolved"
    assert not any("speeds" in name for name in platform.slets())
    assert platform.bundles.uninstall("speeds")["state"] == "uninstalled"
    assert platform.bundles.list() == []


def test_the_states_are_told_while_a_bundle_starts(platform: Platform, tmp_path: Path, monkeypatch):
    """A monitor does not wait for the code that is imported, nor for a slow update."""
    told = []
    platform.bundles.install(speeds(tmp_path))
    with ThreadPoolExecutor() as threads:

        def load(*arguments: Any) -> Any:
            told.append(threads.submit(platform.bundles.states).result(PATIENCE))
            return load_code(*arguments)

        monkeypatch.setattr(bundles, "load_code", load)
        platform.bundles.start("speeds")
    assert told == [{"speeds@1.0.0": "installed"}]


def test_two_versions_side_by_side(platform: Platform, tmp_path: Path):
    """Each imports its own helper by its absolute name; both run in one mesh."""
    for version, scale in (("1.0.0", 1), ("2.0.0", 10)):
        platform.bundles.install(speeds(tmp_path, version, scale))
        platform.bundles.start(f"speeds@{version}")
    app = Application("both", plugins=platform.plugins)
    numbers = app.add("numbers", count_up, to=3, start=1)
    app.add("old", "speeds@1.0.0:add_up", number=numbers)
    app.add("new", "speeds@2.0.0:add_up", number=numbers)
    platform.apply(app.build())
    platform.wait("both", 60)
    components = platform.deployment("both").components
    assert [components[node].state.sum for node in ("old", "new")] == [6, 60]


def test_nothing_is_left_of_it(platform: Platform, tmp_path: Path):
    """After it is uninstalled, Python knows neither its modules nor their lines, and the finder is gone."""
    finders = list(sys.meta_path)
    started(platform, speeds(tmp_path))
    spec = platform.slets()["speeds@1.0.0:add_up"]
    assert "def add_up" in inspect.getsource(spec.factory)
    file = spec.factory.__code__.co_filename
    assert file in linecache.cache
    assert any(name.startswith("exop_bundles.speeds_v1_0_0") for name in sys.modules)
    platform.bundles.uninstall("speeds")
    assert not any(name.startswith("exop_bundles") for name in sys.modules)
    assert file not in linecache.cache
    assert sys.meta_path == finders


def test_every_way_of_importing_stays_inside(platform: Platform, tmp_path: Path):
    """Relative, absolute, of siblings, late and of packages below: always the bundle's own; Python's own come first."""
    text = """
    import helpers, speeds.helpers, speeds.below.deep as deep
    import json as python_json
    from . import helpers as relative
    from .helpers import SCALE
    from speeds import helpers as absolute
    from below import deep as again
    from exop import slet

    @slet
    def add_up(number: int) -> int:
        import helpers as late
        assert helpers is relative is absolute is late is speeds.helpers is deep.helpers
        assert deep is again and deep.found == late
        assert python_json.loads("1") == 1
        return number
    """
    folder = speeds(tmp_path, slets=inspect.cleandoc(text))
    write(
        folder,
        {"json.py": "x = 1", "below/__init__.py": "", "below/deep.py": "from .. import helpers\nfound = helpers\n"},
    )
    platform.bundles.install(folder)
    platform.bundles.start("speeds")
    assert platform.slets()["speeds@1.0.0:add_up"].factory(3) == 3


def test_a_traceback_shows_the_line(platform: Platform, tmp_path: Path):
    """What a slet of a bundle raises points at the installed file, with the text of the line."""
    slets = SLETS.replace("total.sum +=", "raise ValueError(number)\n    total.sum +=")
    started(platform, speeds(tmp_path, slets=slets))
    spec = platform.slets()["speeds@1.0.0:add_up"]
    with pytest.raises(ValueError, match="1") as caught:
        spec.factory(1, spec.state[1]())
    assert "raise ValueError(number)" in "".join(traceback.format_exception(caught.value))


@pytest.mark.parametrize(
    ("slets", "line", "told"),
    [
        ("import os\nx = (\n", 2, "SyntaxError"),
        ("\n\nimport nowhere\n", 3, "ModuleNotFoundError: No module named 'nowhere'"),
        ("from speeds.helpers import missing\n", 1, "ImportError"),
        ("import sys\nsys.exit(3)\n", 2, "SystemExit: 3"),
        ("from exop import slet\n@slet\ndef add_up(*items):\n    pass\n", 2, "add_up is no slet"),
        ("def add_up(number):\n    pass\n", 1, "add_up"),
        ("def ad_up(number):\n    pass\n", 1, "did you mean 'ad_up'"),
    ],
)
def test_what_cannot_be_imported_is_told_by_file_and_line(
    platform: Platform, tmp_path: Path, slets: str, line: int, told: str
):
    """The bundle stays installed, says why, leaves nothing behind, and the platform runs on."""
    platform.bundles.install(speeds(tmp_path, slets=slets))
    with pytest.raises(BundleBroken) as caught:
        platform.bundles.start("speeds")
    assert caught.value.file.endswith("speeds@1.0.0/slets.py")
    assert caught.value.line == line
    assert told in str(caught.value)
    (row,) = platform.bundles.list()
    assert row["state"] == "resolved"
    assert told in row["problem"]
    assert not any(name.startswith("exop_bundles") for name in sys.modules)


def test_what_is_missing_is_named(platform: Platform, tmp_path: Path):
    """All requirements that are not met, each with its cure, in the list and when it is started."""
    more = '[requires]\nexop = ">=99"\nbundles = ["numbers>=2"]\ndistributions = ["pluggy>=999", "nobody-has-this"]'
    platform.bundles.install(write(tmp_path / "n", {"bundle.toml": manifest("1.0", "numbers", offers="[]")}))
    assert platform.bundles.install(speeds(tmp_path, more=more))["state"] == "installed"
    with pytest.raises(RequirementMissing) as caught:
        platform.bundles.start("speeds")
    exop, pluggy, nobody, numbers = caught.value.missing
    assert exop.startswith("exop >=99 (this is ")
    assert "pip install 'pluggy>=999'" in pluggy
    assert "the Python distribution nobody-has-this" in nobody
    assert "the bundle numbers>=2 (installed: 1.0; `exop bundle install" in numbers


def numbers(folder: Path, version: str, constant: int) -> Path:
    """A bundle that others import from."""
    files = {"bundle.toml": manifest(version, "my-numbers", offers="[]"), "constants.py": f"SCALE = {constant}\n"}
    return write(folder / f"numbers-{version}", files)


def test_a_bundle_imports_from_another(platform: Platform, tmp_path: Path):
    """The highest version that fits is started before it, and stays as long as it is needed."""
    slets = SLETS.replace("from speeds.helpers", "from my_numbers.constants")
    more = '[requires]\nbundles = ["my-numbers>=1,<2"]'
    for version, constant in (("1.0", 1), ("1.5", 5), ("2.0", 20)):
        platform.bundles.install(numbers(tmp_path, version, constant))
    platform.bundles.install(speeds(tmp_path, more=more, slets=slets))
    assert platform.bundles.start("speeds")["imports_from"] == ["my-numbers@1.5"]
    assert states(platform)["my-numbers@1.5"] == "started"
    assert run(platform, "speeds@1.0.0:add_up") == 30
    assert platform.bundles.start("speeds", ["my-numbers@1.5"])["state"] == "started"
    with pytest.raises(BundleError, match=r"started already, with imports from my-numbers@1.5, not my-numbers@1.0"):
        platform.bundles.start("speeds", ["my-numbers@1.0"])
    with pytest.raises(BundleError, match=r"started already, with imports from no bundle, not speeds@1.0.0"):
        platform.bundles.start("my-numbers@1.5", ["speeds@1.0.0"])
    with pytest.raises(BundleInUse, match=r"my-numbers@1.5 cannot be stopped: it is used by the bundle speeds@1.0.0"):
        platform.bundles.stop("my-numbers")
    platform.bundles.uninstall("speeds")
    platform.bundles.stop("my-numbers")


def test_a_bundle_that_requires_itself_is_refused(platform: Platform, tmp_path: Path):
    """A circle of requirements is told with its members."""
    for name, other in (("a", "b"), ("b", "a")):
        text = manifest("1.0", name, f'[requires]\nbundles = ["{other}"]', "[]")
        platform.bundles.install(write(tmp_path / name, {"bundle.toml": text}))
    with pytest.raises(BundleError, match=r"requires itself: a@1.0 → b@1.0 → a@1.0"):
        platform.bundles.start("a")


def test_what_is_in_use_is_kept(platform: Platform, tmp_path: Path):
    """Stopping and uninstalling are refused while a component runs its code; its node is named."""
    started(platform, speeds(tmp_path))
    adding_up(platform)
    for event in (platform.bundles.stop, platform.bundles.uninstall):
        with pytest.raises(BundleInUse, match=r"it is used by road.sum"):
            event("speeds")
    (row,) = platform.bundles.list()
    assert row["used_by"] == ["road.sum"]
    platform.remove("road")
    platform.bundles.uninstall("speeds")


def test_its_services_have_its_properties(platform: Platform, tmp_path: Path):
    """What a bundle offers stands in the registry, with what its manifest says; components know their version."""
    started(platform, speeds(tmp_path, more='[properties]\nteam = "road"'))
    (offer,) = platform.registry.find("SletOffer", "(team=road)")
    assert offer.properties["slet"] == "speeds@1.0.0:add_up"
    assert (offer.properties["origin"], offer.properties["version"]) == ("speeds@1.0.0", "1.0.0")
    adding_up(platform)
    (component,) = platform.registry.find("Slet", "(node=sum)")
    assert component.properties["version"] == "1.0.0"
    platform.remove("road")
    platform.bundles.stop("speeds")
    assert not platform.registry.find(None, "(origin=speeds@1.0.0)")


CHANNEL = """
from exop import Channel

class Ring(Channel):
    \"\"\"Passes on, and counts.\"\"\"
    kind = "ring"

    def __init__(self, name, *, step: int = 1):
        super().__init__(name)
        self.step = step

    def entry(self, outlets):
        return outlets[0].entry
"""


def test_two_versions_of_a_channel_kind(platform: Platform, tmp_path: Path):
    """Each is known by its version; a channel that runs keeps its bundle started, also through an update."""
    text = manifest(more='channels = ["rings:Ring"]')
    for version in ("1.0.0", "2.0.0"):
        folder = write(speeds(tmp_path, version), {"rings.py": CHANNEL})
        (folder / "bundle.toml").write_text(text.replace("1.0.0", version))
    platform.bundles.install(tmp_path / "speeds-1.0.0")
    platform.bundles.start("speeds")
    app = Application("ring", plugins=platform.plugins)
    ring = app.channel("ring", kind="speeds@1.0.0:ring", step=2)
    app.add("sum", "speeds@1.0.0:add_up", number=ring)
    app.add("numbers", count_up, out=ring)
    platform.apply(app.build())
    facts = platform.bundles.update(tmp_path / "speeds-2.0.0")
    assert (facts["replaced"], facts["stopped"]) == (["ring.sum"], [])
    assert {"speeds@1.0.0:ring", "speeds@2.0.0:ring"} <= platform.components.kinds.keys()
    with pytest.raises(BundleInUse, match="the channel ring of ring"):
        platform.bundles.stop("speeds@1.0.0")
    platform.remove("ring")
    platform.bundles.stop("speeds@1.0.0")
    assert "speeds@1.0.0:ring" not in platform.components.kinds


def test_two_channel_kinds_of_one_name_are_refused(platform: Platform, tmp_path: Path):
    """Nothing of it is offered then."""
    folder = write(speeds(tmp_path), {"rings.py": CHANNEL, "more.py": CHANNEL})
    (folder / "bundle.toml").write_text(manifest(more='channels = ["rings:Ring", "more:Ring"]'))
    platform.bundles.install(folder)
    with pytest.raises(BundleError, match="the channel kind 'speeds@1.0.0:ring' is registered already"):
        platform.bundles.start("speeds")
    assert states(platform) == {"speeds@1.0.0": "resolved"}
    assert not any("speeds" in name for name in (*platform.slets(), *platform.components.kinds))


def test_another_bundle_of_the_same_version_is_refused(platform: Platform, tmp_path: Path):
    """A version has one content; the same content again is no mistake."""
    folder = speeds(tmp_path)
    assert platform.bundles.install(folder) == platform.bundles.install(folder)
    (folder / "helpers.py").write_text("SCALE = 2\n")
    with pytest.raises(BundleError, match=r"speeds@1.0.0 is installed already, with other files"):
        platform.bundles.install(folder)


def test_an_unknown_bundle_is_told_with_the_known(platform: Platform, tmp_path: Path):
    """Also where several versions are there, and one must be named."""
    with pytest.raises(UnknownName, match="there is no bundle here"):
        platform.bundles.start("speeds")
    for version in ("1.0.0", "1.1.0"):
        platform.bundles.install(speeds(tmp_path, version))
    with pytest.raises(BundleError, match=r"has 2 versions here; name one of them: speeds@1.0.0, speeds@1.1.0"):
        platform.bundles.uninstall("speeds")
    assert platform.bundles.start("speeds")["bundle"] == "speeds@1.1.0"


def test_two_platforms_of_one_process_share_a_version(tmp_path: Path):
    """The modules stay until the last one has stopped it; other sources under the same version are refused."""
    folder = speeds(tmp_path)
    with Platform(name="a") as first, Platform(name="b") as second:
        for platform in (first, second):
            platform.bundles.install(folder)
            platform.bundles.start("speeds")
        assert first.slets()["speeds@1.0.0:add_up"] == second.slets()["speeds@1.0.0:add_up"]
        first.bundles.uninstall("speeds")
        assert run(second, "speeds@1.0.0:add_up") == 6
        (folder / "helpers.py").write_text("SCALE = 2\n")
        first.bundles.install(folder)
        with pytest.raises(BundleError, match="loaded in this process with other sources or imports"):
            first.bundles.start("speeds")


def test_applications_start_again_with_their_bundles(tmp_path: Path):
    """Bundles are kept in the state directory, with what was started and what each imports from."""
    state = tmp_path / "state"
    slets = SLETS.replace("from speeds.helpers", "from my_numbers.constants")
    with Platform(state=state, control=False) as platform:
        platform.bundles.install(numbers(tmp_path, "1.0", 1))
        started(platform, speeds(tmp_path, more='[requires]\nbundles = ["my-numbers>=1"]', slets=slets))
        platform.bundles.install(numbers(tmp_path, "2.0", 2))
        text = manifest("1.0", "rings", 'channels = ["rings:Ring"]', offers='["slets:taken"]')
        code = {"rings.py": CHANNEL, "slets.py": "from exop.stock.slets import pass_on as taken\n"}
        started(platform, write(tmp_path / "rings", {"bundle.toml": text, **code}))
        platform.bundles.stop("rings")
        adding_up(platform)
    with Platform(state=state, control=False) as platform:
        assert platform.failed_to_restart == {}
        assert platform.applications() == ["road"]
        assert states(platform) == {
            "my-numbers@1.0": "started",
            "my-numbers@2.0": "resolved",
            "rings@1.0": "resolved",
            "speeds@1.0.0": "started",
        }
        stopped = next(row for row in platform.bundles.list() if row["name"] == "rings")
        assert (stopped["slets"], stopped["channels"]) == (["rings@1.0:pass_on"], ["rings@1.0:ring"])
        with pytest.raises(BundleInUse, match=r"road.sum"):
            platform.bundles.uninstall("speeds")


class Killed(BaseException):
    """The process ends here."""


@pytest.mark.parametrize("end", [Killed, StateError], ids=["killed", "failed"])
def test_a_bundle_that_has_not_started_again_is_not_forgotten(tmp_path: Path, monkeypatch, end: type[BaseException]):
    """The next start of the platform starts it; one that is stopped is not started again."""
    state = tmp_path / "state"
    with Platform(state=state, control=False) as platform:
        platform.bundles.install(numbers(tmp_path, "1.0", 1))
        platform.bundles.start("my-numbers")
        started(platform, speeds(tmp_path))
    before = (state / "bundles" / "started.json").read_text()

    def load(archive: Any, *more: Any) -> Any:
        if "speeds" in str(more[0]):
            raise end("here")
        return load_code(archive, *more)

    with monkeypatch.context() as patch, suppress(Killed):
        patch.setattr(bundles, "load_code", load)
        with Platform(state=state, control=False) as platform:
            assert end is StateError
            platform.bundles.stop("my-numbers")
    assert ("my-numbers" in before, json.loads((state / "bundles" / "started.json").read_text())) == (
        True,
        json.loads(before) if end is Killed else {"speeds@1.0.0": []},
    )
    with Platform(state=state, control=False) as platform:
        assert states(platform)["speeds@1.0.0"] == "started"


def test_a_stored_application_is_a_user(tmp_path: Path):
    """One that could not be started again keeps the bundle that it needs from being removed."""
    state = tmp_path / "state"
    with Platform(state=state, control=False) as platform:
        started(platform, speeds(tmp_path))
        adding_up(platform)
    (state / "bundles" / "speeds@1.0.0" / "slets.py").write_text("import nowhere\n")
    with Platform(state=state, control=False) as platform:
        told = str(platform.failed_to_restart["road"])
        assert "its code could not be loaded: speeds@1.0.0: " in told
        assert "a file is damaged" in told
        assert states(platform) == {"speeds@1.0.0": "broken"}
        (row,) = platform.bundles.list()
        assert "is not what was installed: a file is damaged" in row["problem"]
    (state / "bundles" / ".speeds@1.0.0.digest").unlink()
    with Platform(state=state, control=False) as platform:
        assert "road" in platform.failed_to_restart
        (row,) = platform.bundles.list()
        assert "No module named 'nowhere'" in row["problem"]
        with pytest.raises(BundleInUse, match="the application road, which is to be started again"):
            platform.bundles.uninstall("speeds")


def test_damage_in_the_state_directory_is_told(tmp_path: Path):
    """A bundle that cannot be read is listed as broken; what a kill has left half-written is removed."""
    state = tmp_path / "state"
    with Platform(state=state, control=False) as platform:
        platform.bundles.install(speeds(tmp_path))
        platform.bundles.install(speeds(tmp_path, "2.0.0"))
    (state / "bundles" / "speeds@1.0.0" / "bundle.toml").unlink()
    (state / "bundles" / ".unfinished-x").mkdir()
    with Platform(state=state, control=False) as platform:
        assert states(platform) == {"speeds@1.0.0": "broken", "speeds@2.0.0": "resolved"}
        assert not (state / "bundles" / ".unfinished-x").exists()
    (state / "bundles" / "started.json").write_text("[")
    with pytest.raises(StateError, match=r"started.json cannot be read"):
        Platform(state=state, control=False).start()
