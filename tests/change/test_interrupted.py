"""Ctrl-C during a change: the mesh is the old one or the new one, and KeyboardInterrupt comes when that is settled."""

import signal
import threading
from typing import Any

import pytest

from bench.cases import failures
from bench.interrupts import interrupted_changes
from exop import Memento, Slet, input_port, slet
from exop.runtime.deployment import OPENERS
from exop.runtime.supervision import interrupts
from tests.change.owning import Ports, Serving, owner
from tests.change.tools import chain, changed, count_to, end, endless, finish, grows, stream, whole, writing
from tests.rig import PATIENCE, Gate, eventually


def interrupt() -> None:
    """Ctrl-C, from any thread; the main thread runs the handler at once."""
    signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)


def test_while_the_change_waits_for_a_driver(platform):
    """It is given up as a whole; another interrupt during the undoing changes nothing about that."""
    seen: list[int] = []
    gate = Gate()
    closed: list[bool] = []

    @slet
    def waits(x: int) -> int:
        if x == 20:
            gate.pass_through()
        return x

    class Successor(Slet):
        def __exit__(self, *exc: object) -> None:
            interrupt()
            closed.append(True)

        @input_port
        def x(self, x: int) -> int:
            """Pass on."""
            return x

    platform.apply(chain("app", count_to, waits, writing(seen)).build())
    gate.somebody_waits()
    source = platform.deployment("app").components["a"].driver

    def stop() -> None:
        eventually(lambda: source.closed, "the beginning of the change")
        interrupt()

    helper = threading.Thread(target=stop)
    helper.start()
    with pytest.raises(KeyboardInterrupt):
        changed(platform, "app", lambda mesh: mesh.replace("b", Successor))
    helper.join()
    assert closed == [True]
    assert platform.mesh("app").revision == 1
    assert not [driver.name for driver in platform.deployment("app").drivers() if driver.closed]
    gate.open()
    finish(platform, "app")
    whole(seen, 1000)


class Old(Memento):
    """Of the predecessor."""


class New(Memento):
    """Of the successor."""

    @classmethod
    def upgrade(cls, old: Any) -> "New":
        """Take over, and be interrupted meanwhile."""
        CALLS.append(old)
        if len(CALLS) == 2:  # the first one is tried on a copy
            interrupt()
        return cls()


CALLS: list[Old] = []


def test_while_everything_stands_still(platform):
    """The change is completed, and the interrupt comes then."""
    seen: list[int] = []
    CALLS.clear()

    @slet
    def before(x: int, state: Old) -> int:
        return x

    @slet
    def after(x: int, state: New) -> int:
        return x

    platform.apply(chain("app", endless, before, writing(seen)).build())
    with pytest.raises(KeyboardInterrupt):
        platform.apply(platform.mesh("app").replace("b", after), pause=PATIENCE)
    assert platform.mesh("app").revision == 2
    assert isinstance(platform.deployment("app").components["b"].state, New)
    grows(seen)
    end(platform, "app")
    whole(seen)


def test_while_an_application_is_opened(platform, monkeypatch):
    """It is closed again, and is not there."""
    closed: list[bool] = []
    kept = threading.Event()
    keep = interrupts.Request.keep

    def noted(request: Any, error: BaseException) -> None:
        keep(request, error)
        kept.set()

    monkeypatch.setattr(interrupts.Request, "keep", noted)

    class Opening(Slet):
        def __enter__(self) -> "Opening":
            interrupt()
            assert kept.wait(PATIENCE)
            return self

        def __exit__(self, *exc: object) -> None:
            closed.append(True)

        @input_port
        def x(self, x: int) -> int:
            """Pass on."""
            return x

    with pytest.raises(KeyboardInterrupt):
        platform.apply(chain("app", endless, Opening, writing([])).build())
    eventually(lambda: closed == [True])  # the call may have been given up just before it returned
    assert platform.applications() == []


def test_while_a_slet_that_closes_its_predecessor_opens(platform):
    """It fails, and the old one is opened again in spite of the interrupt, which was for the change."""
    ports = Ports()
    old = owner(ports, Serving, "Old", exclusive=True)

    class Refused(owner(ports, Serving, "New", exclusive=True), name="refused"):
        def __enter__(self) -> Any:
            interrupt()
            raise OSError("refused")

    with stream(platform, old) as seen:
        grows(seen)
        with pytest.raises(KeyboardInterrupt):
            changed(platform, "app", lambda mesh: mesh.replace("b", Refused))
        grows(seen)
    assert ports.log[:3] == ["open Old 80", "close Old 80", "open Old 80"]


def test_while_slets_take_long_to_open(platform):
    """They are given up, those that wait for their turn are not opened, and the application is not there."""
    gate, opened = Gate(), list[str]()

    class Opening(Slet):
        def __enter__(self) -> "Opening":
            opened.append("")
            gate.pass_through()
            return self

        @input_port
        def x(self, x: int) -> int:
            """Pass on."""
            return x

    def stop() -> None:
        for _ in range(OPENERS):
            gate.somebody_waits()
        interrupt()

    helper = threading.Thread(target=stop)
    helper.start()
    with pytest.raises(KeyboardInterrupt):
        platform.apply(chain("app", endless, *[Opening] * (OPENERS + 1), writing([])).build())
    helper.join()
    assert (len(opened), platform.applications()) == (OPENERS, [])
    gate.open()


def test_at_any_moment():
    """The first part of the campaign `python -m bench interrupts`."""
    assert failures(interrupted_changes, 4) == []
