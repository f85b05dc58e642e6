"""The history of an application: every operation with its caller and outcome, bounded, kept, and taken back."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from exop import Application, Platform, connect
from exop.cli import main
from exop.errors import ExopError, LifecycleError, PeerRefused, PlanError
from exop.remoting import ControlClient, ControlServer, operation, operations
from exop.runtime import history
from exop.stock.slets import count_up, pass_on


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


def test_it_is_kept_and_taken_back(platform: Platform, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The next platform has it; the reverse of a change is a plan, which leaves other nodes alone."""
    platform.apply(platform.mesh("numbers").configure("numbers", step=2))
    platform.apply(platform.mesh("numbers").configure("numbers", to=10**9).remove("pass"))
    platform.close()
    with Platform(state=tmp_path / "state", name="there") as again, connect(tmp_path / "state") as remote:
        remote.apply(remote.mesh("numbers").configure("numbers", step=5))
        assert "process" in remote.history("numbers")[-1]["who"]
        assert "the platform's" not in remote.history("numbers")[-1]["who"]
        assert "step: 5 → 1" in str(remote.plan_reverse("numbers", 2))
        assert main(["history", "numbers", "--reverse", "3", "--make", "--on", "there"]) == 0
        assert "add pass: stock:pass_on" in capsys.readouterr().out
        mesh = again.mesh("numbers")
        assert (mesh.node("numbers").settings["step"], sorted(mesh.nodes)) == (2, ["numbers", "pass"])
        assert main(["history", "numbers", "--on", "there"]) == 0
        shown = capsys.readouterr().out.splitlines()
        assert shown[3].endswith("remove pass; configure numbers; done")
        for number in (1, 99):
            with pytest.raises(PlanError, match=f"the entry {number} of numbers .* see `exop history numbers`"):
                remote.plan_reverse("numbers", number)


def test_the_oldest_entries_go(platform: Platform, monkeypatch: pytest.MonkeyPatch) -> None:
    """So many are kept; their numbers go on."""
    monkeypatch.setattr(history, "MOST", 2)
    for _ in range(3):
        platform.end("numbers")
    assert told(platform, "number", "what") == [(3, "end"), (4, "end")]


def test_a_peer_needs_the_role_of_an_operation(tmp_path: Path) -> None:
    """On a connection for observers nothing else is carried out; the platform's own operations all name their role."""

    @operation(role="observe")
    def look() -> int:
        return 1

    @operation
    def load() -> int:
        raise AssertionError

    with (
        ControlServer(operations(look, load), tmp_path / "control.sock", role="observe") as server,
        ControlClient(server.address) as client,
    ):
        assert client.call("look") == 1
        with pytest.raises(PeerRefused, match="'load' needs the role admin"):
            client.call("load")


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
        platform.remove("numbers")
        assert platform._applications.history._kept == {}
