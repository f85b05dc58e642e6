"""Tables that fill first: the slets that read one take no items before its producers have ended or punctuated."""

import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from exop import (
    Application,
    EndOfStream,
    InputPort,
    Memento,
    OutputPort,
    Platform,
    Punctuation,
    Slet,
    hookimpl,
    input_port,
    slet,
)
from exop.cli.status_text import attention_lines, held_nodes, problem_lines, troubles
from exop.errors import ComponentFailed, WiringError
from exop.hooks import Plugins
from exop.model.meshes.mesh import ChannelSpec, Mesh, Node
from exop.model.slets.slet import spec_of
from tests.change.offered import offered
from tests.change.tools import Position, Tap, changed, count_to, endless, finish, plain, writing
from tests.rig import PATIENCE, eventually


@dataclass
class Rate:
    """A row of the table."""

    number: int
    rate: int


class Taken(Memento):
    """How many items an enriching slet has taken."""

    count: int = 0


class Enriched(Slet):
    """Adds the rate of a number, as the table has it, and 0 for one without."""

    rates: InputPort[Rate]
    taken: Taken

    @input_port
    def x(self, x: int) -> tuple[int, int]:
        """Look up the rate."""
        self.taken.count += 1
        row = self.rates.get(x % 3)
        return x, row.rate if row else 0


class EnrichedByPulling(Slet):
    """The same as a slet that pulls."""

    x: InputPort[int]
    rates: InputPort[Rate]
    taken: Taken

    def __iter__(self) -> Iterator[tuple[int, int]]:
        for one in self.x:
            self.taken.count += 1
            row = self.rates.get(one % 3)
            yield one, row.rate if row else 0


class EnrichedByEngine(Slet, own_driver=True):
    """The same as an engine."""

    rates: InputPort[Rate]
    out: OutputPort[tuple[int, int]]
    taken: Taken

    @input_port
    def x(self, x: int | EndOfStream) -> None:
        """Look up the rate."""
        if isinstance(x, EndOfStream):
            self.out.end()
            return
        self.taken.count += 1
        row = self.rates.get(x % 3)
        self.out.push((x, row.rate if row else 0))


@slet
def rate_of(x: int) -> Rate:
    """Make a row of a number."""
    return Rate(x % 3, x * 100)


@slet
def timed(x: int) -> Rate | Punctuation:
    """Make a row of a number; the third says that the table is complete up to here."""
    return Punctuation(x) if x == 4 else Rate(x % 3, x * 100)


LAST = 3000
#: What leaves when nothing has gone past an unfilled table.
WHOLE = [(x, {1: 100, 2: 200, 0: 300}[x % 3]) for x in range(1, LAST + 1)]


class World:
    """A stream of numbers that is enriched from a table; the test decides when the table is filled."""

    def __init__(self, platform: Platform, enrich: Any = Enriched, row: Any = rate_of, **settings: Any) -> None:
        self.platform, self.loader, self.seen = platform, Tap(), list[Any]()
        app = Application("app")
        rates = app.channel("rates", kind="table", key="number", fill_first=True)
        app.add("load", row, x=app.add("rows", self.loader.source()), out=rates)
        numbers = app.add("numbers", count_to, to=settings.get("last", LAST))
        app.add("write", writing(self.seen), x=app.add("enrich", enrich, x=numbers, rates=rates))
        platform.apply(app.build())
        self.loader.let(3)
        eventually(lambda: len(self.table) == 3, "the rows in the table")
        eventually(lambda: self.driver.held_by, "the slet that waits")

    @property
    def table(self) -> Any:
        """The table."""
        return self.platform.deployment("app").channels["rates"]

    @property
    def enrich(self) -> Any:
        """The slet that waits."""
        return self.platform.deployment("app").components["enrich"]

    @property
    def driver(self) -> Any:
        """The driver that waits with it."""
        return self.enrich.pusher or self.enrich.driver

    def waits(self) -> bool:
        """Whether no item has gone in or out."""
        return not self.seen and self.enrich.state.count == 0

    def fill(self) -> None:
        """The producer of the table ends."""
        self.loader.shut()
        finish(self.platform, "app")


def with_loader(mesh: Mesh, source: Any, row: Any) -> Mesh:
    """Add another producer of the table."""
    mesh = mesh.add(Node("more", spec_of(source), ports={"out": "more"}), ChannelSpec("more"))
    return mesh.add(Node("load_more", spec_of(row), ports={"x": "more", "out": "rates"}))


@pytest.fixture(params=[Enriched, EnrichedByPulling, EnrichedByEngine])
def world(platform, request):
    """A slet to which the items are pushed, one that pulls them, or an engine waits for its table."""
    made = World(platform, request.param)
    yield made
    made.loader.shut()


