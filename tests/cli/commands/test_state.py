"""`exop state check` and `exop state accept`."""

from __future__ import annotations

import json
import os
from contextlib import closing
from pathlib import Path

import pytest

from exop import Application, Platform
from exop.cli import main
from exop.hosts.journal import Journal
from exop.hosts.protocol.messages import Prepared, Propose, Settled
from exop.runtime.durable.store import Store
from exop.stock.slets import count_up
from tests.cli.shell import answer_of, facts


@pytest.fixture
def state(tmp_path: Path) -> Path:
    """A directory in which a durable application with a log has run to its end."""
    app = Application("counts")
    app.durable(every=1000.0)
    kept = app.channel("kept", kind="log", keep="all")
    app.add("lines", "stock:write_lines", item=kept, path=tmp_path / "out")
    app.add("numbers", count_up, to=100, out=kept)
    with Platform(state=tmp_path / "state", control=False) as platform:
        platform.apply(app.build())
        platform.wait("counts")
    return tmp_path / "state"


def contents(state: Path) -> dict[str, bytes]:
    """Every file, as bytes."""
    return {str(path.relative_to(state)): path.read_bytes() for path in state.rglob("*") if path.is_file()}


def checked(state: Path, capsys: pytest.CaptureFixture[str], code: int = 0) -> dict:
    """What `exop state check --json` says; it changes nothing."""
    before = contents(state)
    assert main(["state", "check", str(state), "--json"]) == code
    assert contents(state) == before
    return json.loads(capsys.readouterr().out)


def test_what_is_there_is_shown(state, capsys):
    """Version, generation, applications with their checkpoint, logs; also in a table."""
    found = checked(state, capsys)
    assert (found["version"], found["damage"], found["engines"], found["bundles"]) == (4, [], [], [])
    assert found["noted"]["number"] == found["generation"] > 2
    assert found["noted"]["committed"]
    ((application,), (log,)) = found["applications"], found["logs"]
    assert (application["name"], application["revision"], application["active"]) == ("counts", 1, False)
    assert application["checkpoint"]["number"] > 1
    assert application["checkpoint"]["bytes"] > 0
    assert (log["start"], log["end"]) == (0, 100)
    told = answer_of("state", "check", state)
    assert f"{state}: version 4, generation {found['generation']} (noted: {found['generation']}, committed)" in told
    assert "nothing is damaged" in told


def test_damage_is_told_with_the_cure(state, capsys):
    """Of the generation, of a checkpoint's part and of a log; what else is there is shown all the same."""
    (state / "generation").unlink()
    (log,) = (state / "channels").rglob("*.log")
    data = log.read_bytes()
    log.write_bytes(data[: len(data) // 2] + b"?" + data[len(data) // 2 + 1 :])
    found = checked(state, capsys, code=1)
    assert [one["name"] for one in found["applications"]] == ["counts"]
    assert "may not be the newest state" in found["damage"][0]
    assert log.name in found["damage"][1]


def test_an_outcome_that_is_not_known(state, capsys):
    """An application in doubt is named, with its home and the cure, until the outcome is recorded."""
    records = (
        Prepared(Propose("3@a", "a", None, {}, (), prepare=1.0, hold=1.0)),
        Settled("3@a", commit=True, epochs={}),
    )
    for record, code in zip(records, (1, 0), strict=True):
        with closing(Store(state)) as store:
            Journal(store.database).record("counts", record)
        found = checked(state, capsys, code)
        assert found["damage"] == []
        assert [one.partition("; ")[0] for one in found["down"]] == [
            "counts: the outcome of the plan 3@a is not known here"
        ] * code
        assert ("start the platform while a can be reached" in "".join(found["down"])) == bool(code)


def test_a_directory_in_use_is_not_looked_into(state):
    """The error names the process, and what to ask instead."""
    with Platform(state=state, control=False):
        for command in ("check", "accept"):
            told = answer_of("state", command, state, code=2)
            assert f"in use by the platform with process id {os.getpid()}" in told
            assert "exop ps" in told


def test_a_directory_that_is_none(tmp_path):
    """It is not made."""
    assert "there is no state directory" in answer_of("state", "check", tmp_path / "nowhere", code=2)
    assert not (tmp_path / "nowhere").exists()


def test_another_folder_is_not_a_state_directory(tmp_path, state, capsys):
    """A folder without any file of a platform is refused; files of other programs in a state directory are ignored."""
    (tmp_path / "apt.log").write_text("no log of ours")
    for command in ("check", "accept"):
        assert "is not a state directory: it holds none of platform.sqlite" in answer_of(
            "state", command, tmp_path, code=2
        )
    (log,) = (state / "channels").rglob("*.log")
    for foreign in (state / "serve.log", log.with_name("apt.log")):
        foreign.write_text("no log of ours")
    assert checked(state, capsys)["damage"] == []


def test_what_was_accepted_starts_again(state, capsys):
    """A database whose generation file is gone, or damaged, is the newest for who says so."""
    for damage in (b"", b"ExoP generation"):
        (state / "generation").write_bytes(damage)
        checked(state, capsys, code=1)
        assert "continues from generation" in answer_of("state", "accept", state)
        assert facts("state", "accept", state)["directory"] == str(state)
        assert checked(state, capsys)["damage"] == []
    with Platform(state=state, control=False) as platform:
        assert not platform.failed_to_restart


def test_damage_is_not_accepted(state):
    """A database that is gone, or that does not fit to its digest, is refused."""
    (state / "platform.sqlite").write_bytes(b"")
    assert "nothing to accept" in answer_of("state", "accept", state, code=2)
