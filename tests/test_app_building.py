"""Building an application in Python: what it builds, and mistakes told at the line that makes them."""

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, TypedDict, TypeVar

import pyarrow as pa
import pytest

from exop import Application, OutputPort, OutputPorts, Platform, Slet, input_port, slet
from exop.app import ChannelRef
from exop.errors import (
    ComponentFailed,
    ExopError,
    ExpressionError,
    MeshError,
    SettingError,
    SletError,
    UnknownName,
    WiringError,
)
from exop.stock.slets import count_up, show
from tests.rig import Gate, collector

T = TypeVar("T")


@slet
def average(report: int, *, window: int = 10) -> float:
    """One input, one setting."""
    return report / window


@slet
def texts(item: str) -> str:
    """Take and give texts."""
    return item


class Match(Slet):
    """Two inputs, two outputs."""

    refused: OutputPort[int]
    depth: int = 10

    @input_port
    def bid(self, order: int) -> int:
        """One input."""
        return order

    @input_port
    def ask(self, order: int) -> int:
        """Another input."""
        return order


class Dealing(Slet):
    """Families of ports."""

    to: OutputPorts[int]

    @input_port
    def item(self, item: int) -> None:
        """Take."""

    @input_port
    def side(self, side: str, item: int) -> None:
        """Take."""


@dataclass
class Row:
    """Something with columns."""

    x: int


@slet
def on_columns(item: pa.RecordBatch) -> None:
    """Take columns."""


@slet
def rows(item: int) -> Row:
    """Give rows."""
    return Row(item)


@pytest.fixture
def app():
    """An application with a source."""
    made = Application("numbers")
    made.add("numbers", count_up, to=3)
    return made


@pytest.fixture
def numbers(app):
    """The source's channel."""
    return app.output("numbers")


