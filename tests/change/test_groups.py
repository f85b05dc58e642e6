"""Groups: slets that share the partitions of a channel give, for each key, what one instance gives."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Annotated, Any

import pyarrow as pa
import pytest

from exop import Application, Batch, InputPort, Memento, Punctuation, slet
from exop.errors import MeshError, PlanError, WiringError
from exop.model.mesh import Node
from exop.model.partitions import partition_of, ranges
from tests.change.tools import Books, Tap, grows, suspended
from tests.rig import collector, eventually, same, source_of


@dataclass
class Car:
    """An item with a key."""

    xway: Any
    number: int


class Count(Memento):
    """A state that belongs to no key."""

    count: int = 0


@slet
def counted(x: Any, count: Count) -> Any:
    """Count, and pass on."""
    count.count += 1
    return x


@slet
def passed(x: Any) -> Any:
    """Pass on."""
    return x


def cars(keys: int = 5, to: int = 40) -> list[Car]:
    """Items of several keys in turn."""
    return [Car(number % keys, number) for number in range(to)]


def grouped(source: Any, work: Any, seen: list[Any], members: str = "abc", **channel: Any) -> Application:
    """A source, a group of slets at a partitioned channel, and a sink for all that they give."""
    app = Application("app")
    shared = app.channel("cars", **{"by": "xway", "partitions": 16, **channel})
    app.add("source", source, out=shared)
    given = app.channel("given")
    for name in members:
        app.add(name, work, x=shared, out=given, group="g")
    app.add("sink", collector(seen), item=given)
    return app


def by_key(items: list[Any], key: Any = lambda item: item.xway) -> dict[Any, list[Any]]:
    """The items of each key, in order."""
    found: dict[Any, list[Any]] = {}
    for item in items:
        found.setdefault(key(item), []).append(item)
    return found


@pytest.mark.parametrize("kind", ["direct", "queue"])
def test_each_item_goes_to_the_owner_of_its_partition(platform, kind):
    """Every member has the items of its range alone, in order; the counts are exact; others see everything."""
    seen: list[Any] = []
    every: list[Any] = []
    had: dict[str, list[Any]] = {name: [] for name in "abc"}
    app = Application("app")
    shared = app.channel("cars", kind, by="xway", partitions=16)
    app.add("source", source_of(cars()), out=shared)
    for name in "cab":
        app.add(f"had-{name}", collector(had[name]), item=app.add(name, passed, x=shared, group="g"))
    app.add("watch", collector(every), item=shared)
    app.add("x", collector(seen), item=shared, group="alone")
    platform.apply(app.build())
    platform.wait("app")
    for name, owned in ranges("abc", 16).items():
        assert had[name] == [car for car in cars() if partition_of(car.xway, 16) in owned]
    assert every == seen == cars()
    assert Books().check(platform.deployment("app")) == []


@pytest.mark.parametrize("kind", ["direct", "queue"])
@pytest.mark.parametrize("form", ["items", "lists", "columns"])
def test_batches_are_split_and_stay_in_order_for_each_key(platform, kind, form):
    """As a list or as columns; a member that takes single items gets them, too."""
    rows = [{"xway": number % 7, "number": number} for number in range(100)]

    @slet
    def lists() -> Iterator[Batch[dict[str, int]]]:
        yield from (Batch(rows[at : at + 10]) for at in range(0, 100, 10))

    @slet
    def columns() -> Iterator[Annotated[pa.RecordBatch, None]]:
        yield from (pa.RecordBatch.from_pylist(rows[at : at + 10]) for at in range(0, 100, 10))

    seen: list[Any] = []
    source = {"items": source_of(rows), "lists": lists, "columns": columns}[form]
    platform.apply(grouped(source, passed, seen, kind=kind).build())
    platform.wait("app")
    assert by_key(seen, lambda row: row["xway"]) == by_key(rows, lambda row: row["xway"])
    assert Books().check(platform.deployment("app")) == []


def test_punctuations_pass_a_group_once(platform):
    """They go to all members, and leave where these meet, behind all that came before them."""
    seen: list[Any] = []

    @slet
    def timed() -> Iterator[Car | Punctuation]:
        for car in cars(to=20):
            yield car
            if car.number % 10 == 9:
                yield Punctuation(car.number)

    @slet
    def sink(item: Any | Punctuation) -> None:
        seen.append(item)

    app = grouped(timed, passed, [])
    app.add("times", sink, item="given")
    app.run(platform)
    assert [seen.index(Punctuation(9)), seen.index(Punctuation(19))] == [10, 21]
    assert len(seen) == 22


def test_an_item_without_a_partition_is_the_failure_of_its_producer(platform):
    """Its policy applies: here the producer is suspended on the item, with the reason."""
    seen: list[Any] = []
    app = grouped(source_of([Car(1, 0), Car([2], 1), Car(3, 2)]), passed, seen)
    platform.apply(app.build())
    suspended(platform, "app", "source")
    told = platform.status("app")["nodes"]["source"]["error"]
    assert "[2] is a list, and belongs to no partition" in told
    assert [car.number for car in seen] == [0]


def test_members_without_a_state_join_and_leave_while_items_flow(platform):
    """Each item is worked on once, in the order of its key, whichever member has it."""
    tap, seen = Tap(), list[Any]()

    @slet
    def keyed(x: int) -> Car:
        return Car(x % 5, x)

    app = Application("app")
    numbers = app.add("numbers", tap.source())
    app.add("source", keyed, x=numbers, out=app.channel("cars", by="xway"))
    app.add("a", passed, x="cars", out=app.channel("given"), group="g")
    app.add("sink", collector(seen), item="given")
    platform.apply(app.build())
    books = Books()
    try:
        for number, name in enumerate("cbd"):
            tap.let(50)
            grows(seen, 10)
            mesh = platform.mesh("app")
            member = mesh.nodes["a"]
            fresh = Node(name, member.slet, member.settings, member.ports, group="g")
            platform.apply(mesh.add(fresh))
            tap.let(50)
            eventually(lambda done=100 * number + 100: len(seen) == done)
            assert books.check(platform.deployment("app")) == []
        platform.apply(platform.mesh("app").remove("c").remove("b"))
        tap.let(100)
        eventually(lambda: len(seen) == 400)
    finally:
        tap.shut()
    assert by_key(seen) == by_key([Car(number % 5, number) for number in range(1, 401)])


def test_a_state_that_belongs_to_no_key_does_not_move(platform):
    """Refused when the plan is made, with the partitions, the member, and the cure."""
    platform.apply(grouped(source_of(cars()), counted, []).build())
    mesh = platform.mesh("app")
    with pytest.raises(
        PlanError, match="the partitions of the group 'g' would move between a, b, c and a, b, and a keeps"
    ):
        platform.plan(mesh.remove("c"))


def test_partitions_do_not_move_past_an_item_that_waits(platform):
    """A member that is suspended has an item in front of it: the change is refused, and says what to do."""
    tap, seen = Tap(), list[Any]()
    app = Application("app")
    app.add("source", tap.source(), out=app.channel("cars", by="real", partitions=16))
    app.add("a", passed, x="cars", out=app.channel("given"), group="g")
    app.add("b", passed, x="cars", out="given", group="g")
    app.add("sink", collector(seen), item="given")
    platform.apply(app.build())
    try:
        platform.apply(platform.mesh("app").suspend("a").suspend("b"))
        tap.let(10)
        eventually(lambda: platform.deployment("app").components["source"].driver.held_by)
        with pytest.raises(PlanError, match=r"an item waits in front of .\.x, and partitions of . move to other slets"):
            platform.apply(platform.mesh("app").remove("a"))
        platform.apply(platform.mesh("app").resume("a").resume("b"))
        eventually(lambda: len(seen) == 10)
        platform.apply(platform.mesh("app").remove("a"))
    finally:
        tap.shut()


@pytest.mark.parametrize("change", ["partitions", "by"])
def test_the_partitions_of_a_channel_are_fixed_once_it_runs(platform, change):
    """Refused by name, with the cure."""
    platform.apply(grouped(source_of(cars()), passed, []).build())
    mesh = platform.mesh("app").configure_channel("cars", **{change: {"partitions": 32, "by": "number"}[change]})
    with pytest.raises(
        PlanError, match=r"the channel cars \(direct\) keeps its settings .* add a new channel and rewire"
    ):
        platform.plan(mesh)


def test_a_group_needs_a_partitioned_channel():
    """The error is at the line that adds the slet, with the cure."""
    app = Application("app")
    source = app.add("source", source_of([]))
    with pytest.raises(MeshError, match=r"app.channel\('source', by='…', partitions=256\), or leave out group='g'"):
        app.add("a", same, item=source, group="g")


def test_the_members_of_a_group_are_alike():
    """Different slets, or other channels, are refused."""
    app = Application("app")
    app.add("source", source_of([]), out=app.channel("cars", by="xway"))
    app.add("other", source_of([]), out=app.channel("others", by="xway"))
    app.add("a", same, item="cars", group="g")
    with pytest.raises(MeshError, match="a and b are in the group 'g', and share different channels"):
        app.add("b", same, item="others", group="g")
    with pytest.raises(MeshError, match="a and b are in the group 'g', and are different slets"):
        app.add("b", collector([]), item="cars", group="g")


def test_a_port_that_pulls_is_in_no_group():
    """What comes is pushed to a group."""

    @slet
    def pulls(x: InputPort[int]) -> Iterator[int]:
        yield from x

    app = Application("app")
    app.add("source", source_of([]), out=app.channel("cars", by="xway"))
    with pytest.raises(WiringError, match=r"a.x pulls its items, and a is in the group 'g'"):
        app.add("a", pulls, x="cars", group="g")


def test_a_running_slet_keeps_its_group(platform):
    """It has seen other items than a member: add another one under another name."""
    platform.apply(grouped(source_of(cars()), passed, []).build())
    mesh = platform.mesh("app")
    with pytest.raises(PlanError, match="a keeps its group .* while it runs"):
        platform.plan(mesh.edited({"a": replace(mesh.nodes["a"], group=None)}))
