"""Many items wait in front of a port, or at one that pulls its items: in all moves they keep their order."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from exop import Application, InputPort, Punctuation, Slet, input_port, slet
from exop.errors import LifecycleError, PlanError, StateError
from exop.hosts.moves.handing import Handing
from exop.runtime.channels.inbox import Inbox
from exop.runtime.channels.outbox import Outbox
from exop.runtime.durable.durability import Durability
from tests.change.tools import Position, Tap, count_to, endless, grows, plain, suspended, whole
from tests.hosts.moving import APP, Hosts, hosts
from tests.rig import PATIENCE, eventually

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


@slet
def marked() -> Iterator[int | Punctuation]:
    """Four numbers, and a punctuation behind each."""
    for number in range(1, 5):
        yield number
        yield Punctuation(number)


@pytest.mark.parametrize(("kind", "meets"), [("log", False), ("log", True), ("direct", True)])
def test_punctuations_wait_while_their_channel_moves(kind: str, meets: bool):
    """A stream goes on with its control items when its channel moves: they wait at a port, or in a queue before it."""
    bad, seen = [True], list[Any]()

    class Marks(Slet):
        @input_port
        def left(self, x: int) -> None:
            """Drop."""

        @input_port
        def right(self, x: int | Punctuation) -> None:
            """Write down."""
            if x == 1 and bad:
                raise ValueError("not now")
            seen.append(x)

    @slet
    def marks(right: int | Punctuation) -> None:
        Marks.right(None, right)  # type: ignore[arg-type]

    sink = Marks if meets else marks
    with hosts("h1", "h2", slets=(marked, sink)) as there:
        app = Application(APP)
        items = app.add("marked", marked, out=app.channel("items", kind))
        others = {"left": app.add("others", count_to, to=3)} if meets else {}
        host = "h1" if meets else "h2"
        app.on(host).add("sink", sink, right=items, **others)
        there.home.apply(app.build())
        suspended(there.platforms[host], APP, "sink")
        eventually(lambda: there.component("h1", "marked").has_ended, "all waits")
        for host in ("h2", "h1", "h2"):
            there.move(host, "items")
        bad.clear()
        there.home.resume(APP, "sink")
        eventually(lambda: there.home._hosts.homes[APP].finished, "the end")
        assert seen == [one for number in range(1, 5) for one in (number, Punctuation(number))]


def test_punctuations_that_wait_in_a_queue_that_goes_are_in_the_checkpoint_of_the_cut(tmp_path: Path):
    """Their channel moves, and the host is killed before another checkpoint: the stream goes on with them."""
    bad, seen = [True], list[Any]()

    class Meets(Slet):
        @input_port
        def left(self, x: int) -> None:
            """Drop."""

        @input_port
        def right(self, x: int | Punctuation) -> None:
            """Write down."""
            if x == 1 and bad:
                raise ValueError("not now")
            seen.append(x)

    with hosts("h1", "h2", slets=(marked, Meets), state=tmp_path) as there, ExitStack() as stack:
        app = Application(APP)
        app.durable(every=3600)
        items = app.add("marked", marked, out=app.channel("items"))
        app.add("sink", Meets, right=items, left=app.add("others", count_to, to=3))
        there.home.apply(app.build())
        suspended(there.home, APP, "sink")
        eventually(lambda: there.component("h1", "marked").has_ended, "all waits")
        there.home._applications.store.checkpoints.write = Mock(side_effect=StateError("no room"))  # type: ignore
        there.move("h2", "items")
        there.home.close()
        bad.clear()
        there.back("h1", stack)
        eventually(lambda: there.home._hosts.homes[APP].finished, "the end")
        assert seen == [one for number in range(1, 5) for one in (number, Punctuation(number))]


def meeting(bad: list[bool]) -> Any:
    """A slet that passes on one of two streams, and fails at an item as long as something is bad."""

    class Meets(Slet):
        @input_port
        def left(self, x: int) -> None:
            """Drop."""

        @input_port
        def right(self, x: int) -> int:
            """Pass on."""
            if x == STOP and bad:
                raise ValueError("not now")
            return x

    return Meets


def source_of(most: list[int]) -> Any:
    """A source that emits 1, 2, 3, … up to the last number in a list."""
    pause = threading.Event()

    @slet
    def numbers(position: Position) -> Iterator[int]:
        while True:
            while position.number < most[-1]:
                position.number += 1
                yield position.number
            pause.wait(0.001)
            yield None  # type: ignore[misc]

    return numbers


@contextmanager
def met(bad: list[bool], most: list[int], state: Path | None = None) -> Iterator[Hosts]:
    """Two streams that meet at a slet on which items wait, in the queue that was inserted where two drivers meet."""
    source, meets = source_of(most), meeting(bad)
    with hosts("h1", "h2", "h3", slets=(source, meets), state=state) as there:
        app = Application(APP)
        if state is not None:
            app.durable(every=3600)
        right = app.channel("right", connector={"capacity": 100})
        app.add("moves", plain, x=app.add("numbers", source), out=right)
        app.add("sink", there.sink, x=app.add("meets", meets, left=app.add("others", endless), right=right))
        there.home.apply(app.build())
        deployment = there.home.deployment(APP)
        suspended(there.home, APP, "meets")
        most.append(STOP + 1000)
        eventually(lambda: deployment.inserted["right -> meets.right"].depth == 1000, "items wait")
        there.move("h2", "moves")
        yield there


def test_two_streams_meet_while_one_of_them_moves_on():
    """What comes from another host goes behind what waits."""
    bad, most = [True], [STOP]
    with met(bad, most) as there:
        most.append(STOP + 1500)
        inbox = there.home.deployment(APP).channels["right.from.h2"]
        eventually(lambda: inbox.depth > 50, "there is no more room")
        there.move("h3", "moves")
        suspended(there.home, APP, "meets")
        bad.clear()
        there.home.resume(APP, "meets")
        eventually(lambda: len(there.seen) == STOP + 1500, "all items")
        whole([*there.seen], STOP + 1500)


def test_a_restart_from_the_checkpoint_of_a_cut_has_the_items_of_a_queue_that_went_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """They wait at the port behind the item on which the slet is suspended."""
    monkeypatch.setattr(Durability, "changed", lambda self, deployment: None)  # the next one has not been taken yet
    with met([True], [STOP], tmp_path / "state") as there:
        shutil.copytree(tmp_path / "state" / "h1", tmp_path / "copy")
        there.home.close()
        shutil.rmtree(tmp_path / "state" / "h1")
        shutil.copytree(tmp_path / "copy", tmp_path / "state" / "h1")
        with there.platform("h1") as again:
            for host in ("h2", "h3"):
                again.remoting.connect(f"inproc:{host}")
            eventually(lambda: again.applications() or again.failed_to_restart, "it has started, or not")
            assert again.failed_to_restart == {}
            suspended(again, APP, "meets")
            waits = again.deployment(APP).inlets.at("meets.right")
            assert [one.payload for one in waits if not isinstance(one.payload, list)] == [*range(STOP, STOP + 1001)]


def moved_while_events_arrive(monkeypatch: pytest.MonkeyPatch, arrived: Callable[[Inbox, Outbox, int], bool]) -> None:
    """A slet moves, and events arrive at its former host between the cuts of both hosts."""
    look, tap = Handing._look, Tap()
    with hosts("h1", "h2", slets=(tap.source(),)) as there:

        def looking(self: Handing) -> None:
            look(self)
            if self.host == "h2":
                halves = [one.deployment(APP).channels for one in there.platforms.values()]
                inbox, outbox = halves[1]["as.from.h1"], halves[0]["as.to.h2"]
                known = inbox._next
                tap.let(5)
                eventually(lambda: arrived(inbox, outbox, known + 5), "further events")

        monkeypatch.setattr(Handing, "_look", looking)
        app = Application(APP)
        app.add("a", tap.source(), out=(out := app.channel("as", connector={"ack": "received"})))
        app.on("h2").add("sink", there.sink, x=out)
        try:
            there.home.apply(app.build())
            tap.let(STOP)
            eventually(lambda: len(there.seen) == STOP, "all items")
            there.apply(lambda mesh: mesh.move("sink", to="h1"), timeout=PATIENCE)
            tap.let(STOP)
            eventually(lambda: len(there.seen) == 2 * STOP + 5, "all items")
            whole([*there.seen], 2 * STOP + 5)
        finally:  # otherwise its platform waits for it, where the move is refused
            tap.shut()


def test_what_arrives_while_events_are_handed_over_is_not_acknowledged(monkeypatch: pytest.MonkeyPatch):
    """The sending host keeps what the receiving one has not handed over, also if that has received it."""
    moved_while_events_arrive(monkeypatch, lambda inbox, outbox, number: inbox._next >= number)


def test_an_acknowledgement_meanwhile_is_found(monkeypatch: pytest.MonkeyPatch):
    """As acknowledgements were made as events arrived, the move was refused."""
    monkeypatch.setattr(Inbox, "_acknowledged", property(lambda self: self._next))
    with pytest.raises(PlanError, match="are lost"):
        moved_while_events_arrive(monkeypatch, lambda inbox, outbox, number: outbox._done >= number)


def test_acknowledgements_go_on_after_an_aborted_move_that_has_read_some_events(monkeypatch: pytest.MonkeyPatch):
    """Also if the events of the next connector could not be read."""
    half = Handing._half

    def failing(self: Handing, name: str) -> list[Any]:
        found = half(self, name)
        if ".from." in name:
            raise PlanError("the next one has no events")
        return found

    monkeypatch.setattr(Handing, "_half", failing)
    with hosts("h1", "h2") as there:
        app = Application(APP)
        app.add("a", endless, out=(out := app.channel("as", connector={"ack": "received"})))
        app.on("h2").add("sink", there.sink, x=out)
        there.home.apply(app.build())
        grows(there.seen)
        with pytest.raises(PlanError, match="the next one has no events"):
            there.move("h1", "sink")
        outbox: Any = there.home.deployment(APP).channels["as.to.h2"]
        known = outbox._done
        eventually(lambda: outbox._done > known + 100, "acknowledgements")
        whole([*there.seen])


def test_a_stream_that_comes_back_to_its_host_goes_behind_what_has_come_of_it_over_others():
    """Of a suspended slet: the later items wait in front of the slet before it, in the same driver."""
    bad, seen = [True], list[int]()

    class Ends(Slet):
        @input_port
        def left(self, x: int) -> None:
            """Write down."""
            seen.append(x)

        @input_port
        def right(self, x: int) -> None:
            """Drop."""
            if x == 1 and bad:
                raise ValueError("not now")

    @slet
    def passes(x: int) -> int:
        if x == 2 and bad:
            raise ValueError("not now")
        return x

    with hosts("h1", "h2", "h3", slets=(Ends, passes)) as there:
        app = Application(APP)
        items = app.add("numbers", count_to, to=30, out=app.channel("items", host="h1"))
        way = app.on("h2").add("passes", passes, x=items, out=app.channel("way", "log", host="h1"))
        app.add("ends", Ends, left=way, right=items)
        there.home.apply(app.build())
        suspended(there.home, APP, "ends")
        suspended(there.platforms["h2"], APP, "passes")
        eventually(lambda: there.component("h1", "numbers").has_ended, "all waits")
        there.move("h2", "ends")
        there.move("h3", "way")
        there.move("h2", "way")
        bad.clear()
        for name in ("passes", "ends"):
            with suppress(LifecycleError):  # it may have gone on by itself after the move
                there.home.resume(APP, name)
        eventually(lambda: there.home._hosts.homes[APP].finished, "the end")
        whole(seen, 30)