MISTAKES = {
    "a port that is none": (
        lambda app, numbers: app.add("a", average, reprt=numbers),
        (UnknownName, MeshError),
        "reprt",
    ),
    "a setting that is none": (
        lambda app, numbers: app.add("a", average, report=numbers, windw=5),
        UnknownName,
        r"a has no port or setting 'windw'; did you mean 'window'\? known: out, report, window",
    ),
    "a setting of the wrong type": (
        lambda app, numbers: app.add("a", average, report=numbers, window="many"),
        SettingError,
        "window.*many",
    ),
    "an input that is not connected": (
        lambda app, numbers: app.add("a", Match, bid=numbers),
        MeshError,
        r"a\.ask is connected to nothing; give ask=CHANNEL \(numbers\)",
    ),
    "a port that is given a value": (
        lambda app, numbers: app.add("a", average, report=7),
        MeshError,
        r"a\.report is a port: give it a channel",
    ),
    "a port that is given several channels": (
        lambda app, numbers: app.add("a", average, report=[numbers, numbers]),
        MeshError,
        r"a\.report: a port connects to one channel; let the others push into one",
    ),
    "a sink's output": (
        lambda app, numbers: app.add("b", show, item=ChannelRef(app.name, "", "console")),
        MeshError,
        r"b\.item: console is a sink, it has no output",
    ),
    "a channel for a family of ports": (
        lambda app, numbers: app.add("d", Dealing, item=numbers, to=numbers),
        MeshError,
        r"d\.to is a family of ports, not ChannelRef\(.*\): give channels by name, to=\{NAME: channel\}, or names, ",
    ),
    "an input of a family without a channel": (
        lambda app, numbers: app.add("d", Dealing, item=numbers, side=["a"]),
        MeshError,
        r"d\.side is a family of ports, not \['a'\]: give channels by name, side=\{NAME: channel\}; a name has",
    ),
    "another application's channel": (
        lambda app, numbers: Application("other").add("a", average, report=numbers),
        MeshError,
        r"a\.report: the channel 'numbers' belongs to the application 'numbers'",
    ),
    "types that do not fit": (
        lambda app, numbers: app.add("a", texts, item=numbers),
        WiringError,
        r"numbers\.out cannot feed a\.item through 'numbers': items are int, expected str; put a slet",
    ),
    "items without columns": (
        lambda app, numbers: app.add("a", on_columns, item=numbers),
        WiringError,
        "int have no columns",
    ),
    "a name twice": (
        lambda app, numbers: app.add("numbers", count_up),
        MeshError,
        "has a node 'numbers' already; choose another name",
    ),
    "a channel twice": (lambda app, numbers: app.channel("numbers"), MeshError, "has a channel 'numbers' already"),
    "a kind that is none": (
        lambda app, numbers: app.channel("c", kind="quue"),
        UnknownName,
        "the channel 'c': the platform has no kind 'quue'; did you mean 'queue'",
    ),
    "a setting that the kind has not": (
        lambda app, numbers: app.channel("c", kind="queue", capcity=3),
        UnknownName,
        "did you mean 'capacity'",
    ),
    "a value that the kind refuses": (
        lambda app, numbers: app.channel("c", kind="queue", capacity=0),
        MeshError,
        "holds at least 1 item",
    ),
    "a node that is none": (lambda app, numbers: app.output("nubmers"), UnknownName, "did you mean 'numbers'"),
    "an output that is none": (
        lambda app, numbers: app.output("numbers", "refused"),
        UnknownName,
        "numbers has no output port 'refused'; known: out",
    ),
    "a plain function": (
        lambda app, numbers: app.add("a", print, item=numbers),
        SletError,
        "print is no slet: it is not marked; put @slet above",
    ),
    "a policy that is none": (
        lambda app, numbers: app.add("a", show, item=numbers, on_error="retyr"),
        UnknownName,
        "a has no policy 'retyr'; did you mean 'retry'",
    ),
    "a slet that no plugin offers": (
        lambda app, numbers: app.add("a", "stock:count_down", item=numbers),
        UnknownName,
        "this installation has no slet 'stock:count_down'; did you mean 'stock:count_up'",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_told_at_the_line_that_makes_it(app, numbers, mistake):
    """The error comes from the call that is wrong, names what is known, says what to do, and changes nothing."""
    make, error, message = MISTAKES[mistake]
    before = app.build()
    with pytest.raises(error, match=message) as told:
        make(app, numbers)
    assert isinstance(told.value, ExopError)
    assert app.build() == before


@dataclass
class Place:
    """A part of an item."""

    road: int


@dataclass
class Report:
    """An item with fields, one of which has fields."""

    sec: float
    speed: int
    place: Place


class Stretch(TypedDict):
    """A part of a row."""

    road: int


class Named(TypedDict):
    """Another such part."""

    road: str


class Trip(TypedDict):
    """A row."""

    through: list[Stretch]


class NamedTrip(TypedDict):
    """A row that nearly fits."""

    through: list[Named]


@slet
def reports() -> Iterator[Report]:
    """Emit a report."""
    yield Report(1.0, 50, Place(7))


@slet
def in_columns() -> Iterator[Annotated[pa.RecordBatch, pa.schema([("sec", pa.float64())])]]:
    """Emit a record batch of a declared schema."""
    yield pa.record_batch({"sec": [1.0]})


@slet
def trips() -> Iterator[Trip]:
    """Emit a row."""
    yield {"through": [{"road": 7}]}


@slet
def by_name(item: NamedTrip) -> None:
    """Take rows whose stretches have names."""


@slet
def passing(item: T) -> T:
    """Any items."""
    return item


@slet
def doubled(items: list[T]) -> Iterator[T]:
    """Of a window."""
    yield from items


@dataclass(frozen=True)
class Moment:
    """A row with a time that is no number."""

    at: datetime | None


@slet
def moments() -> Iterator[Moment]:
    """One row."""
    yield Moment(None)


#: The wrong field of what a source sends, given where it is named, or where the source is added.
FIELDS = {
    "a window's time": (
        lambda app: app.add("reports", reports, out=app.channel("w", kind="window", seconds=5, time="secs")),
        r"the channel 'w' \(window\): the setting 'time' does not fit: Report has no field 'secs'; did you mean 'sec'",
    ),
    "a window's time that is no number": (
        lambda app: app.add("moments", moments, out=app.channel("w", kind="window", seconds=5, time="at")),
        r"the setting 'time' does not fit: 'at' of Moment is datetime \| None, no number; .* \(moments\.out sends it\)",
    ),
    "the time of one port of a window": (
        lambda app: app.add(
            "reports", reports, out=app.channel("w", "window", seconds=3, time="sec", ports={"a.x": {"time": "secs"}})
        ),
        r"the setting \"ports\['a\.x'\]\.time\" does not fit: Report has no field 'secs'",
    ),
    "a table's key": (
        lambda app: app.add("reports", reports, out=app.channel("t", "table", key=["sec", "vid"])),
        r"the channel 't' \(table\): the setting 'key' does not fit: Report has no field 'vid'; known: place, sec",
    ),
    "the field that assigns items to partitions": (
        lambda app: app.add("reports", reports, out=app.channel("c", by="rood")),
        "the setting 'by' does not fit: Report has no field 'rood'",
    ),
    "a table's index": (
        lambda app: app.add("reports", reports, out=app.channel("t", "table", key="sec", index=["rood"])),
        "the setting 'index' does not fit: Report has no field 'rood'",
    ),
    "a latch's key, of columns": (
        lambda app: app.add("reports", in_columns, out=app.channel("l", "latch", key="vid")),
        r"the setting 'key' does not fit: the record batch has no field 'vid'; known: sec \(reports\.out sends it\)",
    ),
    "a number has no fields": (
        lambda app: app.add("numbers", count_up, out=app.channel("l", "latch", key="vid")),
        r"the setting 'key' does not fit: int has no field 'vid' \(numbers\.out sends it\)",
    ),
    "a watermark's time": (
        lambda app: app.add("timed", "stock:watermark", item=app.add("reports", reports), time="sek"),
        r"timed: the setting 'time' does not fit: Report has no field 'sek'; .*, sec, speed \(reports\.out sends it\)",
    ),
    "behind slets that pass on, windows and tables": (
        lambda app: app.add(
            "timed",
            "stock:watermark",
            item=app.add(
                "kept",
                passing,
                item=app.add(
                    "doubled",
                    doubled,
                    items=app.add(
                        "window",
                        "stock:pass_on",
                        item=app.add("reports", reports, out=app.channel("t", "table", key="sec")),
                        out=app.channel("w", "window", count=2),
                    ),
                ),
            ),
            time="sek",
        ),
        r"Report has no field 'sek'; .*\(kept\.out sends it\)",
    ),
    "a condition": (
        lambda app: app.add("s", "stock:split", item=app.add("reports", reports), conditions={"fast": "item.sped > 1"}),
        r"s\.conditions\.fast: Report has no field 'sped'; did you mean 'speed'\? .* \(reports\.out sends it\)",
    ),
    "a field of a field": (
        lambda app: app.add("by_name", by_name, item=app.add("a", passing, item=app.add("trips", trips))),
        r"a\.out cannot feed by_name\.item through 'a': the field 'through\.road' is int, expected str",
    ),
}


@pytest.mark.parametrize("mistake", FIELDS)
def test_a_wrong_field_is_told_at_the_line_that_makes_it(mistake):
    """The error names the field, the type, its fields, the setting that names it and the port that sends it."""
    make, message = FIELDS[mistake]
    with pytest.raises(MeshError, match=message):
        make(Application("fields"))


def test_a_condition_at_a_point_in_the_stream_knows_the_items_that_come():
    """Also where the slet declares nothing of its input."""

    @slet
    def limited(item: T, *, limit: int = 1) -> T:
        return item

    app = Application("limited")
    app.add("limited", limited, item=app.add("reports", reports))
    mesh = app.build()
    assert mesh.configure("limited", when="item.place.road > 3", limit=2).nodes["limited"].pending
    with pytest.raises(ExpressionError, match=r"limited: Report has no field 'rood'; .* \(reports\.out sends it\)"):
        mesh.configure("limited", when="item.rood > 3", limit=2)


@pytest.mark.parametrize("name", ["", "with space", "a/b", "a\nb"])
def test_a_name_that_cannot_be_is_refused(name):
    """Names stand in files, paths and filters."""
    with pytest.raises(MeshError, match="is no name for an application"):
        Application(name)


def test_an_application_without_slets_is_told_so():
    """Nothing to run."""
    with pytest.raises(MeshError, match=r"has no slet; add one with app\.add"):
        Application("empty").build()


def test_a_channel_that_is_read_and_never_pushed_into_is_told(app):
    """Found when the mesh is built: the other end may come later."""
    never = app.channel("never")
    app.add("console", show, item=never)
    with pytest.raises(MeshError, match=r"console\.item reads the channel 'never', into which nothing is pushed"):
        app.build()


def test_ports_that_are_joined_directly_get_a_channel_of_their_own(app, numbers):
    """Called like the node; further ports like `node.port`."""
    app.add("match", Match, bid=numbers, ask=numbers)
    mesh = app.build()
    assert set(mesh.channels) == {"numbers", "match", "match.refused"}
    assert app.output("match", "refused").name == "match.refused"
    assert mesh.nodes["match"].ports == {
        "bid": "numbers", "ask": "numbers", "out": "match", "refused": "match.refused"
    }  # fmt: skip


def test_rows_and_columns_may_be_joined(app, numbers):
    """What has fields can stand in columns: that is converted, and not refused."""
    app.add("columns", on_columns, item=app.add("rows", rows, item=numbers))
    app.run()


def test_ports_of_a_family_are_given_by_name(app, numbers):
    """Channels by name, or names alone for outputs with channels of their own; one by one as `to.a`, too."""
    app.add("one", Dealing, item=numbers, to=["a", "b"], side={"x": numbers})
    app.add("two", Dealing, item=numbers, to={"a": app.channel("c")}, **{"to.d": app.channel("d")})
    assert app.build().node("one").ports == {
        "item": "numbers",
        "to.a": "one.to.a",
        "to.b": "one.to.b",
        "side.x": "numbers",
    }
    assert app.build().node("two").ports == {"item": "numbers", "to.a": "c", "to.d": "d"}
    assert app.output("one", "to.a").name == "one.to.a"


def test_settings_are_complete_and_converted(app, numbers):
    """What a node has is what the slet gets: defaults filled in, texts turned into numbers."""
    app.add("average", average, report=numbers, window="5")
    assert app.build().nodes["average"].settings == {"window": 5}


def test_a_slet_can_be_named_by_its_identity():
    """What a plugin offers needs no import."""
    seen = []
    app = Application("named")
    app.add("sink", collector(seen), item=app.add("numbers", "stock:count_up", to=3))
    app.run()
    assert seen == [0, 1, 2]


def test_running_returns_the_figures_of_the_run(app, numbers):
    """Embedded: until the sources end and everything is drained."""
    seen = []
    app.add("sink", collector(seen), item=numbers)
    report = app.run()
    assert seen == [0, 1, 2]
    assert (report["outcome"], report["items"], report["errors"]) == ("finished", 3, 0)
    assert report["nodes"]["sink"]["metrics"]["items_in"] == 3


def test_running_on_a_given_platform_leaves_it_running(app, numbers):
    """The application is removed after the run; the platform goes on."""
    app.add("sink", collector([]), item=numbers)
    with Platform() as platform:
        app.run(platform)
        assert platform.applications() == []
        app.run(platform)


def test_a_run_with_a_slet_that_needs_help_ends_with_its_error():
    """Nobody is there to repair it: the run stops, is taken away, and says which slet and why."""

    @slet
    def refuses(item: int) -> None:
        raise ValueError("never")

    app = Application("refused")
    app.add("refuses", refuses, item=app.add("numbers", count_up, to=3))
    with Platform() as platform:
        with pytest.raises(ComponentFailed, match="refuses failed while running: ValueError: never"):
            app.run(platform)
        assert platform.applications() == []


def test_interrupting_a_run_ends_the_sources_and_drains(monkeypatch):
    """Ctrl-C: what was sent is processed, then the run returns its figures."""
    seen = []
    app = Application("interrupted")
    app.add("sink", collector(seen), item=app.add("numbers", count_up))
    waits = []
    plain = Platform.wait

    def interrupted(self, application, timeout=None):
        waits.append(application)
        if len(waits) == 1:
            raise KeyboardInterrupt
        return plain(self, application, timeout)

    monkeypatch.setattr(Platform, "wait", interrupted)
    report = app.run()
    assert report["outcome"] == "drained"
    assert seen == list(range(report["items"]))


def test_an_application_can_run_twice_at_once_under_two_names():
    """Meshes are values: the same slets in two applications of one platform do not disturb each other."""
    gate, seen = Gate(), {"one": [], "other": []}

    @slet
    def waiting() -> Iterator[int]:
        yield 1
        gate.pass_through()
        yield 2

    with Platform() as platform:
        for name in seen:
            app = Application(name)
            app.add("sink", collector(seen[name]), item=app.add("waiting", waiting))
            platform.apply(app.build())
        gate.open()
        assert all(platform.wait(name, 20) for name in seen)
    assert seen == {"one": [1, 2], "other": [1, 2]}


def test_what_is_built_is_a_value(app, numbers):
    """Building twice gives equal meshes; adding to the application does not change what was built."""
    first = app.build()
    assert app.build() == first
    app.add("console", show, item=numbers)
    assert "console" not in first.nodes


@slet
def leaves_at_three(x: int) -> int:
    """Call `sys.exit` for one item."""
    if x == 3:
        sys.exit(1)
    return x


@pytest.mark.parametrize(("policy", "left"), [("skip", 9), ("dead-letter", 9)])
def test_a_slet_that_calls_exit_is_one_that_raises(policy, left):
    """`sys.exit` in a slet (or in a library that it calls) is judged by its policy; it ends neither driver nor run."""
    app = Application("leaving")
    numbers = app.add("numbers", "stock:count_up", to=10)
    kept = app.add("kept", leaves_at_three, x=numbers, on_error=policy)
    app.add("sink", "stock:pass_on", item=kept)
    nodes = app.run()["nodes"]
    assert (nodes["kept"]["metrics"]["errors"], nodes["sink"]["metrics"]["items_in"]) == (1, left)


def test_nodes_and_channels_are_placed_on_hosts():
    """`app.on(host)` places nodes and channels, `host=` a channel; edges between hosts need no declaration."""
    app = Application("placed")
    edge = app.on("edge")
    kept = edge.channel("kept", "queue", capacity=7, connector={"mode": "offline"})
    edge.add("numbers", count_up, out=kept)
    app.add("sink", show, item=kept, dead_letters=app.channel("failed", host="core"))
    mesh = app.build()
    assert {name: node.host for name, node in mesh.nodes.items()} == {"numbers": "edge", "sink": None}
    assert {name: channel.host for name, channel in mesh.channels.items()} == {"kept": "edge", "failed": "core"}
    assert (dict(mesh.channels["kept"].settings), mesh.channels["kept"].connector["mode"]) == (
        {"capacity": 7},
        "offline",
    )
    with pytest.raises(UnknownName, match="has no setting 'mod'; did you mean 'mode'"):
        app.channel("other", connector={"mod": "sync"})


def test_a_cycle_over_hosts_needs_no_queue():
    """Items wait between hosts, as in a queue; a cycle of direct connections on one host is refused as ever."""

    @slet
    def again(item: int) -> int:
        return item

    def ring(host: str | None) -> Application:
        app = Application("ring")
        back = app.channel("back")
        app.add("numbers", count_up, out=back)
        app.add("first", again, item=back, out=app.channel("there", host=host))
        app.on(host or "local").add("second", again, item="there", out=back)
        return app

    assert ring("edge").build().place_of("there") == "edge"
    with pytest.raises(WiringError, match="the cycle .* contains no queue"):
        ring(None).build()
