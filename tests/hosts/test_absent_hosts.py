"""A slet reads a table on a host that cannot be reached: it waits as long as that takes, and goes on by itself."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from exop import Application, EndOfStream, InputPort, Memento, OutputPort, Slet, input_port, slet
from exop.cli.status_text import attention_lines, held_nodes, problem_lines, troubles
from exop.errors import CheckpointError, PeerUnreachable, PlanError
from exop.runtime.component import Component
from exop.runtime.drivers.source import ThreadDriver
from exop.runtime.lifecycle import State
from exop.runtime.supervision.watchdog import whereabouts
from tests.hosts.moving import APP, Hosts, hosts
from tests.rig import PATIENCE, eventually

#: How many items the source may emit so far.
RELEASED = [0]


class Calls(Memento):
    """How often a slet was called."""

    number: int = 0


class Plain(Slet, name="reads"):
    """Count, and then read."""

    rates: InputPort[dict[str, int]]
    tag: int = 0

    @input_port
    def x(self, x: int) -> tuple[int, int]:
        """Emit the item and what is in the table."""
        return x, self.rates.get("a")["rate"]


class Counts(Plain, name="reads_and_counts"):
    """Count, and then read."""

    calls: Calls

    @input_port
    def x(self, x: int) -> tuple[int, int]:
        """Emit the number of the call and what is in the table."""
        self.calls.number += 1
        return self.calls.number, self.rates.get("a")["rate"]


class Atomic(Counts, name="reads_atomically", atomic=True):
    """Count, and then read."""


class Pulls(Slet, name="pulls_and_reads"):
    """Count each item that it pulls, and then read."""

    x: InputPort[int]
    rates: InputPort[dict[str, int]]
    calls: Calls
    tag: int = 0

    def __iter__(self) -> Iterator[tuple[int, int]]:
        for _ in self.x:
            self.calls.number += 1
            yield self.calls.number, self.rates.get("a")["rate"]


class Pushes(Slet, name="pushes_and_reads", own_driver=True):
    """Count each item that comes, and then read; it is called by the driver of another slet."""

    rates: InputPort[dict[str, int]]
    out: OutputPort[tuple[int, int]]
    calls: Calls

    @input_port
    def x(self, x: int | EndOfStream) -> None:
        """Push the number of the call and what is in the table."""
        if isinstance(x, EndOfStream):
            self.out.end()
        else:
            self.calls.number += 1
            self.out.push((self.calls.number, self.rates.get("a")["rate"]))


@slet
def released(calls: Calls) -> Iterator[int | None]:
    """Emit what is released."""
    while True:
        while calls.number >= RELEASED[0]:
            time.sleep(0.001)
            yield None
        calls.number += 1
        yield calls.number


@slet
def rows() -> Iterator[dict[str, Any]]:
    """Fill the table."""
    yield {"key": "a", "rate": 7}


KINDS = {"plain": Plain, "counts": Counts, "atomic": Atomic, "pulls": Pulls, "pushes": Pushes}
#: Those of which a call can be made again as if it had not been made.
REPEATED = ("plain", "atomic")


class Absent:
    """Hosts of which h2 has a table that a slet on h1 reads; h2 may be away."""

    def __init__(self, there: Hosts, kind: str, durable: float | None, beside: str = "", **connector: Any) -> None:
        self.there, self.seen = there, there.seen
        self.outs = [there.seen, there.seen_too] if beside else [there.seen]
        RELEASED[0] = 0
        app = Application(APP)
        if durable is not None:
            app.durable(every=durable)
        table = app.channel("table", "table", key="key", host="h2", connector=connector)
        app.on("h2").add("rows", rows, out=table)
        source = app.add("source", released)
        app.add("sink", there.sink, x=app.add("reads", KINDS[kind], x=source, rates=table))
        if beside:
            app.add("sink_too", there.sink_too, x=app.add("beside", KINDS[beside], x=source, rates=table))
        there.home.apply(app.build())
        eventually(lambda: there.platforms["h2"].deployment(APP).channels["table"].get("a"))
        self.reader = there.home.deployment(APP).channels["table.at.h2"]
        self.call = self.reader.call_peer
        self.let(3)

    def let(self, more: int) -> None:
        """Let items through; each comes out once of each slet that reads, which then reads no more."""
        RELEASED[0] += more
        eventually(lambda: all(RELEASED[0] == len(seen) for seen in self.outs), f"{self.outs}")
        assert all(seen == [(number + 1, 7) for number in range(RELEASED[0])] for seen in self.outs)

    @contextmanager
    def away(self) -> Iterator[None]:
        """Within the block, h2 cannot be reached, and the slet waits with an item."""

        def lost(peer: str, operation: str, **given: Any) -> bytes:
            raise PeerUnreachable(address=peer, problem="it is away")

        self.reader.call_peer = lost
        RELEASED[0] += 2
        eventually(lambda: self.reader.away)
        before = [*self.seen]
        yield
        assert self.seen == before
        self.reader.call_peer = self.call

    @property
    def component(self) -> Any:
        """The slet that reads."""
        return self.there.home.deployment(APP).components["reads"]

    def goes_on(self) -> None:
        """It processes what has waited, and further items."""
        self.let(3)
        assert self.component.metrics.errors == 0


@contextmanager
def absent(kind: str, tmp_path: Any = None, every: float | None = None, **how: Any) -> Iterator[Absent]:
    """A slet of a kind that reads a table on another host."""
    with hosts("h1", "h2", slets=(released, *KINDS.values(), rows), state=tmp_path) as there:
        yield Absent(there, kind, every, **how)


@pytest.mark.parametrize("kind", KINDS)
def test_a_slet_waits_for_an_absent_host_and_goes_on_by_itself(kind: str):
    """It is not suspended and has not failed; the status says for whom it waits."""
    with absent(kind) as one:
        with one.away():
            status = one.there.home.status(APP)["hosts"]["h1"]
            why = "'table' on h2: no platform answers at h2: it is away; start one with `exop serve`, or see `exop ps`"
            assert held_nodes(status) == "; waiting: reads"
            assert [*problem_lines(status)] == [f"app.reads waits for table.at.h2 ({why})"]
            assert troubles(status["nodes"]["reads"], "app.reads") == [f"waits for {why}"]
            assert not [*attention_lines(status, brief=True)]
            assert status["nodes"]["reads"]["state"] == "active"
        one.goes_on()
        assert not held_nodes(one.there.home.status(APP)["hosts"]["h1"])
        with one.away():
            pass
        one.goes_on()


@pytest.mark.parametrize("kind", KINDS)
def test_an_application_is_changed_while_a_slet_waits_for_an_absent_host(kind: str):
    """A call that can be made again makes way; another one is ended when its slet is suspended."""
    with absent(kind) as one, one.away():
        home = one.there.home
        beside = home.mesh(APP).configure("sink", on_error="skip")
        if kind not in REPEATED:
            with pytest.raises(PlanError, match=r"reads waits for 'table' on h2.*it is inside an item.*`exop suspend`"):
                home.apply(beside, timeout=PATIENCE)
            home.apply(home.mesh(APP).suspend("reads"))
            assert one.component.status is State.SUSPENDED
            home.apply(home.mesh(APP).resume("reads"))
            beside = home.mesh(APP).configure("sink", on_error="skip")
        home.apply(beside)
        assert one.component.state is None or one.component.state.number == 3 + (kind not in REPEATED)
        eventually(lambda: held_nodes(home.status(APP)["hosts"]["h1"]))


def test_a_call_without_an_answer_is_told_in_words():
    """Not by what the platform does in it."""
    with absent(next(iter(KINDS))) as one:
        asked, answered = threading.Event(), threading.Event()

        def stuck(peer: str, operation: str, **given: Any) -> Any:
            asked.set()
            answered.wait(PATIENCE)
            return one.call(peer, operation, **given)

        one.reader.call_peer = stuck
        RELEASED[0] += 1
        assert asked.wait(PATIENCE)
        deployment = one.there.home.deployment(APP)
        told = whereabouts(deployment.components.values(), deployment.drivers())
        answered.set()
        assert told.startswith("\nreads is at\n")
        assert told.endswith("\n  it waits for the table 'table' on h2")
        assert "exop/runtime" not in told


@pytest.mark.parametrize("kind", REPEATED)
def test_a_call_that_is_made_again_leaves_nothing(kind: str):
    """The item waits at the safe point, and is processed once, also by a successor."""
    with absent(kind) as one:
        home = one.there.home
        with one.away():
            home.memento(APP, "source")
            home.apply(home.mesh(APP).replace("reads", KINDS[kind], tag=1))
        one.goes_on()


@pytest.mark.parametrize("removed", [False, True])
def test_a_call_makes_way_whatever_reads_beside_it(removed: bool):
    """Another slet that the same driver runs, and whose calls cannot be made again, or that is gone, is not meant."""
    with absent("atomic", beside="counts") as one:
        if removed:
            one.there.apply(lambda mesh: mesh.remove("beside").remove("sink_too"))
            one.outs.pop()
        with one.away():
            one.there.apply(lambda mesh: mesh.configure("sink", on_error="skip"))
        one.goes_on()
        one.there.apply(lambda mesh: mesh.replace("reads", Atomic, tag=1))
        assert [*one.reader.awaited] == ["reads.rates", "beside.rates"][: 2 - removed], "one that is gone is kept"


def test_a_change_that_would_lose_the_item_that_waits_names_the_host():
    """It is made when the host answers."""
    with absent("atomic") as one:
        home = one.there.home
        pulls = home.mesh(APP).replace("reads", Pulls)
        with (
            one.away(),
            pytest.raises(PlanError, match=r"in front of reads.x \(reads waits for 'table' on h2: no platform answers"),
        ):
            home.apply(pulls)
        one.goes_on()
        home.apply(home.mesh(APP).replace("reads", Pulls))
        one.goes_on()


@pytest.mark.parametrize("kind", KINDS)
def test_an_application_ends_while_a_slet_waits_for_an_absent_host(kind: str):
    """Also its drivers."""
    with absent(kind) as one:
        drivers = one.there.home.deployment(APP).drivers()
        with one.away():
            assert one.there.home.remove(APP, timeout=PATIENCE)
            assert all(driver.join(PATIENCE) for driver in drivers if isinstance(driver, ThreadDriver))


@pytest.mark.parametrize("kind", sorted(KINDS.keys() - {"pushes"}))
def test_a_checkpoint_has_an_item_that_waits_for_an_absent_host(kind: str, tmp_path: Any):
    """Or is refused at once, so that the streams beside it go on."""
    with absent(kind, tmp_path, every=3600.0) as one:
        home = one.there.home
        with one.away():
            if kind in REPEATED:
                home.checkpoint(APP)
            else:
                with pytest.raises(CheckpointError, match=r"reads waits for 'table' on h2.*or first suspend the slet"):
                    home.checkpoint(APP)
                home.apply(home.mesh(APP).suspend("reads"))
                home.checkpoint(APP)
                home.apply(home.mesh(APP).resume("reads"))
        if kind in REPEATED:
            one.goes_on()


def test_a_call_that_is_made_twice_is_found(monkeypatch: pytest.MonkeyPatch):
    """Planted: every call is taken for one that leaves nothing."""
    monkeypatch.setattr(Component, "can_call_again", True)
    with absent("counts") as one:
        with one.away():
            one.there.home.memento(APP, "reads")
        with pytest.raises(AssertionError):
            one.goes_on()