def test_no_item_goes_past_an_unfilled_table(world):
    """All items wait, in order, until the producer has ended; the status says for what, and for whom."""
    assert world.waits()
    status = world.platform.status("app")
    assert status["nodes"]["enrich"]["waits_for"] == {"rates": ["load.out"]}
    assert held_nodes(status) == "; waiting: enrich"
    assert [*problem_lines(status)] == ["app.enrich waits for rates (load.out)"]
    assert "waits for rates to be filled" in troubles(status["nodes"]["enrich"], "app.enrich")[0]
    world.fill()
    assert world.seen == WHOLE
    assert "waits_for" not in world.platform.status("app")["nodes"]["enrich"]


def test_a_punctuation_fills(platform):
    """A producer that goes on for ever says by a punctuation that its rows so far are there."""
    world = World(platform, row=timed)
    assert world.waits()
    world.loader.let(1)
    eventually(lambda: len(world.seen) == LAST)
    assert world.seen == WHOLE
    world.fill()


def test_every_producer_counts(platform):
    """Two producers: the table is filled when one has ended and the other has sent a punctuation."""
    world = World(platform)
    more = Tap()
    changed(platform, "app", lambda mesh: with_loader(mesh, more.source(), timed))
    waits = platform.status("app")["nodes"]["enrich"]["waits_for"]
    assert waits == {"rates": ["load.out", "load_more.out"]}
    world.loader.shut()
    eventually(lambda: platform.status("app")["nodes"]["load"]["state"] == "ended")
    assert platform.status("app")["nodes"]["enrich"]["waits_for"] == {"rates": ["load_more.out"]}
    assert world.waits()
    more.let(4)
    eventually(lambda: len(world.seen) == LAST)
    more.shut()
    finish(platform, "app")


def test_a_slet_that_waits_is_replaced(world):
    """Its successor waits, too; nothing is lost, doubled or reordered."""
    slet = world.enrich.spec.factory
    changed(world.platform, "app", lambda mesh: mesh.replace("enrich", slet, lose_state=True))
    eventually(lambda: world.driver.held_by)
    assert world.waits()
    world.fill()
    assert world.seen == WHOLE


def test_a_slet_that_waits_is_suspended_and_resumed(world):
    """It goes on when it is resumed and the table is filled, in either order."""
    changed(world.platform, "app", lambda mesh: mesh.suspend("enrich"))
    world.loader.shut()
    eventually(lambda: world.table.filled)
    assert world.waits()
    changed(world.platform, "app", lambda mesh: mesh.resume("enrich"))
    world.fill()
    assert world.seen == WHOLE


def test_what_stands_beside_a_slet_that_waits_is_changed(world):
    """A slet goes between the source and the one that waits, and a producer of the table is replaced."""
    changed(world.platform, "app", lambda mesh: mesh.replace("write", writing(world.seen)).replace("load", rate_of))
    assert world.waits()
    world.fill()
    assert world.seen == WHOLE


def test_a_slet_that_waits_is_removed(world):
    """What waits for it goes with it, and the rest goes on."""
    changed(world.platform, "app", lambda mesh: mesh.remove("write").remove("enrich"))
    world.fill()
    assert world.seen == []


def test_an_application_with_a_slet_that_waits_is_removed(world):
    """It keeps no thread; the source of the table, which waits for the test, is the only one that has not left."""
    driver = world.driver
    world.platform.remove("app", timeout=0.1)
    assert "app" not in world.platform.applications()
    eventually(lambda: driver.left)
    assert world.seen == []


def test_a_table_that_was_filled_stays_so(platform):
    """A producer that is added later fills it further, while its readers go on."""
    world = World(platform)
    world.fill()
    platform.remove("app")
    app, seen, tap = Application("app"), list[Any](), Tap()
    rates = app.channel("rates", kind="table", key="number", fill_first=True)
    app.add("load", rate_of, x=app.add("rows", count_to, to=3), out=rates)
    app.add("write", writing(seen), x=app.add("enrich", Enriched, x=app.add("numbers", tap.source()), rates=rates))
    platform.apply(app.build())
    tap.let(1)
    eventually(lambda: seen == [(1, 100)])
    changed(platform, "app", lambda mesh: with_loader(mesh, endless, rate_of))
    tap.let(1)
    eventually(lambda: len(seen) == 2)
    assert "waits_for" not in platform.status("app")["nodes"]["enrich"]
    tap.shut()
    platform.end("app")
    finish(platform, "app")


