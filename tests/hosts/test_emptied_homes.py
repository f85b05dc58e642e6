"""A home that runs no part of its application any more: it still leads it, and has its history and its state."""

from __future__ import annotations

from pathlib import Path

import pytest

from exop import Platform
from exop.errors import PlanError, UnknownName
from tests.hosts.hosts_rig import check_too, counting, goes_on, hosts
from tests.rig import eventually


@pytest.fixture(params=[False, True], ids=["in memory", "in a state directory"])
def state(request: pytest.FixtureRequest, tmp_path: Path) -> Path | None:
    """Where the platforms keep their state, if anywhere."""
    return tmp_path if request.param else None


def told(home: Platform) -> list[tuple[str, str]]:
    """The operations on the application, with their outcomes."""
    return [(one["what"], one["outcome"]) for one in home.history("app")]


def test_its_history_goes_on(state: Path | None) -> None:
    """Also of operations that come later; without a state directory it ends with the application."""
    with hosts("a", "b", state=state) as (a, b):
        a.apply(counting("b"))
        a.apply(a.mesh("app").move("numbers", to="b"))
        deployed = [("deploy", "done"), ("change", "done")]
        eventually(lambda: a._applications.names() == [], "all of it has left")
        assert told(a) == deployed
        a.apply(a.mesh("app").move("check", to="a"))
        a.apply(a.mesh("app").move("check", to="b"))
        eventually(lambda: a._applications.names() == [], "all of it has left again")
        a.end("app")
        assert told(a) == [*deployed, *deployed[1:], *deployed[1:], ("end", "done")]
        assert [one["what"] for one in b.history("app")][-1] == "end"
        a.remove("app")
        if state is not None:
            assert told(a)[-2:] == [("end", "done"), ("remove", "done")]
            return
        for one in (a, b):
            with pytest.raises(UnknownName):
                one.history("app")
        a.apply(counting("b"))
        assert told(a) == deployed[:1]


def test_an_application_that_begins_elsewhere() -> None:
    """Its home has the history, though nothing of it has ever run there; a failed operation is in it, too."""
    with hosts("a", "b") as (a, b):
        mesh = counting("b").move("numbers", to="b")
        a.apply(mesh)
        with pytest.raises(PlanError, match="nothing to accept"):
            a.accept_loss("app")
        assert [what for what, _ in told(a)] == ["deploy", "accept"]
        goes_on(b)


def test_it_tells_how_long_the_application_runs() -> None:
    """That is known from the hosts."""
    with hosts("a", "b") as (a, b):
        a.apply(counting("b"))
        a.apply(a.mesh("app").move("numbers", to="b"))
        goes_on(b)
        assert a.status("app")["running_s"] > 0


def test_only_the_home_ends_the_application(tmp_path: Path) -> None:
    """Another host would end its own part alone, and say that it has ended the whole; it may checkpoint its part."""
    with hosts("a", "b", state=tmp_path) as (a, b):
        a.apply(counting("b", every=0.05))
        for call in (b.end, b.abandon_proof):
            with pytest.raises(PlanError, match="give the command to the home, --on a"):
                call("app")
        goes_on(b)
        b.checkpoint("app")
        a.checkpoint("app")
        a.end("app")
        assert a.wait("app", 20)


def test_the_revision_of_a_home_that_is_started_again(tmp_path: Path) -> None:
    """Of an application that is not durable: its history tells the revision of the whole, which the next change has."""
    with hosts("a", "b", state=tmp_path) as (a, b):
        a.apply(counting("b"))
        a.apply(a.mesh("app").replace("check", check_too))
        goes_on(b)
    with hosts("a", "b", state=tmp_path) as (a, _):
        started, revision = a.history("app")[-1], a.mesh("app").revision
        assert (started["what"], started["revision"], started["to"]) == ("start", revision, revision)
