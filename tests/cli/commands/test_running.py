"""`exop run` in this process: outcomes, reports, exit codes, the state directory."""

import json
from contextlib import closing
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from exop import Application
from exop.cli import main
from exop.cli.commands.running import _same, run
from exop.cli.loading import find_target, known_plugins
from exop.errors import ComponentFailed, StateError
from exop.platform import Platform
from exop.runtime.durable.store import Checkpoints, Store
from tests.cli.shell import answer_of, facts, lines
from tests.model.sample_meshes import line

TALKING = """
import os
import subprocess
import sys
from exop import Application, slet
from exop.stock.slets import count_up


@slet
def talk(item: int) -> None:
    print("said by a slet", item)
    subprocess.run([sys.executable, "-c", "print('said by a child')"], check=True)


app = Application("talking")
app.add("talk", talk, item=app.add("numbers", count_up, to=2))
"""


def stored(state: Path) -> dict[str, bool]:
    """The applications of a state directory, and whether they would be started again."""
    with closing(Store(state)) as store:
        return {one.name: one.active for one in store.applications()}


def test_until_the_end(counting, tmp_path, capsys):
    """A run ends with its sources, exit code 0; the summary goes to stderr, stdout is for slets; `-q` prints none."""
    assert main(["run", str(counting), "to=100", "output=out"]) == 0
    assert lines(tmp_path / "out") == [str(number / 2) for number in range(1, 101)]
    out, err = capsys.readouterr()
    assert out == ""
    assert "counting: finished after" in err
    assert "100 items" in err
    assert "0 errors" in err
    assert main(["run", str(counting), "to=1", "output=out", "--quiet"]) == 0
    assert capsys.readouterr() == ("", "")


def test_the_report_has_one_shape(counting):
    """`app.run()` returns what `exop run --json` prints: the same keys, at every depth.

    The figures of a node stand at the node and under `metrics`.
    """

    def keys(value: Any) -> Any:
        return {key: keys(one) for key, one in value.items()} if isinstance(value, dict) else None

    printed = facts("run", counting, "to=10", "output=out")
    assert printed["outcome"] == "finished"
    assert (printed["application"], printed["items"], printed["errors"]) == ("counting", 10, 0)
    assert set(printed["channels"]) == {"numbers", "half"}
    catalog = known_plugins([counting])
    made = find_target("counting", catalog).builder()(to=10, output=Path("out")).run()
    assert list(made) == list(printed)
    assert keys(made) == keys(printed)
    for report in (made, printed):
        node = report["nodes"]["sink"]
        assert node["items_in"] == node["metrics"]["items_in"] == 10
        assert node["metrics"].items() <= node.items()


def test_stdout_belongs_to_slets_or_to_the_report(tmp_path, capfd):
    """What slets, and processes that they start, print stands alone on stdout; with `--json` it goes to stderr."""
    (tmp_path / "talking.py").write_text(TALKING)
    assert main(["run", "talking.py"]) == 0
    printed = {line.rstrip("012 ") for line in capfd.readouterr().out.splitlines()}
    assert printed == {"said by a slet", "said by a child"}
    assert main(["run", "talking.py", "--json"]) == 0
    out, err = capfd.readouterr()
    assert json.loads(out)["application"] == "talking"
    assert err.count("said by a slet") == err.count("said by a child") == 2


def test_a_failure_stops(counting, tmp_path):
    """A slet that raises ends an unattended run with 1; item, traceback and place are shown."""
    err = answer_of("run", counting, "to=5", "output=out", "missing=not-there", code=1)
    assert "counting.half has failed: ValueError: no halves today" in err
    assert "with the item 3 at its port 'item'; the item is kept" in err
    assert 'raise ValueError("no halves today")' in err
    assert "exop: half failed while running: ValueError: no halves today" in err
    assert f"raised at {counting / '__init__.py'}:" in err
    assert lines(tmp_path / "out") == ["0.5", "1.0"]


def test_a_failure_as_data(counting, capsys):
    """`--json` reports a failure; with `--log-format json` every line on stderr is an object, the summary too."""
    command = ["run", str(counting), "to=5", "output=out", "missing=x"]
    assert main([*command, "--json"]) == 1
    out, err = capsys.readouterr()
    report = json.loads(out)
    assert report["outcome"] == "failed"
    assert report["error"]["nodes"]["half"]["item"] == "3"
    assert "ValueError" in report["error"]["nodes"]["half"]["traceback"]
    assert "exop: half failed" in err
    lines = [json.loads(line) for line in answer_of(*command, "--log-format", "json", code=1).splitlines()]
    assert [line["level"] for line in lines] == ["error", "info", "error"]
    assert (lines[0]["node"], lines[0]["item"]) == ("half", "3")
    assert (lines[1]["outcome"], lines[2]["error"]) == ("failed", "ComponentFailed")


