"""A control item at which a slet or a channel fails is never dropped: it leaves in its place, or waits there."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest

from exop import Application, Batch, DeadLetter, EndOfStream, OutputPort, Platform, Punctuation, Slet, input_port, slet
from exop.model.meshes.mesh import ChannelSpec, Mesh, Node
from exop.model.slets.slet import spec_of
from exop.model.slets.spec import POLICIES
from exop.runtime.channels.log import LogChannel
from exop.runtime.drivers.base import current_driver
from exop.runtime.supervision import failure_policy as failure
from tests.change.tools import changed, finish, suspended
from tests.rig import PATIENCE, Gate, collector, eventually, line, marked, same, seeing, threads_leave

ITEMS = [1, Punctuation(1), 2, Punctuation(2), 3, Punctuation(3)]


class Fault:
    """Raises at the second punctuation and at the end, the first times."""

    def __init__(self, times: int = 1) -> None:
        self.left = {Punctuation(2): times, EndOfStream(): times}

    def meet(self, item: Any) -> None:
        """Raise if it is time."""
        if not isinstance(item, list) and self.left.get(item, 0):
            self.left[item] -= 1
            raise ValueError(f"not {item}")


def function(fault: Fault) -> Any:
    """A slet that returns one result."""

    @slet
    def timed(item: int | Punctuation | EndOfStream) -> int | Punctuation | None:
        fault.meet(item)
        return None if isinstance(item, EndOfStream) else item

    return timed


def generator(fault: Fault) -> Any:
    """A slet that has yielded something before it raises."""

    @slet
    def timed(item: int | Punctuation | EndOfStream) -> Iterator[int | Punctuation]:
        if isinstance(item, EndOfStream):
            yield 100
        fault.meet(item)
        if not isinstance(item, EndOfStream):
            yield item

    return timed


def of_batches(fault: Fault) -> Any:
    """A slet that takes and returns batches."""

    @slet
    def timed(item: Batch[int] | Punctuation | EndOfStream) -> Iterator[Batch[int] | Punctuation]:
        fault.meet(item)
        if not isinstance(item, EndOfStream):
            yield item

    return timed


def taking(fault: Fault, taken: list[Any]) -> Any:
    """A slet that writes down what it takes for good."""

    @slet
    def timed(item: int | Punctuation | EndOfStream) -> int | Punctuation | None:
        fault.meet(item)
        taken.append(item)
        return None if isinstance(item, EndOfStream) else item

    return timed


def driven(fault: Fault) -> Any:
    """A slet that sends by itself: nothing can pass a control item on in its place."""

    class Timed(Slet, own_driver=True):
        out: OutputPort[int | Punctuation]

        @input_port
        def item(self, item: int | Punctuation | EndOfStream) -> None:
            """Send it on."""
            fault.meet(item)
            if isinstance(item, EndOfStream):
                self.out.end()
            else:
                self.out.push(item)

    return Timed


@pytest.fixture
def platform(monkeypatch):
    """A platform that tries again at once; all its threads leave."""
    monkeypatch.setattr(failure, "BACK_OFF", 0.0005)
    with threads_leave(), Platform(control=False) as made:
        yield made


def deployed(platform: Platform, made: Any, policy: str, seen: list[Any], **more: Any) -> Any:
    """Items and punctuations go through `b`, and all that leaves there is written down."""
    app = Application("app")
    out = app.add("b", made, item=app.add("a", marked(*ITEMS)), on_error=policy, **more)
    app.add("c", seeing(seen), item=out)
    platform.apply(app.build())
    return platform.deployment("app").components["b"]


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("shape", [function, generator, of_batches, driven])
def test_every_control_item_leaves_in_its_place(platform, shape, policy):
    """Whatever the policy is: the failure is counted, and downstream time goes on and ends."""
    seen: list[Any] = []
    component = deployed(platform, shape(Fault()), policy, seen)
    for _ in range(2 if policy == "suspend" or (shape is driven and policy != "retry") else 0):
        suspended(platform, "app", "b")
        platform.resume("app", "b")
    assert platform.wait("app", PATIENCE)
    last = [100] if shape is generator and policy in ("suspend", "retry") else []
    assert seen == [*ITEMS, *last, EndOfStream()]
    assert (component.metrics.errors, component.metrics.skipped) == (2, 0)
    letters = platform.dead_letters("app", "b")
    set_aside = policy == "dead-letter" and shape is not driven
    assert [letter.item for letter in letters] == ([Punctuation(2), EndOfStream()] if set_aside else [])


def test_with_several_inputs_the_earliest_counts(platform):
    """As for a slet that sees no punctuations: what the other input may still bring is not late."""

    class Both(Slet):
        """Raises at every punctuation."""

        @input_port
        def left(self, item: int | Punctuation) -> int | Punctuation | None:
            """One input."""
            return self.right(item)

        @input_port
        def right(self, item: int | Punctuation) -> int | Punctuation | None:
            """The other one."""
            if isinstance(item, Punctuation):
                raise ValueError(item)
            return item

    app, seen = Application("app"), list[Any]()
    left, right = (app.add(name, marked(*items)) for name, items in (("l", ITEMS), ("r", ITEMS[:2])))
    app.add("c", seeing(seen), item=app.add("b", Both, left=left, right=right, on_error="skip"))
    platform.apply(app.build())
    assert platform.wait("app", PATIENCE)
    times = [one.time for one in seen if isinstance(one, Punctuation)]
    assert times in ([1], [1, 2], [1, 3], [1, 2, 3])
    assert seen[-1] == EndOfStream()


def test_letters_into_a_channel_precede_the_punctuation(platform):
    """The channel is full: the driver unwinds in between, and nothing is lost or doubled."""
    seen, letters = list[Any](), list[DeadLetter]()
    app = Application("app")
    aside = app.channel("aside", "queue", capacity=1)
    out = app.add("b", generator(Fault(5)), item=app.add("a", marked(*ITEMS)), dead_letters=aside)
    app.add("c", seeing(seen), item=out)
    app.add("d", collector(letters), item=aside)
    platform.apply(app.build())
    assert platform.wait("app", PATIENCE)
    assert seen == [*ITEMS, EndOfStream()]
    assert [letter.item for letter in letters] == [Punctuation(2), EndOfStream()]


def test_a_retry_shows_no_control_item_again(platform):
    """It has passed; shown again, it would end a window that has begun since."""
    gate, seen, shown = Gate(), list[Any](), list[Any]()

    @slet
    def given() -> Iterator[int | Punctuation]:
        yield from ITEMS[:4]
        gate.pass_through()
        yield from ITEMS[4:]

    @slet(on_error="dead-letter")
    def timed(item: int | Punctuation) -> int | Punctuation:
        shown.append(item)
        if item in (2, Punctuation(2)) and shown.count(item) == 1:
            raise ValueError(item)
        return item

    platform.apply(line(a=given, b=timed, c=seeing(seen)).build())
    gate.somebody_waits()
    assert [letter.item for letter in platform.dead_letters("app", "b")] == [2, Punctuation(2)]
    assert platform.retry_dead_letters("app", "b") == 1
    gate.open()
    finish(platform, "app")
    assert shown.count(Punctuation(2)) == 1
    assert [one for one in seen if isinstance(one, Punctuation)] == [Punctuation(time) for time in (1, 2, 3)]
    assert sorted(one for one in seen if isinstance(one, int)) == [1, 2, 3]
    assert platform.dead_letters("app", "b") == []


@pytest.mark.parametrize("policy", POLICIES)
def test_a_control_item_that_a_channel_refuses_waits(platform, monkeypatch, policy):
    """A log whose disk is full takes no punctuation either: only the channel can pass it on."""
    fault, seen, entry_of = Fault(), list[Any](), LogChannel.entry

    def refusing(self: LogChannel, outlets: Any) -> Any:
        entry = entry_of(self, outlets)
        control = entry.control

        def meet_first(mark: Any) -> None:
            fault.meet(mark)
            control(mark)

        entry.control = meet_first
        return entry

    monkeypatch.setattr(LogChannel, "entry", refusing)
    app = Application("app")
    log = app.channel("log", "log")
    app.add("b", same, item=app.add("a", marked(*ITEMS)), out=log, on_error=policy)
    app.add("c", seeing(seen), item=log)
    platform.apply(app.build())
    for _ in fault.left:
        suspended(platform, "app", "b")
        assert not platform.deployment("app").crashed()
        platform.resume("app", "b")
    assert platform.wait("app", PATIENCE)
    assert seen == [*ITEMS, EndOfStream()]


def _swapped(mesh: Mesh) -> Mesh:
    """The same slets, connected by another channel."""
    return mesh.rewire("b", item=ChannelSpec("other", "direct")).rewire("a", out="other")


#: What is done to a slet that is suspended on the end of its stream, or whose channel refuses this end.
AT_THE_END: dict[str, Callable[[Mesh], Mesh]] = {
    "nothing": lambda mesh: mesh,
    "suspend": lambda mesh: mesh.suspend("b"),
    "replace": lambda mesh: mesh.replace("b", function(Fault(0))),
    "configure": lambda mesh: mesh.configure("b", twist=1),
    "swap": _swapped,
    "watch": lambda mesh: mesh.add(Node("d", spec_of(collector([])), {}, {"item": mesh.node("b").ports["out"]})),
}


@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.parametrize("refuses", ["slet", "channel"])
@pytest.mark.parametrize("how", AT_THE_END)
def test_a_slet_ends_that_was_suspended_on_the_end(platform, monkeypatch, how, refuses, times):
    """Whatever is changed meanwhile: it ends, once, and so does all that is behind it."""
    fault, none, seen, entry_of = Fault(times), Fault(0), list[Any](), LogChannel.entry
    del fault.left[Punctuation(2)]

    def refusing(self: LogChannel, outlets: Any) -> Any:
        entry = entry_of(self, outlets)
        control = entry.control
        entry.control = lambda mark: fault.meet(mark) or control(mark)
        return entry

    @slet
    def timed(item: int | Punctuation | EndOfStream, *, twist: int = 0) -> int | Punctuation | None:
        (fault if refuses == "slet" else none).meet(item)
        return None if isinstance(item, EndOfStream) else item

    if refuses == "channel":
        monkeypatch.setattr(LogChannel, "entry", refusing)
    app = Application("app")
    log = app.channel("log", "log")
    app.add("b", timed, item=app.add("a", marked(*ITEMS)), out=log)
    app.add("c", seeing(seen), item=log)
    platform.apply(app.build())
    suspended(platform, "app", "b")
    platform.apply(AT_THE_END[how](platform.mesh("app")))
    deployment = platform.deployment("app")

    def over() -> bool:
        if deployment.components["b"].status in ("failed", "suspended"):
            platform.resume("app", "b")
        return deployment.finished.is_set()

    eventually(over, "the end")
    assert seen == [*ITEMS, EndOfStream()]
    assert {component.status for component in deployment.components.values()} == {"ended"}


def test_a_slet_that_is_suspended_before_it_tries_the_end_again_sees_the_end(platform, monkeypatch):
    """The driver comes to the suspended slet with the end, and waits there."""
    fault, seen, back_off = Fault(), list[Any](), failure._back_off
    del fault.left[Punctuation(2)]

    def until_closed(component: Any, port: Any, item: Any, seconds: float) -> None:
        driver = current_driver()
        assert driver is not None
        driver.wait_for(lambda: driver.closed, timeout=PATIENCE)
        back_off(component, port, item, 0.0)

    monkeypatch.setattr(failure, "_back_off", until_closed)
    component = deployed(platform, taking(fault, shown := []), "retry", seen)
    eventually(lambda: component.metrics.errors == 1, "the first try")
    changed(platform, "app", lambda mesh: mesh.suspend("b"))
    waiting = partial(platform.deployment("app").inlets.at, "b.item")
    eventually(lambda: any(one.wait and "is suspended" in one.wait.where for one in waiting()), "the driver")
    platform.resume("app", "b")
    finish(platform, "app")
    assert shown == [*ITEMS, EndOfStream()]
    assert seen == [*ITEMS, EndOfStream()]
