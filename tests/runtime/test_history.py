"""The history of an application: every operation with its caller and outcome, bounded, kept, and taken back."""

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from exop import Application, Platform, connect
from exop.cli import main, peers
from exop.errors import ExopError, LifecycleError, PeerRefused, PeerUnreachable, PlanError, StateError, UnknownName
from exop.model.meshes.mesh import ChannelSpec
from exop.remoting import ControlClient, ControlServer, operation, operations
from exop.remoting.api.remote_platform import RemotePlatform
from exop.remoting.api.service import ManagementService
from exop.runtime import history
from exop.runtime.durable.store import read_history
from exop.runtime.history import shown
from exop.stock.slets import WriteLines, count_up, pass_on
from tests.bundle.folders import SLETS, manifest, write


@pytest.fixture
def platform(tmp_path: Path) -> Iterator[Platform]:
    """A platform with a state directory and an application."""
    app = Application("numbers")
    app.add("pass", pass_on, item=app.add("numbers", count_up))
    with Platform(state=tmp_path / "state", name="there") as platform:
        platform.apply(app.build())
        yield platform


def told(platform: Platform, *keys: str) -> list[tuple[Any, ...]]:
    """The entries as tuples of some of their facts."""
    return [tuple(one.get(key) for key in keys) for one in platform.history("numbers")]


def test_every_operation_is_recorded(platform: Platform) -> None:
    """Deployment, changes, operations on nodes, and those that fail: each once, with its revisions and pause."""
    platform.apply(platform.mesh("numbers").configure("numbers", step=2).suspend("pass"))
    platform.resume("numbers", "pass")
    with pytest.raises(LifecycleError):
        platform.resume("numbers", "pass")
    with pytest.raises(ExopError):
        platform.plan(platform.mesh("numbers").configure("numbers", step=3)).apply(keep=5.0)
    platform.plan(platform.mesh("numbers")).apply()
    assert told(platform, "number", "what", "node", "from", "to") == [
        (1, "deploy", None, 0, 1),
        (2, "change", None, 1, 2),
        (3, "resume", "pass", 2, 3),
        (4, "resume", "pass", None, None),
    ]
    *done, failed = platform.history("numbers")
    assert [one["outcome"] for one in done] == ["done"] * 3
    assert failed["outcome"].startswith("LifecycleError: numbers.pass is active")
    assert done[1]["steps"] == ["configure numbers", "suspend pass"]
    assert done[1]["paused_ms"] > 0
    assert all("platform's process" in one["who"] for one in done)


