"""A slet is replaced while items flow: nothing is lost, doubled or reordered, and its state goes over."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import field
from typing import Any

import pytest

from exop import Application, InputPort, Memento, OutputPort, Slet, input_port, slet
from exop.errors import PlanError
from exop.model.meshes.mesh import ChannelSpec, Node
from exop.model.slets.slet import spec_of
from exop.runtime.drivers.base import Halted
from exop.runtime.lifecycle import State
from tests.change.tools import (
    Position,
    Tap,
    chain,
    changed,
    count_to,
    end,
    endless,
    finish,
    grows,
    in_thread,
    plain,
    plain_too,
    summing,
    summing_too,
    suspended,
    whole,
    writing,
)
from tests.rig import eventually


def test_a_stateful_slet_hands_its_memento_over(platform):
    """The successor goes on with the very state: it counts on."""
    seen: list[int] = []
    platform.apply(chain("app", endless, summing, writing(seen)).build())
    for other in (summing_too, summing) * 5:
        changed(platform, "app", lambda mesh, other=other: mesh.replace("b", other))
        grows(seen, 10)
    end(platform, "app")
    whole(seen)
    state = platform.deployment("app").components["b"].state
    assert (state.count, state.total) == (len(seen), sum(seen))


def test_a_slet_that_alters_a_setting_does_not_alter_the_mesh(platform):
    """An instance gets a copy of each collection: the mesh keeps what was set, and what was not set stays a default."""

    @slet
    def noting(x: int, *, times: int = 1, noted: list[int] = []) -> int:  # noqa: B006
        noted.append(x)
        return x * times

    class Noting(Slet):
        times: int = 1
        noted: list[int] = field(default_factory=list)

        @input_port
        def x(self, x: int) -> int:
            self.noted.append(x)
            return x * self.times

    for altering in (noting, Noting):
        seen: list[int] = []
        mesh = platform.apply(chain("app", endless, altering, writing(seen)).build())
        grows(seen, 10)
        platform.apply(mesh.configure("b", times=2))
        grows(seen, 10)
        node = platform.mesh("app").node("b")
        assert (node.settings["noted"], node.given) == ([], {"times"})
        platform.remove("app")


@pytest.mark.parametrize("successor", [summing, summing_too])
def test_a_state_that_is_to_be_lost_is_lost(platform, successor):
    """The successor begins with an empty state, also when it is the same slet; the plan says so."""
    seen: list[int] = []
    platform.apply(chain("app", endless, summing, writing(seen)).build())
    grows(seen, 10)
    plan = platform.plan(platform.mesh("app").replace("b", successor, lose_state=True))
    assert "the state (Sum) is lost, as requested, though it could be handed over: the state (Sum) by reference" in str(
        plan
    )
    lost = platform.deployment("app").components["b"].state
    plan.apply()
    grows(seen, 10)
    end(platform, "app")
    whole(seen)
    state = platform.deployment("app").components["b"].state
    assert (lost.count + state.count, lost.total + state.total) == (len(seen), sum(seen))
    assert lost.count >= 10


def test_a_source_with_an_upgraded_position(platform):
    """What the predecessor has yielded when its position is copied was yielded before it: nothing comes twice."""

    class Offset(Memento):
        read: int = 0

        @classmethod
        def upgrade(cls, old: Position) -> "Offset":
            return cls(read=old.number)

    @slet
    def by_offset(offset: Offset) -> Iterator[int]:
        while True:
            offset.read += 1
            yield offset.read

    seen: list[int] = []
    platform.apply(chain("app", endless, writing(seen)).build())
    grows(seen)
    changed(platform, "app", lambda mesh: mesh.replace("a", by_offset))
    grows(seen)
    end(platform, "app")
    whole(seen)


def test_a_source_with_several_outputs(platform):
    """What a source has pushed to a further port and not sent yet goes out behind the change, too."""

    class Halves(Slet):
        position: Position
        odd: OutputPort[int]

        def __iter__(self) -> Iterator[int | None]:
            while True:
                self.position.number += 1
                if self.position.number % 2:
                    self.odd.push(self.position.number)
                    yield None
                else:
                    yield self.position.number

    class HalvesToo(Halves):
        pass

    evens: list[int] = []
    odds: list[int] = []
    app = Application("app")
    even = app.add("a", Halves)
    app.add("evens", writing(evens), x=even)
    app.add("odds", writing(odds), x=app.output("a", "odd"))
    platform.apply(app.build())
    for other in (HalvesToo, Halves) * 5:
        changed(platform, "app", lambda mesh, other=other: mesh.replace("a", other))
        grows(evens, 10)
    end(platform, "app")
    whole(sorted(evens + odds))
    assert evens == sorted(evens)
    assert odds == sorted(odds)


def test_a_class_by_a_class_opened_before_and_closed_after(platform):
    """The successor is open before the predecessor is parked, which is closed when the successor runs."""
    events: list[str] = []

    class Opens(Slet):
        name: str = "first"

        def __enter__(self) -> "Opens":
            events.append(f"open {self.name}")
            return self

        def __exit__(self, *exc: object) -> None:
            events.append(f"close {self.name}")

        @input_port
        def x(self, x: int) -> int:
            return x

    class OpensToo(Opens):
        pass

    seen: list[int] = []
    platform.apply(chain("app", endless, Opens, writing(seen)).build())
    grows(seen)
    changed(platform, "app", lambda mesh: mesh.replace("b", OpensToo, name="second"))
    assert events == ["open first", "open second", "close first"]
    grows(seen)
    end(platform, "app")
    whole(seen)


def test_two_neighbours_in_one_plan(platform):
    """Both change between the same two items."""
    pairs: list[tuple[str, str]] = []

    def marked(mark: str) -> Any:
        @slet
        def first(x: int) -> str:
            return mark

        return first

    def paired(mark: str) -> Any:
        @slet
        def second(x: str) -> None:
            pairs.append((x, mark))

        return second

    platform.apply(chain("app", endless, marked("old"), paired("old")).build())
    eventually(lambda: len(pairs) > 10)
    changed(platform, "app", lambda mesh: mesh.replace("b", marked("new")).replace("c", paired("new")))
    eventually(lambda: ("new", "new") in pairs)
    end(platform, "app")
    assert set(pairs) == {("old", "old"), ("new", "new")}


@pytest.mark.parametrize("batched", [False, True], ids=["items", "several at once"])
def test_a_slet_that_pulls(platform, batched):
    """What a pulling slet has taken and not dealt with is dealt with by its successor; its queue stays."""

    def doubled(pulled: InputPort[int], position: Position) -> Iterator[int]:
        for x in pulled:
            position.number += 1
            yield x

    def in_lists(pulled: InputPort[int], position: Position) -> Iterator[int]:
        while items := pulled.pull(1):
            position.number += len(items)
            yield items[0]

    original = in_lists if batched else doubled
    first, second = slet(name="first")(original), slet(name="second")(_twin(original))
    seen: list[int] = []
    app = Application("app")
    numbers = app.add("a", endless)
    passed = app.add("b", first, pulled=numbers)
    app.add("c", writing(seen), x=passed)
    platform.apply(app.build())
    for other in (second, first) * 5:
        changed(platform, "app", lambda mesh, other=other: mesh.replace("b", other))
        grows(seen, 10)
    end(platform, "app")
    whole(seen)
    assert platform.deployment("app").components["b"].state.number == len(seen)


def _twin(function: Any) -> Any:
    import types

    made = types.FunctionType(function.__code__, function.__globals__, function.__name__, None, function.__closure__)
    made.__annotations__, made.__kwdefaults__ = dict(function.__annotations__), function.__kwdefaults__
    return made


@pytest.mark.parametrize(("kind", "settings"), [("latch", {}), ("table", {"key": "real"}), ("window", {"count": 1})])
def test_a_slet_that_is_fed_is_not_replaced_by_one_that_reads(platform, kind, settings):
    """It would miss items, or get them twice; the other way round, too. The slet may be added under another name."""

    @slet
    def fed(x: Any) -> Any:
        return x

    @slet
    def fed_too(x: Any) -> Any:
        return x

    @slet
    def reads(x: InputPort[Any]) -> Iterator[Any]:
        yield from x.pull()

    @slet
    def reads_too(x: InputPort[Any]) -> Iterator[Any]:
        yield from x.pull()

    tap = Tap()
    app = Application("line")
    stored = app.channel("stored", kind, **settings)
    app.add("source", tap.source(), out=stored)
    app.add("b", fed, x=stored)
    mesh = platform.apply(app.build())
    ways = ["fed receives each item, and reads reads", "reads reads the content at times of its own, and fed receives"]
    cures = ["an input to which items are pushed", "an input that pulls it"]
    for name, new, twin, way, cure in zip("bc", (reads, fed), (fed_too, reads_too), ways, cures, strict=True):
        with pytest.raises(
            PlanError, match=rf"{name} .*'stored'.*: {way}.*; take a slet with {cure}, or remove {name} and"
        ):
            platform.plan(mesh.replace(name, new))
        mesh = platform.apply(mesh.replace(name, twin))
        other = Node(chr(ord(name) + 1), spec_of(new), {}, mesh.nodes[name].ports)
        mesh = platform.apply(mesh.add(other).remove(name))
    tap.shut()
    finish(platform, "line")


def test_a_pulling_sink_that_never_yields(platform):
    """A slet whose loop never ends is made to leave it at its next pull."""
    seen: list[int] = []

    def taker() -> Any:
        @slet
        def take(pulled: InputPort[int]) -> None:
            seen.extend(pulled)

        return take

    app = Application("app")
    numbers = app.add("a", endless)
    app.add("b", taker(), pulled=numbers)
    platform.apply(app.build())
    for _ in range(6):
        changed(platform, "app", lambda mesh: mesh.replace("b", taker()))
        grows(seen, 10)
    end(platform, "app")
    whole(seen)


def test_an_idle_stream_is_changed_at_once(platform):
    """A source that waits for its next item keeps nobody from changing what is behind it."""
    tap, seen = Tap(), list[int]()
    platform.apply(chain("app", tap.source(), plain, writing(seen)).build())
    tap.let(3)
    eventually(lambda: len(seen) == 3)
    changed(platform, "app", lambda mesh: mesh.replace("b", plain_too))
    tap.let(3)
    tap.shut()
    finish(platform, "app")
    whole(seen, 6)


def test_an_ended_slet_stays_ended(platform):
    """The stream is over where it is over: a successor does not wait for an end that has passed."""
    tap, first, second = Tap(), list[int](), list[int]()
    app = Application("app")
    numbers = app.add("a", tap.source())
    short = app.add("short", endless)
    app.add("b", writing(first), x=numbers)
    app.add("c", writing(second), x=short)
    platform.apply(app.build())
    tap.let(2)
    tap.shut()
    eventually(lambda: platform.deployment("app").components["b"].status == "ended")
    another: list[int] = []
    changed(platform, "app", lambda mesh: mesh.replace("b", writing(another)))
    assert platform.deployment("app").components["b"].status == "ended"
    end(platform, "app")
    assert (first, another) == ([1, 2], [])


def test_an_ending_source_is_replaced_by_one_that_ends(platform):
    """Who was asked to end has a successor that ends as well, behind what was yielded."""
    tap, seen = Tap(), list[int]()
    platform.apply(chain("app", tap.source(), plain, writing(seen)).build())
    eventually(tap.waiting.is_set)
    platform.end("app")
    with in_thread(lambda: changed(platform, "app", lambda mesh: mesh.replace("a", endless))):
        eventually(lambda: platform.deployment("app").components["a"].driver.closed)
        tap.let(1)
    finish(platform, "app")
    assert seen == [1]


def test_a_source_whose_only_reader_is_replaced_by_another_node(platform):
    """The item that it has yielded and not sent goes to the new reader: nothing was on its way to the old one."""
    tap, old, new = Tap(), [], []
    app = Application("app")
    app.add("p", writing(old), x=app.add("s", tap.source()))
    platform.apply(app.build())
    tap.let(5)
    eventually(lambda: len(old) == 5, "the first items")
    with driver_holds(platform.deployment("app").components["s"].driver, tap):
        reader = Node("r", spec_of(writing(new)), {}, {"x": "s"})
        changed(platform, "app", lambda mesh: mesh.replace("s", tap.source()).remove("p").add(reader))
    tap.shut()
    finish(platform, "app")
    whole([*old, *new], 6)


def test_an_ended_source_is_connected_to_a_channel_of_another_one(platform):
    """Its end counts there, too: the stream ends with the other source."""
    seen: list[int] = []
    over, tap = Tap(), Tap()
    app = Application("app")
    app.add("s", over.source())
    app.add("q", writing(seen), x=app.add("t", tap.source()))
    platform.apply(app.build())
    over.shut()
    eventually(lambda: platform.deployment("app").components["s"].status == "ended", "the end of one stream")
    changed(platform, "app", lambda mesh: mesh.rewire("s", out="t"))
    tap.let(3)
    tap.shut()
    finish(platform, "app")
    whole(seen, 3)


def test_an_engine_behind_which_a_slet_is_suspended(platform):
    """It cannot put out what it has: the change is refused at once, and not when its time is up."""
    seen: list[int] = []
    broken = [True]

    class Pushing(Slet, own_driver=True):
        out: OutputPort[int]

        def __enter__(self) -> "Pushing":
            self.pushed = threading.Event()
            self.thread = threading.Thread(target=self.push)
            self.thread.start()
            return self

        def __exit__(self, *exc: object) -> None:
            self.thread.join()

        def push(self) -> None:
            with suppress(Halted):  # the successor that is given up
                for number in (1, 2):
                    self.out.push(number)
                self.out.end()
            self.pushed.set()

        def quiesce(self) -> None:
            self.pushed.wait()

    class Other(Pushing, own_driver=True):
        """Another one."""

    @slet
    def picky(x: int) -> None:
        if broken:
            raise ValueError("not yet")
        seen.append(x)

    app = Application("app")
    app.add("p", picky, x=app.add("e", Pushing))
    platform.apply(app.build())
    suspended(platform, "app", "p")
    with pytest.raises(PlanError, match="has not quiesced: p is suspended on an item"):
        platform.apply(platform.mesh("app").replace("e", Other), timeout=10_000)
    broken.clear()
    platform.resume("app", "p")
    finish(platform, "app")
    whole(seen, 2)


def test_a_sink_that_has_ended_is_connected_elsewhere_twice(platform):
    """It takes no end from the queue between: nobody waits for that queue to be emptied."""
    tap, seen, other = Tap(), [], []

    @slet
    def pulling(x: InputPort[int]) -> None:
        seen.extend(x)

    app = Application("app")
    app.add("p", pulling, x=app.add("s", count_to, to=3, out=app.channel("c", kind="queue")))
    app.add("q", writing(other), x=app.add("t", tap.source()))
    platform.apply(app.build())
    eventually(lambda: platform.deployment("app").components["p"].status is State.ENDED)
    for name in "de":
        channel = ChannelSpec(name, "queue")
        mesh = platform.mesh("app").rewire("s", out=channel).rewire("p", x=name)
        platform.apply(mesh, timeout=10_000)
    tap.shut()
    finish(platform, "app")
    whole(seen, 3)


@contextmanager
def driver_holds(driver: Any, tap: Tap) -> Iterator[None]:
    """While the block runs, a source has yielded one item that its parked driver has not sent."""
    driver.close()
    tap.let(1)
    eventually(lambda: driver.yielded is not None, "an item that was yielded and not pushed")
    try:
        yield
    finally:
        driver.open()


@pytest.mark.parametrize("kind", ["direct", "queue"])
@pytest.mark.parametrize("removed", [False, True], ids=["replaced", "taken out"])
def test_what_a_slet_has_pulled_and_not_dealt_with_goes_on_when_its_successor_does_not_pull(platform, kind, removed):
    """It had pulled many items at once: its successor deals with them first, or it does itself before it is removed."""

    @slet
    def pulling(x: InputPort[int]) -> Iterator[int]:
        yield from x

    seen: list[int] = []
    app = Application("app")
    numbers = app.channel("numbers", kind=kind)
    app.add("a", endless, out=numbers)
    app.add("c", writing(seen), x=app.add("b", pulling, x=numbers))
    platform.apply(app.build())
    grows(seen, 600)
    if removed:
        changed(platform, "app", lambda mesh: mesh.rewire("c", x="numbers").remove("b"))
    else:
        changed(platform, "app", lambda mesh: mesh.replace("b", plain))
    platform.end("app")
    finish(platform, "app")
    whole(seen)


def test_a_slet_before_which_an_item_waits_is_not_replaced_by_one_that_pulls(platform):
    """The item waits where a call would take it: the refusal says so, and what to do."""

    @slet
    def pulling(x: InputPort[int]) -> Iterator[int]:
        yield from x

    seen: list[int] = []
    platform.apply(chain("app", endless, plain, writing(seen)).build())
    names = [*platform.mesh("app").nodes]
    changed(platform, "app", lambda mesh: mesh.suspend(names[1]))
    eventually(lambda: platform.deployment("app").inlets.at(f"{names[1]}.x"), "an item that waits")
    with pytest.raises(PlanError, match="successor of .* pulls its items from a queue; repair or resume"):
        changed(platform, "app", lambda mesh: mesh.resume(names[1]).replace(names[1], pulling))
    changed(platform, "app", lambda mesh: mesh.resume(names[1]))
    eventually(lambda: not platform.deployment("app").inlets.at(f"{names[1]}.x"), "the item has gone on")
    changed(platform, "app", lambda mesh: mesh.replace(names[1], pulling))
    platform.end("app")
    finish(platform, "app")
    whole(seen)


def test_what_waits_for_a_slet_goes_along_when_its_successor_pulls_from_another_channel(platform):
    """The port that pulls is new there, and does not know the queue in which the items of the other channel wait."""

    @slet
    def pulling(x: InputPort[int]) -> Iterator[int]:
        yield from x

    seen: list[int] = []
    app = Application("app")
    for name in ("s", "t"):  # two, so that a queue is inserted
        app.add(name, count_to, to=50, out=app.channel("first", "direct") if name == "s" else "first")
    app.add("c", writing(seen), x=app.add("b", plain, x="first"))
    after = app.build()
    platform.apply(after.suspend("s").suspend("t"))
    runner = platform.deployment("app").components["b"].runner
    runner.close()
    changed(platform, "app", lambda mesh: mesh.resume("s").resume("t"))
    eventually(lambda: all(platform.deployment("app").components[one].status == "ended" for one in "st"), "all waits")

    def edited(mesh):
        mesh = mesh.edited({}, {"second": ChannelSpec("second", "direct")})
        return mesh.rewire("s", out="second").rewire("t", out="second").replace("b", pulling).rewire("b", x="second")

    changed(platform, "app", edited)
    finish(platform, "app")
    assert sorted(seen) == sorted([*range(1, 51)] * 2)


@pytest.mark.parametrize("change", ["pulls", "pushed to", "pushed to at once"])
def test_what_waits_for_a_slet_that_pulls_goes_before_the_stream_to_which_it_is_connected(platform, change):
    """Of the former stream the items are left, and not its end; also if the slet pulls no more."""

    @slet
    def pulling(x: InputPort[int]) -> Iterator[int]:
        yield from x

    tap, seen = Tap(), list[int]()
    app = Application("app")
    app.add("t", tap.source())
    app.add("c", writing(seen), x=app.add("b", pulling, x=app.add("s", count_to, to=3)))
    platform.apply(app.build().suspend("b"))
    eventually(lambda: platform.deployment("app").components["s"].status is State.ENDED, "all waits")
    if change != "pushed to at once":
        changed(platform, "app", lambda mesh: mesh.rewire("b", x="t"))
    successor = pulling if change == "pulls" else plain
    changed(platform, "app", lambda mesh: mesh.rewire("b", x="t").replace("b", successor).resume("b"))
    tap.let(2)
    tap.shut()
    finish(platform, "app")
    assert seen == [1, 2, 3, 1, 2]
