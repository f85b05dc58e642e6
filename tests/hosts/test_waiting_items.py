"""Many items wait in front of a port, or at one that pulls its items: in all moves they keep their order."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from exop import Application, InputPort, Slet, input_port, slet
from tests.change.tools import Tap, endless, grows, plain, suspended, whole
from tests.hosts.moving import APP, Hosts, hosts
from tests.rig import eventually

#: The item on which a slet is suspended, and the number of all items.
STOP, ALL = 50, 3000


def failing(bad: list[bool], *, itself: bool) -> tuple[Any, Any]:
    """A slet that iterates its port, and one behind it; one of them fails at an item as long as something is bad."""

    @slet
    def pulls(x: InputPort[int]) -> Iterator[int]:
        for one in x:
            if itself and one == STOP and bad:
                raise ValueError("not now")
            yield one

    @slet
    def passes(x: int) -> int:
        if not itself and x == STOP and bad:
            raise ValueError("not now")
        return x

    return pulls, passes


@contextmanager
def waiting(at: str, *, itself: bool, others: str = "h1", third: str = "h1", ack: str = "done") -> Iterator[Hosts]:
    """Numbers in a queue, pulled at one host, where they wait; after the block the stream goes on to its end, whole."""
    bad, tap = [True], Tap()
    pulls, passes = failing(bad, itself=itself)
    with hosts("h1", "h2", "h3", slets=(tap.source(), pulls, passes)) as there:
        app = Application(APP)
        items = app.channel("items", "queue", connector={"ack": ack, "capacity": 100})
        app.add("numbers", tap.source(), out=items)
        taken = app.on(at).add("pulls", pulls, x=items)
        app.on(at).add("sink", there.sink, x=app.on(at).add("passes", passes, x=taken))
        app.on(others).add("sink_too", there.sink_too, x=app.on(others).add("keeps", plain, x=items))
        app.on(third).add("third", plain, x=items)
        there.home.apply(app.build())
        tap.let(STOP)
        suspended(there.platforms[at], APP, "pulls" if itself else "passes")
        tap.let(ALL - STOP)
        port = there.component(at, "pulls").pulled["x"]
        eventually(lambda: port.queue.depth >= 1024, "more items wait than there is room for")
        yield there
        now = there.home.mesh(APP).node("pulls").host if itself else at
        suspended(there.platforms[now or "h1"], APP, "pulls" if itself else "passes")
        bad.clear()
        there.home.resume(APP, "pulls" if itself else "passes")
        tap.shut()
        eventually(lambda: there.home._hosts.homes[APP].finished, "the end")
        whole([*there.seen], ALL)
        whole([*there.seen_too], ALL)


@pytest.mark.parametrize("ack", ["done", "received"])
def test_a_connector_begins_anew_behind_what_waits_at_the_port(ack: str):
    """Its events go behind those that the port had from it before."""
    with waiting("h2", itself=False, others="h2", ack=ack) as there:
        there.move("h2", "third")


def test_a_channel_leaves_and_comes_back_while_items_wait_at_the_port():
    """The items from the other host go behind those from before."""
    with waiting("h1", itself=False) as there:
        for host in ("h2", "h1", "h3", "h1"):
            there.move(host, "items")


@pytest.mark.parametrize("others", ["h1", "h2"], ids=["beside others", "alone"])
def test_a_slet_leaves_with_the_items_of_two_queues(others: str):
    """Those of a queue that is not connected any more are handed over once."""
    with waiting("h1", itself=True, others=others, third=others) as there:
        there.move("h2", "items")
        there.move("h3", "pulls")


@pytest.mark.parametrize("ack", ["done", "received"])
def test_a_slet_moves_on_before_it_has_processed_what_it_has_brought(ack: str):
    """The items that have come with it are none of the connector at the next host."""
    with waiting("h1", itself=True, ack=ack) as there:
        for host in ("h2", "h1", "h3"):
            there.move(host, "pulls")


def test_a_log_sends_again_nothing_to_a_slet_that_had_it_before():
    """A port gets what a log keeps when it is connected, and not when one of the two moves."""
    with hosts("h1", "h2", "h3") as there:
        app = Application(APP)
        app.add("numbers", endless, out=(kept := app.channel("kept", "log", replay=True)))
        app.add("sink", there.sink, x=kept)
        there.home.apply(app.build())
        for host, name in (("h2", "sink"), ("h1", "sink"), ("h3", "kept"), ("h3", "sink")):
            grows(there.seen)
            there.move(host, name)
        grows(there.seen)
        whole([*there.seen])


def test_two_streams_meet_while_one_of_them_moves_on():
    """What comes from another host goes behind what waits in the queue that was inserted where two drivers meet."""
    bad, tap = [True], Tap()

    class Meets(Slet):
        """Passes on one of two streams, and fails at an item."""

        @input_port
        def left(self, x: int) -> None:
            """Drop."""

        @input_port
        def right(self, x: int) -> int:
            """Pass on."""
            if x == STOP and bad:
                raise ValueError("not now")
            return x

    with hosts("h1", "h2", "h3", slets=(tap.source(), Meets)) as there:
        app = Application(APP)
        right = app.channel("right", connector={"capacity": 100})
        app.add("moves", plain, x=app.add("numbers", tap.source()), out=right)
        app.add("sink", there.sink, x=app.add("meets", Meets, left=app.add("others", endless), right=right))
        there.home.apply(app.build())
        deployment = there.home.deployment(APP)
        tap.let(STOP)
        suspended(there.home, APP, "meets")
        tap.let(1000)
        eventually(lambda: deployment.inserted["right -> meets.right"].depth == 1000, "items wait")
        there.move("h2", "moves")
        tap.let(500)
        eventually(lambda: deployment.channels["right.from.h2"].depth > 50, "there is no more room")
        there.move("h3", "moves")
        suspended(there.home, APP, "meets")
        bad.clear()
        there.home.resume(APP, "meets")
        eventually(lambda: len(there.seen) == STOP + 1500, "all items")
        tap.shut()
        whole([*there.seen], STOP + 1500)
