"""`exop dev`: every edit is applied to the running mesh, or told, and then what ran before runs on."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from exop import Platform
from exop.bundle.dev import Development, Generation, WatchedFolder
from exop.cli.commands.running import Session, report_outcome
from exop.cli.report import Stopping
from exop.cli.view import View
from exop.errors import ComponentFailed
from exop.model.meshes.mesh import Mesh
from tests.bundle.folders import write
from tests.cli.shell import answer_of
from tests.rig import eventually

FILES = {
    "__init__.py": """
from exop import hookimpl

@hookimpl
def register_slets():
    from .slets import add_up, check
    return [add_up, check]

@hookimpl
def register_builders():
    from .build import road
    return [road]
""",
    "build.py": """
from exop import Application
from exop.stock.slets import count_up
from .slets import add_up, check

def road() -> Application:
    app = Application("road")
    queue = app.channel("queue", kind="queue", capacity=100)
    app.add("sum", add_up, number=app.add("numbers", count_up, start=1), out=queue)
    app.add("check", check, pair=queue)
    return app
""",
    "slets.py": """
from dataclasses import dataclass, field
from exop import Memento, slet

MADE = [0]

@dataclass
class Pair:
    number: int
    text: str

class Seen(Memento):
    last: int = 0
    pairs: dict[int, Pair] = field(default_factory=dict)

class Arrived(Memento):
    last: int = 0
    text: str = ""
    wrong: int = 0

@slet
def add_up(number: int, seen: Seen) -> Pair:
    if number != seen.last + 1:
        raise ValueError((number, seen.last))
    seen.last = number
    pair = Pair(number, "first")
    seen.pairs[0] = pair
    return pair

@slet
def check(pair: Pair, arrived: Arrived) -> None:
    arrived.wrong += pair.number != arrived.last + 1
    arrived.last, arrived.text = pair.number, pair.text
""",
}


class Desk:
    """A developer at work: a folder, the platform on which it runs, and what was told."""

    def __init__(self, platform: Platform, folder: Path) -> None:
        self.platform = platform
        self.folder = write(folder, FILES)
        self.development: Development = platform.bundles.develop(folder, self._build)

    def _build(self, generation: Generation) -> Mesh:
        (builder,) = self.platform.catalog.builders()[generation.name]
        return builder().build()

    def edit(self, file: str, *changes: tuple[str, str]) -> None:
        """Replace texts in a file."""
        text = (self.folder / file).read_text()
        for old, new in changes:
            assert old in text
            text = text.replace(old, new)
        (self.folder / file).write_text(text)

    def node(self, name: str) -> Any:
        """A component that runs."""
        return self.platform.deployment("road").components[name]

    def arrives(self, text: str) -> None:
        """Wait until items of the edited slet have come to the end; none was lost on the way."""
        eventually(lambda: self.node("check").state.text == text, text)
        seen = self.node("check").state.last
        eventually(lambda: self.node("check").state.last > seen + 100)
        assert self.node("check").state.wrong == 0


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    """A desk with an application that runs."""
    with Platform() as platform:
        desk = Desk(platform, tmp_path / "mine")
        assert desk.development.take().verb == "runs"
        desk.arrives("first")
        yield desk
        if "road" in platform.applications():
            platform.remove("road")
        desk.development.close()
    assert not any(name.startswith("exop_bundles") for name in sys.modules)


def test_what_was_edited_is_replaced_and_nothing_else(desk: Desk):
    """The slet of another text is another one, with its state by reference; the one beside it is not touched."""
    check, seen = desk.node("check"), desk.node("sum").state
    desk.edit("slets.py", ('"first"', '"second"'))
    outcome = desk.development.take()
    assert (outcome.verb, outcome.steps) == ("changed", ("replace sum; the state (Seen) by reference",))
    desk.arrives("second")
    assert desk.node("check") is check
    assert desk.node("sum").state is seen


def test_an_edit_of_what_they_share_replaces_both(desk: Desk):
    """A class that has changed is another one: the items, the mementos and what these hold are of it."""
    desk.edit("slets.py", ("    text: str\n\nclass Seen", "    text: str\n    more: int = 7\n\nclass Seen"))
    outcome = desk.development.take()
    assert [step.partition(";")[0] for step in outcome.steps] == ["replace check", "replace sum"]
    eventually(lambda: desk.node("sum").state.pairs[0].more == 7)
    desk.arrives("first")


def test_what_changes_nothing_is_told_so(desk: Desk):
    """A comment, and the same text saved again, replace nothing."""
    desk.edit("slets.py", ("@slet\ndef check", "# it is right\n\n@slet\ndef check"))
    assert desk.development.take().verb == "unchanged"
    assert desk.development.take().verb == "unchanged"
    assert desk.platform.mesh("road").revision == 1


def test_what_was_made_when_it_was_imported_is_not_made_again(desk: Desk):
    """An object at the top of a module stays the one that the slets know."""
    made = vars(sys.modules[desk.node("sum").spec.factory.__module__])["MADE"]
    desk.edit("slets.py", ('"first"', '"second"'))
    desk.development.take()
    now = desk.node("sum").spec.factory.__globals__
    assert now["MADE"] is made
    assert now is not desk.node("check").spec.factory.__globals__


OPENING = """
from exop import Slet, input_port