def test_a_run_that_leaves_dead_letters_ends_with_3(tmp_path, capsys):
    """Summary and report count what was skipped and set aside, with the errors; skipped items alone end with 0."""
    (tmp_path / "rough.py").write_text(
        "from exop import Application, slet\nfrom exop.stock.slets import count_up, pass_on\n\n"
        "@slet\ndef picky(item: int) -> int:\n    return 1 // (item % 3)\n\n"
        "app = Application('rough')\nnumbers = app.add('numbers', count_up, to=9)\n"
        "app.add('skip', picky, item=numbers, on_error='skip')\n"
        "app.add('aside', picky, item=numbers, on_error='dead-letter')\n"
    )
    err = answer_of("run", "rough.py", code=3)
    assert "6 errors, 3 skipped, 3 set aside as dead letters" in err
    problem = "ZeroDivisionError: integer division or modulo by zero"
    assert f"  skip: 3 errors, the last: {problem}\n  aside: 3 errors, the last: {problem}\n" in err
    assert main(["run", "rough.py", "--quiet", "--json"]) == 3
    report = json.loads(capsys.readouterr().out)
    assert (report["outcome"], report["errors"], report["skipped"], report["dead"]) == ("finished", 6, 3, 3)
    first = report["nodes"]["aside"]["dead_letters"]["first"][0]
    assert (first["item"], first["error"]) == ("0", problem)
    assert first["traceback"].startswith("Traceback (most recent call last):\n  File")
    (tmp_path / "rough.py").write_text((tmp_path / "rough.py").read_text().replace("dead-letter", "skip"))
    assert main(["run", "rough.py", "--quiet"]) == 0


@pytest.mark.parametrize(("more", "code"), [(["to=3"], 0), (["to=5", "missing=x"], 1)])
def test_an_application_that_has_ended_is_not_started_again(more, code, counting, tmp_path):
    """After a clean end or a failure the state directory knows the application, and does not start it again."""
    assert main(["run", str(counting), *more, "output=out", "--state", "state", "--quiet"]) == code
    assert not any(stored(tmp_path / "state").values())
    with Platform(state=tmp_path / "state") as platform:
        assert platform.applications() == []


def test_a_last_checkpoint_that_fails_ends_with_1(tmp_path, capsys):
    """`exop run`, and `exop end --wait` of what another process runs, name the sink and what it has not written."""
    app = Application("kept")
    app.durable(every=3600)
    app.add(
        "rows", "stock:write_sqlite", item=app.add("numbers", "stock:count_up", to=3), path=tmp_path / "rows.sqlite"
    )
    (tmp_path / "kept.toml").write_text(app.build().to_toml())
    with mock.patch.object(Checkpoints, "write", side_effect=StateError("no room")):
        assert main(["run", "kept.toml", "--state", "state", "--quiet", "--json"]) == 1
        out, err = capsys.readouterr()
        assert "kept has finished, but its last checkpoint failed: no room; not written: 3 items of rows; repair" in err
        assert json.loads(out)["unwritten"] == {"rows": 3}
        with Platform(state=tmp_path / "other", control=True) as platform:
            platform.apply(app.build())
            assert "not written: 3 items of rows; repair" in answer_of("end", "kept", "--wait", code=1)
    assert main(["run", "kept.toml", "--state", "state", "--quiet"]) == 0


@pytest.fixture
def abandoned(counting: Path, tmp_path: Path) -> Path:
    """A state directory whose platform was killed while the application ran."""
    assert main(["run", str(counting), "to=3", "output=out", "--state", "state", "--quiet"]) == 0
    with closing(Store(tmp_path / "state")) as store:
        store.set_active("counting", active=True)
    return tmp_path / "state"


def test_run_goes_on_after_a_crash(abandoned, capsys):
    """The same command after a crash lets the platform start the application again by itself, and watches it."""
    assert main(["run", "./counting", "to=3", "output=out", "--state", str(abandoned)]) == 0
    err = capsys.readouterr().err
    assert "it ran in" in err
    assert "counting: finished" in err


def test_run_does_not_mix_two(abandoned, tmp_path, counting):
    """Another mesh under the same name is refused before anything is started; the stored one is kept."""
    (tmp_path / "out").unlink()
    with pytest.raises(StateError, match="exop remove counting --state"):
        run(str(counting), "to=4", "output=out", state=abandoned)
    assert not (tmp_path / "out").exists()
    assert stored(abandoned) == {"counting": True}
    assert "did you mean 'counting'?" in answer_of("remove", "countin", "--state", abandoned, code=2)
    assert main(["remove", "counting", "--state", str(abandoned)]) == 0
    assert stored(abandoned) == {}


def test_what_an_older_release_stored_is_the_same():
    """It stored no setting at its default, set or not; a setting of another value makes another application."""
    assert _same(line().to_toml(), line().configure("middle", limit=5))
    assert not _same(line().to_toml(), line().configure("middle", limit=6))
    assert not _same("[application]", line())


