"""A successor whose `upgrade` takes longer than the pause allowed catches up beside the old one."""

import threading
from collections.abc import Callable
from functools import reduce

import pytest

from exop import Memento, Platform, slet
from exop.errors import ComponentFailed, PlanError
from tests.change.tools import chain, end, endless, grows, in_thread, whole, writing
from tests.rig import PATIENCE, eventually

#: So long a change waits for an upgrade that hangs, in seconds.
SHORT = 3.0


class Upgrading:
    """The call of `upgrade` beside the stream: it waits for the gate, and may fail then."""

    def __init__(self) -> None:
        self.beside: Callable[[], bool] = lambda: False
        self.gate = threading.Event()
        self.waits = threading.Event()
        self.fails = False
        self.calls = 0

    def met(self) -> None:
        """It is called."""
        self.calls += 1
        if self.beside():
            self.waits.set()
            self.gate.wait(PATIENCE)
            if self.fails:
                raise ValueError("no such state")


UPGRADE = Upgrading()


def digest(before: int, x: int) -> int:
    """A figure that depends on every item, and on their order."""
    return (before * 31 + x) % 1_000_003


class Old(Memento):
    """The state of before."""

    digest: int = 0


class New(Memento):
    """The state that it becomes."""

    digest: int = 0

    @classmethod
    def upgrade(cls, old: Old) -> "New":
        """Take it over."""
        UPGRADE.met()
        return cls(digest=old.digest)


@slet
def old(x: int, kept: Old) -> int:
    """Pass on, and note."""
    kept.digest = digest(kept.digest, x)
    return x


@slet
def new(x: int, kept: New) -> int:
    """The same with another state."""
    kept.digest = digest(kept.digest, x)
    return x


@pytest.fixture
def seen():
    """The items that have arrived."""
    return []


@pytest.fixture
def platform(seen):
    """A platform on which the application runs; the upgrade waits as soon as the successor is tied to the old one."""
    UPGRADE.__init__()
    with Platform() as platform:
        platform.apply(chain("app", endless, old, writing(seen)).build())
        component = platform.deployment("app").components["b"]
        UPGRADE.beside = lambda: component.tap is not None
        grows(seen, 10)
        yield platform
        UPGRADE.gate.set()


def replaced(platform: Platform, timeout: float = PATIENCE) -> None:
    """Replace the slet; no upgrade is quick enough for the cut."""
    platform.apply(platform.mesh("app").replace("b", new), pause=0.0, timeout=timeout)


def runs_on(platform: Platform, seen: list[int]) -> None:
    """The old slet runs, and nothing listens to it any more; the change can be made later."""
    grows(seen)
    component = platform.deployment("app").components["b"]
    assert component.node.slet.name == "old"
    assert component.tap is None
    UPGRADE.beside = lambda: False
    replaced(platform)
    completed(platform, seen)


def completed(platform: Platform, seen: list[int]) -> None:
    """The successor takes its place without a gap, and with the state that a replay of the stream makes."""
    successor = platform.deployment("app").components["b"]
    assert successor.node.slet.name == "new"
    grows(seen)
    end(platform, "app")
    whole(seen)
    assert successor.state == New(digest=reduce(digest, seen, 0))


def test_the_stream_goes_on_while_the_state_is_made(platform, seen):
    """What comes meanwhile is worked off beside it; no call of `upgrade` is in the cut, and nothing is lost."""
    with in_thread(lambda: replaced(platform)):
        assert UPGRADE.waits.wait(PATIENCE)
        grows(seen, 1000)
        calls = UPGRADE.calls
        UPGRADE.gate.set()
    assert UPGRADE.calls == calls
    completed(platform, seen)


def test_an_upgrade_that_fails_beside_the_stream_leaves_the_old_slet(platform, seen):
    """The change is refused with its error, and nothing is left of it."""
    UPGRADE.fails = True
    UPGRADE.gate.set()
    with pytest.raises(Exception, match="no such state"):
        replaced(platform)
    runs_on(platform, seen)


def test_an_upgrade_that_hangs_beside_the_stream_is_given_up(platform, seen):
    """The change is refused after its time-out, and nothing is left of it."""
    with pytest.raises(ComponentFailed, match="b failed while taking over the state: it has not returned"):
        replaced(platform, SHORT)
    UPGRADE.gate.set()
    eventually(lambda: "calls" not in platform.status("app"), "the end of the call")
    runs_on(platform, seen)


def test_an_application_can_be_removed_while_a_state_is_made(platform, seen):
    """The change ends with an error, without waiting for the upgrade."""

    def refused() -> None:
        with pytest.raises((ComponentFailed, PlanError)):
            replaced(platform)

    with in_thread(refused):
        assert UPGRADE.waits.wait(PATIENCE)
        platform.remove("app")
    assert platform.applications() == []
    whole(seen)