class Check(Slet, name="check"):
    arrived: Arrived

    def __enter__(self):
        raise OSError("no road")

    @input_port
    def pair(self, pair: Pair) -> None:
        pass

check = Check

def unused(pair, arrived):
"""
UPGRADE = "class Seen(Memento, version=2):\n    @classmethod\n    def upgrade(cls, old):\n        return 1 / 0\n"
#: What is edited in which file, from what, to what, and what is told.
BROKEN = {
    "syntax": ("slets.py", "seen.last = number\n", "seen.last = (number\n", "SyntaxError: '(' was never closed"),
    "import": ("slets.py", "MADE = [0]", "import nowhere", "No module named 'nowhere'"),
    "exit": ("slets.py", "MADE = [0]", "raise SystemExit(1)", "SystemExit: 1"),
    "signature": ("slets.py", "(number: int, seen: Seen)", "(*number)", "no slet"),
    "port": ("slets.py", "(pair: Pair,", "(item: Pair,", "pair"),
    "types": ("slets.py", "(pair: Pair,", "(pair: str,", "Pair"),
    "state": (
        "slets.py",
        "    last: int = 0\n    pairs",
        "    latest: int = 0\n    pairs",
        "handed over to the new Seen: the field 'last' (int) is gone, and Seen has",
    ),
    "upgrade": ("slets.py", "class Seen(Memento):", UPGRADE, "upgrade raised ZeroDivisionError"),
    "builder": ("build.py", 'app = Application("road")', "app = 1 / 0", "division by zero"),
    "opening": ("slets.py", "@slet\ndef check(pair: Pair, arrived: Arrived) -> None:\n", OPENING, "no road"),
}


@pytest.mark.parametrize("what", BROKEN)
def test_a_broken_edit_never_takes_the_mesh_down(desk: Desk, what: str):
    """It is told; the old slets run on with their state; the next good save is applied."""
    file, *change, told = BROKEN[what]
    good = (desk.folder / file).read_text()
    desk.edit(file, (change[0], change[1]))
    outcome = desk.development.take()
    assert outcome.verb == "refused"
    assert told in f"{outcome.error} {outcome.error.__cause__}"
    desk.arrives("first")
    assert desk.platform.mesh("road").revision == 1
    (desk.folder / file).write_text(good)
    desk.edit("slets.py", ('"first"', '"second"'))
    assert desk.development.take().verb == "changed"
    desk.arrives("second")


def test_a_failing_item_is_tried_again_by_the_edited_slet(desk: Desk):
    """The slet that raised is suspended on its item; the mended one takes it first: none is lost."""
    desk.edit("slets.py", ("    seen.last = number\n", "    1 / 0\n    seen.last = number\n"))
    desk.development.take()
    eventually(lambda: desk.node("sum").error is not None)
    desk.edit("slets.py", ("    1 / 0\n", ""), ('"first"', '"mended"'))
    assert desk.development.take().verb == "changed"
    desk.arrives("mended")


def test_a_save_while_a_change_is_made_is_the_next_one(desk: Desk):
    """The folder was looked at before it was loaded: what is written meanwhile is noticed, and not taken for known."""
    folder = WatchedFolder(desk.folder)
    desk.edit("slets.py", ('"first"', '"second"'))
    assert [folder.changed(), folder.changed()] == [False, True]
    build = desk.development._build

    def editing(generation: Generation) -> Mesh:
        desk.edit("slets.py", ('"second"', '"third"'))
        return build(generation)

    desk.development._build = editing
    assert desk.development.take().verb == "changed"
    desk.arrives("second")
    desk.development._build = build
    assert [folder.changed(), folder.changed()] == [False, True]
    assert desk.development.take().verb == "changed"
    desk.arrives("third")


def test_what_an_operator_has_set_meanwhile_stays(desk: Desk):
    """An edit of something else does not take it back; an edit of it does."""
    desk.edit("slets.py", ("pair: Pair, arrived: Arrived)", "pair: Pair, arrived: Arrived, *, level: int = 1)"))
    desk.development.take()
    platform = desk.platform
    platform.apply(platform.mesh("road").configure("check", level=5))
    desk.edit("slets.py", ('"first"', '"second"'))
    desk.development.take()
    assert platform.mesh("road").node("check").settings["level"] == 5
    desk.edit("slets.py", ("level: int = 1", "level: int = 2"))
    desk.development.take()
    assert platform.mesh("road").node("check").settings["level"] == 5
    desk.edit("build.py", ("check, pair=queue", "check, pair=queue, level=9"))
    desk.development.take()
    assert platform.mesh("road").node("check").settings["level"] == 9


def test_an_edited_default_runs(desk: Desk):
    """Defaults come with the code; the outcome names the setting, with both values."""
    desk.edit("slets.py", ("arrived: Arrived)", "arrived: Arrived, *, level: int = 1)"))
    desk.development.take()
    desk.edit("slets.py", ("level: int = 1", "level: int = 2"))
    steps = desk.development.take().steps
    assert steps == ("replace check; the state (Arrived) by reference; level: 1 → 2 (the default of check)",)
    assert desk.platform.mesh("road").node("check").settings["level"] == 2


def test_nodes_come_and_go_with_the_builder(desk: Desk):
    """The mesh that the builder makes is what runs, whatever has changed in it."""
    desk.edit("build.py", ("    return app", '    app.add("too", check, pair=app.output("sum"))\n    return app'))
    outcome = desk.development.take()
    assert outcome.steps == ("add too",)
    desk.edit("build.py", ('    app.add("too", check, pair=app.output("sum"))\n', ""))
    assert desk.development.take().steps == ("remove too", "the state of too (Arrived) is lost")
    desk.arrives("first")


def test_a_broken_beginning_waits_for_the_first_good_save(tmp_path: Path):
    """Nothing runs yet; the good save deploys."""
    with Platform() as platform:
        desk = Desk(platform, tmp_path / "mine")
        good = (desk.folder / "build.py").read_text()
        desk.edit("build.py", ("return app", "return ap"))
        assert desk.development.take().verb == "refused"
        assert platform.applications() == []
        (desk.folder / "build.py").write_text(good)
        assert desk.development.take().verb == "runs"
        desk.arrives("first")
        platform.remove("road")
        assert desk.development.take().verb == "runs"
        platform.remove("road")
        desk.development.close()


def test_a_folder_that_is_no_application_is_told(tmp_path: Path):
    """With what to make of it: the command ends at once."""
    (tmp_path / "empty").mkdir()
    assert "nowhere is no folder; make" in answer_of("dev", tmp_path / "nowhere", code=2)
    assert "empty has neither a bundle.toml nor an __init__.py; make" in answer_of("dev", tmp_path / "empty", code=2)


def test_a_bundle_is_developed_with_what_it_requires(tmp_path: Path):
    """Its manifest names the builder; bundles that it requires are started."""
    constants = {"bundle.toml": 'name = "constants"\nversion = "1.0"\n', "c.py": "FACTOR = 3\n"}
    toml = 'name = "road"\nversion = "1.0"\nslets = ["slets:add_up"]\nbuilders = ["build:road"]\n'
    files = {**FILES, "bundle.toml": toml + '[requires]\nbundles = ["constants"]\n'}
    del files["__init__.py"]
    files["slets.py"] = "from constants.c import FACTOR\n" + FILES["slets.py"].replace('"first"', "str(FACTOR)")
    with Platform() as platform:
        desk = Desk(platform, tmp_path / "mine")
        (desk.folder / "__init__.py").unlink()
        write(desk.folder, files)
        assert "lacks the bundle constants" in str(desk.development.take().error)
        platform.bundles.install(write(tmp_path / "constants", constants))
        assert desk.development.take().verb == "runs"
        desk.arrives("3")
        assert platform.bundles.states() == {"constants@1.0": "started"}
        assert desk.platform.mesh("road").node("sum").slet.identity == "road@1.0:add_up"
        platform.remove("road")
        desk.development.close()


def session(desk: Desk, saves: list[Callable[[], object] | None]) -> Session:
    """A session whose watcher tells what the test says: at each look the next edit is made, and then it is stopped."""
    coming = iter(saves)
    stopping = Stopping()

    def saved() -> bool:
        edit = next(coming, saved)
        if edit is saved:
            stopping.count = 1
            return False
        if edit is None:
            return False
        edit()
        return True

    return Session(desk.platform, desk.development, saved, View(), stopping)


def test_the_session_takes_every_save_and_tells(desk: Desk, capsys: pytest.CaptureFixture[str]):
    """Good and broken ones, one after the other; at the end what is under way is processed, and nothing is left."""
    running = session(
        desk,
        [
            lambda: desk.edit("slets.py", ('"first"', '"second"')),
            None,
            lambda: desk.edit("slets.py", ("MADE = [0]", "import nowhere")),
            lambda: desk.edit("slets.py", ("import nowhere", "MADE = [0]")),
        ],
    )
    running.until_stopped()
    running.end()
    told = capsys.readouterr().err
    assert "road: changed in " in told
    assert "  replace sum; the state (Seen) by reference" in told
    assert f"refused: {desk.folder / 'slets.py'}:5: " in told
    assert "road: runs on unchanged" in told
    assert "road: nothing that runs has changed" in told
    assert desk.platform.applications() == []


def test_the_session_tells_what_fails(desk: Desk, capsys: pytest.CaptureFixture[str]):
    """A slet that raises is told once, with its traceback and the item."""
    running = session(desk, [])
    desk.edit("slets.py", ("    seen.last = number\n", "    1 / 0\n    seen.last = number\n"))
    running.take()
    eventually(lambda: desk.platform.deployment("road").failures())
    running.look()
    running.look()
    told = capsys.readouterr().err
    assert told.count("road.sum has failed: ZeroDivisionError: division by zero\n") == 1
    assert told.count("  everything upstream waits: edit it: the item is retried\n") == 1
    assert "    1 / 0\n" in told
    report_outcome(desk.development.take(), 0.1)


def test_the_end_of_a_session_tells_the_item_that_is_dropped(desk: Desk):
    """While a slet is suspended, the session ends with its error. The traceback is that of then."""
    running = session(desk, [])
    desk.edit("slets.py", ("    seen.last = number\n", "    1 / 0\n    seen.last = number\n"))
    running.take()
    eventually(lambda: desk.platform.deployment("road").failures())
    desk.edit("slets.py", ("MADE = [0]", "# a longer file\nMADE = (0"))
    assert desk.development.take().verb == "refused"
    assert "    1 / 0\n" in desk.platform.status("road")["nodes"]["sum"]["kept"]["traceback"]
    with pytest.raises(ComponentFailed, match=r"sum .*division by zero"):
        running.end()
    assert desk.platform.applications() == []


def test_what_has_finished_is_run_again_by_the_next_save(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """An application whose sources end is told to have finished, once."""
    with Platform() as platform:
        desk = Desk(platform, tmp_path / "mine")
        desk.edit("build.py", ("count_up, start=1", "count_up, start=1, to=10"))
        running = session(desk, [])
        running.take()
        assert platform.wait("road", 60)
        running.look()
        running.look()
        assert capsys.readouterr().err.count("road: finished; the next save runs it again") == 1
        running.take()
        assert "road: runs" in capsys.readouterr().err
        running.end()


def test_an_edit_is_noticed_once_when_it_rests(tmp_path: Path):
    """Two looks in a row see the same before it counts; after it was told it is not told again."""
    file = tmp_path / "a.py"
    file.write_text("1")
    folder = WatchedFolder(tmp_path)
    assert not folder.changed()
    file.write_text("22")
    assert not folder.changed()
    file.write_text("333")
    assert not folder.changed()
    assert folder.changed()
    assert not folder.changed()


def test_a_file_that_is_renamed_into_place_is_an_edit(tmp_path: Path):
    """As editors do it: also with the length and time of the one before."""
    file = tmp_path / "a.py"
    file.write_text("1")
    os.utime(file, ns=(1, 1))
    folder = WatchedFolder(tmp_path)
    (tmp_path / ".a.py.swp").write_text("2")
    assert not folder.changed()
    os.utime(tmp_path / ".a.py.swp", ns=(1, 1))
    (tmp_path / ".a.py.swp").rename(file)
    assert [folder.changed(), folder.changed()] == [False, True]


def test_files_that_come_and_go_count(tmp_path: Path):
    """Modules and manifests, in folders below too; caches, data and hidden files do not."""
    folder = WatchedFolder(tmp_path)
    for name in ("__pycache__/a.py", "data.csv", ".git/x.py", "a.pyc"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("1")
    assert not any([folder.changed(), folder.changed()])
    (tmp_path / "below").mkdir()
    (tmp_path / "below" / "a.py").write_text("1")
    assert [folder.changed(), folder.changed()] == [False, True]
    (tmp_path / "below" / "a.py").unlink()
    assert [folder.changed(), folder.changed()] == [False, True]