def test_removed_by_somebody_else(counting, tmp_path, monkeypatch):
    """An application that is removed before its end is no success: exit code 1."""
    wait = Platform.wait

    def removing(self: Platform, application: str, timeout: float | None = None) -> bool:
        if lines(tmp_path / "out") and application in self.applications():
            self.remove(application)
        return wait(self, application, timeout)

    monkeypatch.setattr(Platform, "wait", removing)
    # Enough output that the first lines leave the file's buffer.
    assert main(["run", str(counting), "output=out", "--quiet"]) == 1


def test_python_errors_of_a_builder(tmp_path):
    """A builder that raises is named, with the line in the user's file."""
    file = tmp_path / "crash.py"
    file.write_text("from exop import Application\n\n\ndef crash(*, by: int = 0) -> Application:\n    return 1 // by\n")
    first, second = answer_of("run", file, code=2).splitlines()
    assert first == "exop: the builder crash failed: ZeroDivisionError: integer division or modulo by zero"
    assert second == f"  raised at {file}:5"


@pytest.mark.parametrize(
    ("phase", "cause", "code"),
    [
        ("opening", StateError("nothing to open"), 2),
        ("opening", PermissionError(13, "no"), 2),
        ("opening", ValueError("a defect of the slet"), 1),
        ("running", FileNotFoundError(2, "gone"), 2),
        ("running", OSError(28, "no space"), 1),
        ("running", StateError("any error of ExoP"), 1),
    ],
)
def test_whose_fault(phase, cause, code):
    """2 is what a person can mend before the next try: missing files, permissions, what a slet needs to open."""
    from exop.cli.report import exit_code

    error: Any = ComponentFailed(node="x", phase=phase, problem=str(cause))
    error.__cause__ = cause
    assert exit_code(error) == code


SHARED = """
from collections.abc import Iterator
from exop import Application, slet

@slet
def source() -> Iterator[dict]:
    yield {"v": 1}

@slet
def alter(item: dict) -> None:
    item["v"] = 2

@slet
def look(item: dict) -> None: ...

app = Application("shared")
items = app.add("source", source)
app.add("alter", alter, item=items)
app.add("look", look, item=items)
"""


def test_a_slet_that_alters_a_shared_item(tmp_path):
    """`exop run --check-sharing` logs the slet and ends with exit code 1; without it nothing is looked at."""
    file = tmp_path / "shared.py"
    file.write_text(SHARED)
    assert "shared: alter.item alters an item of the channel 'source'" in answer_of(
        "run", file, "--quiet", "--check-sharing", code=1
    )
    assert main(["run", str(file), "--quiet"]) == 0


HOSTILE_APP = """
from bench.exceptions import HOSTILE
from exop import Application, slet

@slet
def refuse(item: int) -> None:
    raise HOSTILE[{name!r}]()

app = Application("hostile")
app.add("refuse", refuse, item=app.add("numbers", "stock:count_up", to=3))
"""


@pytest.mark.parametrize("name", ["frozen", "closed", "odd-class", "disguised"])
@pytest.mark.parametrize("more", [["--json"], ["--log-format", "json"], ["--debug"]], ids=lambda more: more[0])
def test_an_exception_of_any_class_is_reported(name, more, tmp_path, capsys):
    """The run ends with the node, the class and the item named; the exception breaks neither text nor JSON."""
    file = tmp_path / f"hostile_{name}.py".replace("-", "_")
    file.write_text(HOSTILE_APP.format(name=name))
    assert main(["run", str(file), "--on-failure", "stop", *more]) == 1
    out, err = capsys.readouterr()
    assert "refuse failed while running" in err
    assert "for the item 0" in err
    assert "a defect" not in err
    if more == ["--json"]:
        assert json.loads(out)["nodes"]["refuse"]["kept"]["item"] == "0"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (("outptu=out",), "has no parameter 'outptu'; did you mean 'output'?"),
        ((), "needs output=…"),
        (("output=out", "to=many"), "'to' does not fit"),
        (("output",), "write NAME=VALUE"),
        (("output=out", "--params", "nothing.toml"), "nothing.toml cannot be read"),
        (
            ("output=out", "--builder", "nothing"),
            "has no builder 'nothing'; did you mean 'counting'? known: counting, other",
        ),
        (
            ("output=out", "--builder", ""),
            "name one of them: counting:counting, counting:other (for `exop dev` by --builder)",
        ),
    ],
)
def test_what_no_save_can_mend_is_refused_by_dev_at_once(given, said, counting):
    """A mistake on the command line would be there after every save."""
    code = (counting / "__init__.py").read_text().replace("return [counting]", "return [counting, other]")
    (counting / "__init__.py").write_text(f"{code}\n\ndef other() -> Application:\n    return Application('other')\n")
    more = () if "--builder" in given else ("--builder", "counting")
    assert said in answer_of("dev", "counting", *given, *more, code=2)