class Paced:
    """Lets a source yield so many numbers, and pause (as a durable one has to) until it is told to end."""

    def __init__(self, last: int) -> None:
        self.last, self.over = last, threading.Event()

    def source(self) -> Any:
        """The source: the numbers 1, 2, 3, …"""

        @slet
        def paced(position: Position) -> Iterator[int | None]:
            while True:
                if position.number < self.last:
                    position.number += 1
                    yield position.number
                elif self.over.wait(0.001):
                    return
                else:
                    yield None

        return paced


@pytest.mark.parametrize("kind", [Enriched, EnrichedByPulling])
@pytest.mark.parametrize("filled", [False, True])
def test_whether_a_table_is_filled_is_recovered(tmp_path, filled, kind):
    """A checkpoint holds it: the slet goes on at once in the next process, or waits there as well."""
    loader, numbers, seen = Paced(4 if filled else 3), Paced(2), list[Any]()
    app, slets = Application("app"), {"rows": loader.source(), "numbers": numbers.source(), "write": writing(seen)}

    class Offered:
        """By this, a platform finds the slets again."""

        @hookimpl
        def register_slets(self) -> list[Any]:
            """The slets."""
            return [timed, kind, *(offered(one, name) for name, one in slets.items())]

    def started() -> Platform:
        plugins = Plugins()
        plugins.register("test", Offered())
        return Platform(plugins=plugins, state=tmp_path).start()

    app.durable(3600.0)
    rates = app.channel("rates", kind="table", key="number", fill_first=True)
    app.add("load", timed, x=app.add("rows", slets["rows"]), out=rates)
    enrich = app.add("enrich", kind, x=app.add("numbers", slets["numbers"]), rates=rates)
    app.add("write", slets["write"], x=enrich)
    with started() as platform:
        platform.apply(app.build())
        table = platform.deployment("app").channels["rates"]
        eventually(lambda: len(table) == 3 and table.filled is filled)
        eventually(lambda: len(seen) == 2 * filled)
        platform.checkpoint("app")
    seen.clear()
    with started() as platform:
        numbers.last = 3
        if not filled:
            one = platform.deployment("app").components["enrich"]
            eventually(lambda: (one.driver or one.pusher).held_by)
            assert seen == []
            loader.over.set()
        eventually(lambda: [x for x, _ in seen] == ([3] if filled else [1, 2, 3]))
        assert 0 not in {rate for _, rate in seen}
        loader.over.set()
        numbers.over.set()
        finish(platform, "app")


def test_a_queue_without_room_for_what_comes_before_its_table_is_filled_is_reported(platform):
    """The wait ends with an error that names the cure, which the status shows; with room, everything goes on."""
    seen: list[Any] = []
    app = Application("app")
    numbers = app.add("numbers", count_to, to=500, out=app.channel("numbers"))
    rates = app.channel("rates", kind="table", key="number", fill_first=True)
    app.add("load", rate_of, x=numbers, out=rates)
    cars = app.add("between", plain, x=numbers, out=app.channel("cars", kind="queue", capacity=10))
    app.add("write", writing(seen), x=app.add("enrich", Enriched, x=cars, rates=rates))
    platform.apply(app.build())
    told = "enrich accepts no items until 'rates' is filled, whose .* the queue 'cars', which holds 10 items"
    with pytest.raises(ComponentFailed, match=told):
        platform.wait("app", PATIENCE)
    (line,) = attention_lines(platform.status("app"), brief=True)
    assert line.startswith("app.cars: enrich accepts no items until 'rates' is filled, whose producer waits ")
    mesh = platform.mesh("app")
    room = ChannelSpec("room", "queue", {"capacity": 500})
    mesh = mesh.add(Node("more", spec_of(plain), {}, {"x": "numbers", "out": "room"}), room)
    platform.apply(mesh.rewire("between", x="room"))
    eventually(lambda: "trouble" not in platform.status("app")["channels"]["cars"])
    finish(platform, "app")
    assert [x for x, _ in seen] == [*range(1, 501)]


@pytest.mark.parametrize("through", [False, True])
def test_a_slet_that_the_source_of_its_table_drives_is_refused(through):
    """That driver would wait for itself: the error names it, and a queue or a second source is the cure."""

    def built(kind: str) -> Any:
        app = Application("app")
        numbers = app.add("numbers", count_to, out=app.channel("numbers", kind="direct"))
        rates = app.channel("rates", kind="table", key="number", fill_first=True)
        app.add("load", rate_of, x=numbers, out=rates)
        out = app.channel("cars", kind=kind)
        cars = app.add("between", plain, x=app.add("near", plain, x=numbers) if through else numbers, out=out)
        app.add("write", writing([]), x=app.add("enrich", Enriched, x=cars, rates=rates))
        return app.build()

    with pytest.raises(WiringError, match="enrich waits until 'rates' is filled .*, and numbers drives both"):
        built("direct")
    assert built("queue")
