"""Groups: slets that share the partitions of a channel give, for each key, what one instance gives."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Annotated, Any

import pyarrow as pa
import pytest

from exop import Application, Batch, InputPort, Keyed, Memento, Mesh, Platform, Punctuation, Slet, input_port, slet
from exop.cli.status_text import as_text
from exop.errors import MeshError, NotRebuildable, PlanError, SettingError, WiringError
from exop.hooks import Plugins
from exop.model.meshes.mesh import ChannelSpec, Node
from exop.model.meshes.partitions import partition_of, ranges
from exop.model.slets.slet import spec_of
from exop.remoting.api.edits import Add
from exop.runtime.catalog import Catalog
from exop.testing import check_sharing
from tests.change.tools import Books, Position, Tap, grows, in_thread, suspended
from tests.rig import Gate, collector, eventually, parked, same, source_of


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
    number = {} if channel.get("kind") == "partitioned_log" else {"partitions": 16}
    shared = app.channel("cars", **{"by": "xway", **number, **channel})
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


class PerXway(Memento):
    """A state by key."""

    numbers: Keyed[Any, list[int]] = field(default_factory=dict)


@slet
def summing(x: Any, per: PerXway) -> Any:
    """Give each item with the numbers of all items of its key so far."""
    per.numbers.setdefault(x.xway, []).append(x.number)
    return Car(x.xway, (x.number, len(per.numbers[x.xway])))


def numbered(items: list[Car]) -> dict[Any, list[Any]]:
    """The results of one instance of `summing`, by key."""
    one = PerXway()
    return by_key([summing(item, one) for item in items])


def member(mesh: Mesh, name: str, like: str = "a") -> Mesh:
    """The mesh with another member of the group."""
    one = mesh.nodes[like]
    return mesh.add(Node(name, one.slet, one.settings, one.ports, group=one.group))


def expected(last: int) -> dict[Any, list[Any]]:
    """The results of one instance for the first items of `flowing`, by key."""
    return numbered([Car(number % 11, number) for number in range(1, last + 1)])


@contextmanager
def flowing(
    platform: Platform,
    work: Any = summing,
    members: str = "a",
    kind: str = "direct",
    key: Any = lambda x: x % 11,
    **channel: Any,
) -> Iterator[tuple[Tap, list[Any]]]:
    """Run a tap of cars, a group at 16 partitions (a log's own number), and a sink, until the block has ended."""
    tap, seen = Tap(), list[Any]()

    @slet
    def source(position: Position) -> Iterator[Car]:
        while tap.next(position.number):
            position.number += 1
            yield Car(key(position.number), position.number)

    platform.apply(grouped(source, work, seen, members, kind=kind, **channel).build())
    try:
        yield tap, seen
    finally:
        tap.shut()


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
    books = Books()
    with flowing(platform, passed) as (tap, seen):
        for number, name in enumerate("cbd"):
            tap.let(50)
            grows(seen, 10)
            platform.apply(member(platform.mesh("app"), name))
            tap.let(50)
            eventually(lambda done=100 * number + 100: len(seen) == done)
            assert books.check(platform.deployment("app")) == []
        platform.apply(platform.mesh("app").remove("c").remove("b"))
        tap.let(100)
        eventually(lambda: len(seen) == 400)
    assert by_key(seen) == by_key([Car(number % 11, number) for number in range(1, 401)])


def test_partitions_move_to_another_channel_behind_what_is_under_way(platform):
    """The group is connected elsewhere as a member joins: what waits in front of a member is worked on first."""
    gate, tap, idle, seen = Gate(), Tap(), Tap(), list[Any]()

    class Summing(Slet):
        per: PerXway

        @input_port
        def x(self, x: Any) -> Any:
            gate.pass_through()
            return summing(x, self.per)

        @input_port
        def other(self, number: int) -> None:
            """Has another driver: a queue stands in front of `x`."""

    @slet
    def keyed(x: int) -> Car:
        return Car(x % 11, x)

    app = Application("app")
    app.add("source", keyed, x=app.add("numbers", tap.source()), out=app.channel("cars", by="xway", partitions=16))
    app.add("idle", idle.source())
    app.add("a", Summing, x="cars", other="idle", out=app.channel("given"), group="g")
    app.add("sink", collector(seen), item="given")
    platform.apply(app.build())
    deployment = platform.deployment("app")
    mesh = platform.mesh("app")
    mesh = replace(mesh, channels={**mesh.channels, "others": replace(mesh.channels["cars"], name="others")})
    mesh = member(mesh.rewire("source", out="others").rewire("a", x="others"), "b")
    try:
        tap.let(50)
        queue = deployment.inserted["cars -> a.x"]
        eventually(lambda: queue.depth > 40)
        with in_thread(lambda: platform.apply(mesh)):
            eventually(lambda: queue.worker.closed)
            gate.open()
        tap.let(50)
        eventually(lambda: len(seen) == 100)
    finally:
        gate.open()
        tap.shut()
        idle.shut()
    assert by_key(seen) == numbered([Car(number % 11, number) for number in range(1, 101)])


@pytest.mark.parametrize("kind", ["direct", "queue", "partitioned_log"])
def test_the_state_of_a_key_moves_with_its_partition(platform, kind):
    """Members come and go: each key goes on with its state, and no other member has it; the plan shows the ranges."""
    with flowing(platform, members="b", kind=kind) as (tap, seen):
        deployment, books = platform.deployment("app"), Books()
        for edit in (
            lambda mesh: member(mesh, "a", "b"),
            lambda mesh: member(member(mesh, "d"), "c"),
            lambda mesh: mesh.remove("b").remove("d"),
            lambda mesh: member(mesh.remove("c").replace("a", summing, lose_state=False), "e"),
            lambda mesh: mesh.remove("a"),
        ):
            so_far = len(seen)
            tap.let(50)
            eventually(lambda so_far=so_far: len(seen) >= so_far + 10, "more items")
            mesh = edit(platform.mesh("app"))
            platform.apply(mesh)
            members = [node.name for node in mesh.nodes.values() if node.group]
            with parked(deployment):
                kept = {name: deployment.components[name].state.numbers for name in members}
            number = deployment.channels["cars"].partitioning.partitions
            for name, owned in ranges(members, number).items():
                assert {partition_of(key, number) for key in kept[name]} <= set(owned)
            assert books.check(deployment) == []
        tap.let(50)
        eventually(lambda: len(seen) == 300)
    assert by_key(seen) == expected(300)


def test_a_move_that_fails_leaves_every_key_where_it_was(platform, monkeypatch):
    """The change breaks behind the move: the members have their keys again, and go on."""

    def breaks(name: str) -> None:
        if name == "rebind-after":
            raise RuntimeError("broken")

    with flowing(platform, members="ab") as (tap, seen):
        tap.let(50)
        eventually(lambda: len(seen) == 50)
        with monkeypatch.context() as patched:
            patched.setattr("exop.wiring.changes.change.failpoint", breaks)
            with pytest.raises(RuntimeError, match="broken"):
                platform.apply(member(platform.mesh("app"), "c"))
        tap.let(50)
        eventually(lambda: len(seen) == 100)
    assert by_key(seen) == expected(100)


def test_a_key_that_its_member_does_not_own_is_refused(platform):
    """A `Keyed` field holds values of the field by which the channel is partitioned: all else would go astray."""

    @slet
    def wrong(x: Any, per: PerXway) -> Any:
        per.numbers.setdefault(x.number, []).append(1)
        return x

    with flowing(platform, wrong, "ab", key=lambda x: 1) as (tap, seen):
        tap.let(20)
        eventually(lambda: len(seen) == 20)
        with pytest.raises(PlanError, match=r"numbers of its memento has the key \d+, which is none of its partitions"):
            platform.apply(member(platform.mesh("app"), "c"))
    platform.wait("app")


class Totals(Memento):
    """A state of another class."""

    totals: Keyed[Any, int] = field(default_factory=dict)


@slet
def totals(x: Any, per: Totals) -> Any:
    """Keep another state."""
    return x


def test_state_moves_between_compatible_classes_alone(platform):
    """A plan shows the ranges; while members are replaced one by one, these stay until all can take the state."""
    platform.apply(grouped(source_of(cars()), summing, [], members="ab").build())
    plan = platform.plan(member(platform.mesh("app"), "c"))
    assert "move partitions of the group g: a 0-7, b 8-15 → a 0-4, b 5-9, c 10-15" in str(plan)
    assert "is lost" not in str(platform.plan(platform.mesh("app").remove("a")))
    assert "the state of a (" in str(platform.plan(platform.mesh("app").remove("a").remove("b").remove("sink")))
    mesh = platform.mesh("app").replace("a", totals, lose_state=True)
    platform.plan(mesh)
    with pytest.raises(PlanError, match=r"cannot take the state \(\w+\) of .: it has no field '\w+'; let all members"):
        platform.plan(member(mesh, "c", like="b"))


def test_a_dead_letter_is_tried_again_by_the_owner_of_its_partition(platform):
    """Another member has the key by now, and its state."""
    broken = [True]

    @slet(on_error="dead-letter")
    def picky(x: Any, per: PerXway) -> Any:
        if broken[0]:
            raise ValueError("not now")
        return summing(x, per)

    with flowing(platform, picky) as (tap, seen):
        one = platform.mesh("app").nodes["a"]
        other = replace(one, name="other", ports={"x": "cars"}, group="other")
        platform.apply(platform.mesh("app").add(other))
        deployment = platform.deployment("app")
        tap.let(22)
        eventually(lambda: len(platform.dead_letters("app", "a")) == len(platform.dead_letters("app", "other")) == 22)
        platform.apply(member(platform.mesh("app"), "b"))
        broken[0] = False
        assert platform.retry_dead_letters("app", "a") == 22
        tap.let(11)
        eventually(lambda: len(seen) == 33)
        owned = {name: deployment.components[name].state.numbers for name in ("a", "b")}
        assert Books().check(deployment) == []
    for name, part in ranges("ab", 16).items():
        assert {partition_of(key, 16) in part for key in owned[name]} == {True}
    assert by_key(seen) == expected(33)


def test_partitions_do_not_move_past_an_item_that_waits(platform):
    """A member that is suspended has an item in front of it: the change is refused, and says what to do."""
    with flowing(platform, passed, "ab") as (tap, seen):
        platform.apply(platform.mesh("app").suspend("a").suspend("b"))
        tap.let(10)
        eventually(lambda: platform.deployment("app").components["source"].driver.held_by)
        with pytest.raises(PlanError, match=r"an item waits in front of .\.x, and partitions of . move to other slets"):
            platform.apply(platform.mesh("app").remove("a"))
        platform.apply(platform.mesh("app").resume("a").resume("b"))
        eventually(lambda: len(seen) == 10)
        platform.apply(platform.mesh("app").remove("a"))


@pytest.mark.parametrize(
    ("edit", "problem"),
    [
        (
            lambda mesh: mesh.configure_channel("cars", partitions=32),
            r"channel cars \(direct\) keeps its settings .* add",
        ),
        (
            lambda mesh: mesh.configure_channel("cars", by="number"),
            r"channel cars \(direct\) keeps its settings .* add",
        ),
        (
            lambda mesh: mesh.edited({"a": replace(mesh.nodes["a"], group=None)}),
            "a cannot leave its group .* while it runs",
        ),
        (
            lambda mesh: mesh.replace("a", counted).remove("c"),
            "and a has state that belongs to no key .Count.count.; keep",
        ),
    ],
)
def test_what_a_running_group_cannot_become(platform, edit, problem):
    """Other partitions, another group, or a move of state of no key: refused in the plan, with the cure."""
    platform.apply(grouped(source_of(cars()), passed, []).build())
    with pytest.raises(PlanError, match=problem):
        platform.plan(edit(platform.mesh("app")))


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


class TwoPorts(Slet):
    """Counts by key what comes to either port."""

    per: PerXway

    @input_port
    def x(self, car: Any) -> Any:
        """One port."""
        self.per.numbers.setdefault(car.xway, []).append(car.number)
        return car

    @input_port
    def more(self, car: Any) -> Any:
        """The other one."""
        return self.x(car)


def test_the_ports_of_a_group_have_equal_numbers_of_partitions(platform):
    """By the defaults of their kinds, too; the cure gives each key one owner, also when a port is added later."""
    app = Application("app")
    app.add("source", source_of(cars()), out=app.channel("cars", "queue", by="xway"))
    app.add("other", source_of(cars()), out=app.channel("others", "partitioned_log", by="xway"))
    with pytest.raises(MeshError, match=r"cars \(256\), others \(4\), .* partitions=256\); a channel that runs keeps"):
        app.add("a", TwoPorts, x="cars", more="others", group="g")
    app, tap = Application("app"), Tap()
    app.add("source", tap.source(), out=app.channel("cars", "queue", by="real"))
    app.add("other", tap.source(), out=app.channel("others", "partitioned_log", by="real"))
    given = app.channel("given")
    for name in "abc":
        app.add(name, summing, x="cars", out=given, group="g")
    mesh = platform.apply(app.build())
    two = Node("two", spec_of(TwoPorts), {}, {"x": "cars", "more": "others"}, group="two")
    with pytest.raises(MeshError, match=r"others \(4\).* keeps its number: connect the group to a new one") as refused:
        platform.plan(mesh.add(two))
    (number,) = re.findall(r"by='…', partitions=(\d+)\)", str(refused.value))
    equal = ChannelSpec("equal", "partitioned_log", {"by": "real", "partitions": int(number)})
    mesh = mesh.rewire("other", out=equal).add(replace(two, ports={"x": "cars", "more": "equal"}))
    for name in "abc":
        mesh = mesh.replace(name, TwoPorts).rewire(name, more="equal")
    assert not platform.plan(mesh).moves
    mesh = platform.apply(mesh)
    few = ChannelSpec("few", "partitioned_log", {"by": "xway"})
    mesh = mesh.add(Node("late", spec_of(cars_again), {}, {"out": "few"}), few).remove("b").remove("c")
    with pytest.raises(
        PlanError, match="'g' would share other .* state for the keys .*; give the slets .* a group of their own"
    ):
        platform.plan(mesh.rewire("a", x="few", more="few"))
    platform.apply(mesh.add(Node("own", spec_of(TwoPorts), {}, {"x": "few", "more": "few"}, group="own")))
    tap.shut()


@slet
def cars_again() -> Iterator[Car]:
    """Give the cars."""
    yield from cars()


def test_a_member_that_joins_gets_nothing_again_from_a_log_that_replays(platform):
    """What the log has stored was processed by the members before; the first ones get the items of their own keys."""
    with flowing(platform, kind="partitioned_log", replay=True) as (tap, seen):
        tap.let(50)
        eventually(lambda: len(seen) == 50)
        platform.apply(member(platform.mesh("app"), "b"))
        late = list[Any]()
        mesh, new = platform.mesh("app"), [ChannelSpec("late")]
        for name in "cd":
            mesh = mesh.add(Node(name, spec_of(passed), {}, {"x": "cars", "out": "late"}, group="l"), *new)
            new = []
        platform.apply(mesh.add(Node("late", spec_of(collector(late)), {}, {"item": "late"})))
        tap.let(50)
        eventually(lambda: len(seen) >= 100 and len(late) >= 100)
    assert by_key(seen) == expected(100)
    assert sorted(late, key=lambda car: car.number) == [Car(number % 11, number) for number in range(1, 101)]


def test_members_that_take_over_from_all_others_get_nothing_again_from_a_log_that_replays(platform):
    """The group goes on, though none of its members stays."""
    with flowing(platform, kind="partitioned_log", replay=True) as (tap, seen):
        tap.let(50)
        eventually(lambda: len(seen) == 50)
        platform.apply(member(member(platform.mesh("app"), "b"), "c").remove("a"))
        tap.let(50)
        eventually(lambda: len(seen) >= 100)
    assert by_key(seen) == expected(100)


def test_a_port_that_pulls_is_in_no_group(platform):
    """Items are pushed to a group."""

    @slet
    def pulls(x: InputPort[int]) -> Iterator[int]:
        yield from x

    app = Application("app")
    app.add("source", source_of([]), out=app.channel("cars", by="xway"))
    with pytest.raises(
        WiringError, match=r"a.x pulls .*; take a slet with an input to which .*, or leave out group='g'"
    ):
        app.add("a", pulls, x="cars", group="g")
    app.add("a", passed, x="cars", group="g")
    app.add("b", pulls, x="cars")
    platform.apply(app.build())


def test_the_status_shows_the_partitions_and_their_owners(platform):
    """Of the channel the field, the number, and the ranges of each group; of a node its group."""
    platform.apply(grouped(source_of(cars()), passed, []).build())
    status = platform.status("app")
    channel = status["channels"]["cars"]
    assert (channel["by"], channel["partitions"]) == ("xway", 16)
    assert channel["groups"] == {"g": "a 0-4, b 5-9, c 10-15"}
    assert {status["nodes"][name].get("group") for name in ("a", "source")} == {"g", None}
    text = "\n".join(as_text({**status, "platform": "here"}))
    assert "shares" in text
    assert "cars by xway" in text
    assert "a 0-4, b 5-9, c 10-15" in text


def test_a_member_is_added_by_name(platform):
    """`exop add APP.d PLUGIN:SLET x=cars out=given group=g`."""
    platform.apply(grouped(source_of(cars()), passed, []).build())
    given = {"x": "cars", "out": "given", "group": "g"}
    known = Catalog(Plugins())
    known.slets = {"mine:passed": spec_of(passed)}
    mesh = Add(node="d", slet="mine:passed", given=given).on(platform.mesh("app"), known)
    assert platform.plan(mesh).moves[0].after.keys() == set("abcd")


def test_a_topology_file_holds_partitions_and_groups(platform):
    """There and back."""
    mesh = grouped(source_of(cars()), passed, []).build()
    known = {node.slet.identity: node.slet for node in mesh.nodes.values()}
    again = Mesh.from_toml(mesh.to_toml(), known)
    assert again == mesh
    assert again.nodes["a"].group == "g"
    assert dict(again.channels["cars"].settings) == {"by": "xway", "partitions": 16}


def test_a_field_that_the_items_do_not_have_is_refused():
    """At the line that connects the producer, with the known fields."""
    app = Application("app")

    @slet
    def typed() -> Iterator[Car]:
        yield from cars()

    with pytest.raises(SettingError, match="xwya"):
        app.add("source", typed, out=app.channel("cars", by="xwya"))


def test_a_member_may_alter_its_items():
    """No other member receives them; a reader without a group does."""

    @slet
    def alter(x: Car) -> None:
        x.number += 1

    @slet
    def altering() -> Iterator[Car]:
        yield from cars()

    def built(*, watched: bool) -> Application:
        app = Application("app")
        shared = app.channel("cars", by="xway")
        app.add("source", altering, out=shared)
        for name in "ab":
            app.add(name, alter, x=shared, group="g")
        if watched:
            app.add("watch", collector([]), item=shared)
        return app

    check_sharing(built(watched=False))
    with pytest.raises(AssertionError, match="number"):
        check_sharing(built(watched=True))


def test_the_state_of_a_member_is_not_rebuilt_from_a_log(platform):
    """The log has the items of all members."""
    app = Application("app")
    kept = app.channel("kept", "log", keep="all")
    app.add("source", source_of(cars()), out=kept)
    app.add("pass", passed, x=kept, out=app.channel("cars", by="xway"))
    app.add("a", summing, x="cars", group="g")
    platform.apply(app.build())
    with pytest.raises(NotRebuildable, match="the log has the items of all members of the group 'g'"):
        platform.plan(platform.mesh("app").replace("a", summing, rebuild="log"))


def test_a_predecessor_that_is_kept_is_closed_when_partitions_move(platform):
    """It would have the state of keys that are another member's by now; and none is kept in such a change."""

    @slet
    def summing_too(x: Any, per: PerXway) -> Any:
        return summing(x, per)

    with flowing(platform) as (tap, seen):
        tap.let(20)
        platform.plan(platform.mesh("app").replace("a", summing_too)).apply(keep=60)
        assert platform.status("app")["kept"].keys() == {"a"}
        mesh = member(platform.mesh("app"), "b")
        with pytest.raises(PlanError, match="keep a predecessor in a change of its own"):
            platform.plan(mesh.replace("a", summing)).apply(keep=60)
        plan = platform.plan(mesh)
        assert "a: the predecessor that is kept as a standby is closed: no rollback to it any more" in plan.notes
        plan.apply()
        assert "kept" not in platform.status("app")
        tap.let(20)
        eventually(lambda: len(seen) == 40)
    assert by_key(seen) == expected(40)


def test_a_move_of_too_many_keys_is_refused_unless_it_may_stop_the_stream(platform, monkeypatch):
    """The error names the time and the cure; `stall=True` makes the change."""
    monkeypatch.setattr("exop.wiring.changes.partitions.PER_KEY", 1.0)
    with flowing(platform) as (tap, seen):
        tap.let(5)
        eventually(lambda: len(seen) == 5)
        plan = platform.plan(member(platform.mesh("app"), "b"))
        with pytest.raises(PlanError, match="stops the stream for about 5 s: the members of the group 'g' keep 5 keys"):
            plan.apply()
        plan.apply(stall=True)