def test_it_is_kept_and_taken_back(
    platform: Platform, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next platform has it; the reverse of a change is a plan, which leaves other nodes alone."""
    platform.apply(platform.mesh("numbers").configure("numbers", step=2))
    platform.apply(platform.mesh("numbers").configure("numbers", to=10**9).remove("pass"))
    platform.close()
    with Platform(state=tmp_path / "state", name="there") as again, connect(tmp_path / "state") as remote:
        remote.apply(remote.mesh("numbers").configure("numbers", step=5))
        assert "process" in remote.history("numbers")[-1]["who"]
        assert "the platform's" not in remote.history("numbers")[-1]["who"]
        back = str(remote.plan_reverse("numbers", 2))
        assert "step: 5 → 1" in back
        for later in (3, 5):
            assert f"the later change {later} of numbers is undone as well" in back
        assert main(["history", "numbers", "--reverse", "3", "--make", "--on", "there"]) == 0
        assert "add pass: stock:pass_on" in capsys.readouterr().out
        mesh = again.mesh("numbers")
        assert (mesh.node("numbers").settings["step"], sorted(mesh.nodes)) == (2, ["numbers", "pass"])
        assert main(["history", "numbers", "--on", "there"]) == 0
        shown = capsys.readouterr().out.splitlines()
        assert shown[3].endswith("remove pass; configure numbers; done")
        for number, why in ((1, r"\(deploy\) has not changed"), (99, "does not exist")):
            with pytest.raises(PlanError, match=f"the entry {number} of numbers {why}.* see `exop history numbers`"):
                remote.plan_reverse("numbers", number)
        assert told(again, "what", "how", "revision")[3] == ("start", "started anew (not durable)", 4)
        entries = again.history("numbers")
    assert main(["history", "numbers", "--state", str(tmp_path / "state"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == entries, "a platform that is down"
    with monkeypatch.context() as patched:
        dying = Mock(history=Mock(side_effect=PeerUnreachable(address="there", problem="reset")))
        patched.setattr(peers, "connect", lambda *_, **__: nullcontext(dying))
        assert main(["history", "numbers", "--state", str(tmp_path / "state"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == entries, "a platform that ends within the call"
    assert main(["history", "numbrs", "--state", str(tmp_path / "state")]) == 2
    assert "no application 'numbrs'; did you mean 'numbers'?" in capsys.readouterr().err
    assert main(["history", "--state", str(tmp_path / "state")]) == 0
    assert capsys.readouterr().out == "no operation on the platform is recorded\n"
    assert main(["history", "numbers", "--state", str(tmp_path)]) == 2
    assert "platform.sqlite could not be read" in capsys.readouterr().err


def test_only_later_changes_that_stand_in_the_way_are_to_be_undone_first(platform: Platform) -> None:
    """One that has connected other nodes, also if it has touched none of the same; then the earlier one is undone."""
    mesh = platform.apply(platform.mesh("numbers").configure("numbers", step=2))
    mesh = platform.apply(mesh.rewire("numbers", out=ChannelSpec("buffer", "queue")).rewire("pass", item="buffer"))
    mesh = platform.apply(mesh.configure("numbers", to=10**9))
    mesh = platform.apply(mesh.add_slet("more", mesh.node("pass").slet, {"item": "pass"}, {}))
    mesh = platform.apply(mesh.add_slet("last", mesh.node("pass").slet, {"item": "more"}, {}))
    platform.apply(mesh.configure("numbers", step=3))
    for number, first in ((2, 3), (5, 6)):
        with pytest.raises(PlanError, match=f"undo these first: `exop history numbers --reverse {first} --make`; now,"):
            platform.plan_reverse("numbers", number)
        platform.plan_reverse("numbers", first).apply()
        assert platform.plan_reverse("numbers", number)
    assert "step: 2 → 1" in str(platform.plan_reverse("numbers", 2))


def test_what_is_undone_already_and_a_state_are_not_taken_back(platform: Platform) -> None:
    """Neither is named as undone as well; the error on one of them names the command that restores a state."""
    platform.apply(platform.mesh("numbers").configure("numbers", step=2))
    platform.restore("numbers", "numbers", platform.memento("numbers", "numbers"))
    platform.apply(platform.mesh("numbers").configure("numbers", step=5))
    platform.plan_reverse("numbers", 4).apply()
    for number in (3, 4):
        with pytest.raises(PlanError, match=r"left nothing to undo; a state .*`exop memento import numbers.NODE FILE`"):
            platform.plan_reverse("numbers", number)
    assert "undone as well" not in str(platform.plan_reverse("numbers", 2))
    platform.apply(platform.mesh("numbers").configure("numbers", step=7))
    assert platform.plan_reverse("numbers", 2).notes == ("the later change 6 of numbers is undone as well",)


def test_deployments_that_fail_and_applications_that_are_gone(platform: Platform, tmp_path: Path) -> None:
    """A deployment that fails has its entry; that of an application that was removed is still there."""
    app = Application("failing")
    app.add("writes", WriteLines, item=app.add("numbers", count_up), path=tmp_path / "none" / "file")
    with pytest.raises(ExopError):
        platform.apply(app.build())
    ((what, outcome),) = [(one["what"], one["outcome"]) for one in platform.history("failing")]
    assert what == "deploy"
    assert "No such file" in outcome
    platform.remove("numbers")
    assert told(platform, "what", "outcome")[-1] == ("remove", "done"), "it is still there"
    with pytest.raises(UnknownName):
        platform.history("never")


def test_operations_on_bundles(platform: Platform, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """They stand in the history of the platform, under no application's name, also those that fail."""
    files = {"bundle.toml": manifest(), "slets.py": SLETS, "helpers.py": "SCALE = 1"}
    platform.bundles.install(write(tmp_path / "speeds", files))
    with pytest.raises(UnknownName):
        platform.bundles.start("sped")
    assert main(["history", "--on", "there"]) == 0
    first, second = capsys.readouterr().out.splitlines()[1:]
    assert "install bundle speeds@1.0.0" in first
    assert "start bundle sped " in second
    assert "UnknownName" in second


def test_the_oldest_entries_go(platform: Platform, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last ones are kept, under their numbers."""
    monkeypatch.setattr(history, "MOST", 2)
    for _ in range(3):
        platform.end("numbers")
    assert told(platform, "number", "what") == [(3, "end"), (4, "end")]


def test_a_start_that_fails_again_and_again_has_one_entry() -> None:
    """Starts that fail for ever do not push other entries out."""
    kept = history.History({"numbers"}.__contains__)
    for problem in ("no slet", "no slet", "no file", "no slet"):
        with pytest.raises(ExopError), kept.recorded("numbers", "start"):
            raise ExopError(problem)
    assert [one["outcome"] for one in kept.of("numbers")] == [f"ExopError: no {n}" for n in ("slet", "file", "slet")]


def test_a_process_that_is_killed_leaves_what_it_was_doing(platform: Platform, tmp_path: Path) -> None:
    """An operation is `under way`; after a kill it is `cut off`, in the next process and without one.

    So is a change that is part of an operation on the platform: in the history of its application, too.
    """
    kept = platform._applications.history
    with kept.recorded("", "update bundle", new=True), kept.recorded("numbers", "change"):
        assert told(platform, "what", "outcome")[-1] == ("change", "under way")
        shutil.copytree(tmp_path / "state", tmp_path / "killed", ignore=shutil.ignore_patterns("*.sock"))
    assert told(platform, "what", "outcome")[1:] == [("change", "done")]
    cut = "cut off when the platform ended: `exop mesh` shows whether it was carried out"
    assert shown(read_history(tmp_path / "killed", "numbers"))[-1]["outcome"] == cut
    assert shown(read_history(tmp_path / "killed", ""))[-1]["outcome"] == "cut off when the platform ended"
    with Platform(state=tmp_path / "killed", name="there") as again:
        assert told(again, "what", "outcome")[1:] == [("change", cut), ("start", "done")]
        with pytest.raises(PlanError, match=r"the entry 2 of numbers \(change\) was cut off"):
            again.plan_reverse("numbers", 2)


def test_an_entry_that_is_begun_while_the_disk_is_full(platform: Platform, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is written once, with its outcome, when there is room; so is the outcome of one that was begun before."""
    store = platform._applications.store
    assert store is not None
    kept, full = platform._applications.history, Mock(side_effect=StateError("the disk is full"))
    with kept.recorded("numbers", "early"):
        monkeypatch.setattr(store.database, "transaction", full)
        with kept.recorded("never", "none"):
            pass
        kept.noted("numbers", "between")
    with kept.recorded("numbers", "late"):
        assert told(platform, "what", "outcome")[-1] == ("late", "under way")
        kept.counted("numbers", "read", "not permitted")
    expected = [("early", "done"), ("between", "done"), ("late", "done"), ("read", "refused")]
    assert told(platform, "what", "outcome")[1:] == expected
    monkeypatch.undo()
    platform.end("numbers")
    assert told(platform, "what", "outcome")[1:] == [*expected, ("end", "done")]


def test_a_peer_needs_the_role_of_an_operation(tmp_path: Path) -> None:
    """On a connection for observers nothing else is carried out; the platform's own operations all name their role."""

    @operation(role="observe")
    def look() -> int:
        return 1

    @operation
    def load() -> int:
        raise AssertionError

    with (
        ControlServer(operations(look, load), tmp_path / "control.sock", roles=lambda peer: "observe") as server,
        ControlClient(server.address) as client,
    ):
        assert client.call("look") == 1
        with pytest.raises(PeerRefused, match="the call needs the role admin"):
            client.call("load")


@pytest.mark.parametrize("stored", [True, False])
def test_a_refused_call_is_logged_and_recorded(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str], *, stored: bool
) -> None:
    """One entry per operation counts the calls and displaces no change; other names leave a line in the log alone."""
    app = Application("numbers")
    app.add("pass", pass_on, item=app.add("numbers", count_up))
    with (
        Platform(state=tmp_path / "state" if stored else None, name="there", control=True) as platform,
        ControlServer(
            ManagementService(platform).table(), tmp_path / "control.sock", roles=lambda peer: "observe"
        ) as server,
        RemotePlatform(server.address) as observer,
    ):
        platform.apply(app.build())
        mesh = observer.mesh("numbers")
        for _ in range(3):
            with pytest.raises(PeerRefused, match="refused: the call needs the role operate, and the role .* observe"):
                observer.end("numbers")
        calls = (
            lambda: observer.apply(mesh),
            lambda: observer.plan_topology(mesh.to_toml()),
            lambda: observer.end("unknown"),
            lambda: observer.wait("numbers", 0),
            lambda: observer.stop_bundle("speeds"),
        )
        for call in calls:
            with pytest.raises(PeerRefused):
                call()
        platform.end("numbers")
        assert told(platform, "number", "what", "outcome", "count") == [
            (1, "deploy", "done", None),
            (2, "end", "refused", 3),
            (3, "apply", "refused", 1),
            (4, "plan_topology", "refused", 1),
            (5, "wait", "refused", 1),
            (6, "end", "done", None),
        ]
        refused = platform.history("numbers")[1]
        reason = "'end' needs the role operate, and the role of this peer is observe"
        assert refused["reason"] == reason
        assert f"process {os.getpid()}" in refused["who"]
        logged = [one.getMessage() for one in caplog.records if one.name == "exop.remoting"]
        assert logged[:3] == [f"refused a call of {refused['who']} on the application 'numbers': {reason}"] * 3
        assert "'unknown'" in logged[5]
        assert "'stop_bundle' needs the role admin" in logged[7]
        assert main(["history", "numbers", "--on", "there"]) == 0
        assert f"refused 3×, the last: {reason}" in capsys.readouterr().out
        with pytest.raises(UnknownName):
            platform.history("unknown")


def test_names_that_a_peer_makes_up_leave_nothing() -> None:
    """Operations on unknown applications, and on removed ones, hold no memory of the platform."""
    app = Application("numbers")
    app.add("pass", pass_on, item=app.add("numbers", count_up))
    with Platform() as platform:
        platform.apply(app.build())
        platform.end("numbers")
        assert told(platform, "what", "outcome") == [("deploy", "done"), ("end", "done")]
        for name in ("nobody", "x" * 100):
            with pytest.raises(ExopError):
                platform.remove(name)
            with pytest.raises(ExopError):
                platform.history(name)
        platform.remove("numbers")
        assert platform._applications.history._kept == {}
