"""Making slets of queries: the platform's view of them, without Spark."""

import math
import subprocess
import sys
from collections.abc import Iterator
from typing import Annotated

import pyarrow as pa
import pytest
from exop_spark import EventTime, Input, Punctuate, query
from exop_spark.execution.frames import timestamp
from exop_spark.execution.window_time import OFFSET, WindowTime
from exop_spark.samples import ROWS, made_up
from exop_spark.slets.aggregates import aggregate
from exop_spark.slets.sql import event_time_of, sql

from exop import Application, Slet
from exop.engine.columns import schema_of
from exop.engine.feed import Feed
from exop.engine.trigger import BatchTrigger
from exop.errors import ExopError, SettingError
from exop.model.meshes.mesh import Node
from exop.model.slets.slet import spec_of

COLUMNS = pa.schema([pa.field("time", pa.int32()), pa.field("value", pa.int32())])


def test_a_query_is_a_pi_slet_with_its_inputs_as_ports():
    """Ports carry the declared columns and see control items; the text is a setting."""
    made = query("double", "SELECT * FROM rows", inputs={"rows": COLUMNS}, out=COLUMNS, trigger=0.5)
    spec = spec_of(made)
    assert (spec.name, str(spec.role), spec.own_driver) == ("double", "pi", True)
    port = spec.ports["rows"].type
    assert (port.form, port.schema, port.punctuation, port.end) == ("columns", COLUMNS, True, True)
    assert spec.ports["out"].type.schema == COLUMNS
    assert spec.settings["query"].default == "SELECT * FROM rows"
    assert spec.settings["trigger"].default == 0.5
    assert spec.identity.endswith("test_factory:double")


def test_a_function_is_no_setting():
    """Only text can be changed by an application."""
    made = query("same", lambda rows: rows, inputs={"rows": COLUMNS}, out=COLUMNS)
    assert "query" not in spec_of(made).settings


def test_a_successor_runs_its_own_query():
    """The text of a query comes with its slet; one that an application has set is kept."""
    old = query("same", "SELECT value AS old FROM rows", inputs={"rows": COLUMNS}, out=COLUMNS)
    new = query("same", "SELECT value AS new FROM rows", inputs={"rows": COLUMNS}, out=COLUMNS)
    app = Application("app")
    app.add("q", old, rows=app.channel("in"))
    mesh = app._mesh
    assert mesh.replace("q", new).node("q").settings["query"] == "SELECT value AS new FROM rows"
    kept = mesh.configure("q", query="SELECT 1").replace("q", new)
    assert kept.node("q").settings["query"] == "SELECT 1"


def test_the_usual_punctuation_follows_from_the_inputs():
    """By the inputs' own without an event time; by the watermark with one, less one step."""
    plain = query("plain", "SELECT * FROM rows", inputs={"rows": COLUMNS}, out=COLUMNS)
    timed = query("timed", "…", inputs={"rows": Input(COLUMNS, EventTime("time"))}, out=COLUMNS)
    assert plain.punctuation.by == "input"
    assert (timed.punctuation.by, timed.punctuation.complete(60)) == ("watermark", 59)


def test_an_unknown_setting_is_told():
    """A misspelt default is a mistake of the line that makes the slet."""
    with pytest.raises(ExopError, match=r"triger.*did you mean 'trigger'"):
        query("bad", "…", inputs={"rows": COLUMNS}, out=COLUMNS, triger=1.0)


def test_watermark_punctuations_need_an_event_time():
    """Without one there is no watermark to tell anything."""
    with pytest.raises(ExopError, match="event time"):
        query("bad", "…", inputs={"rows": COLUMNS}, out=COLUMNS, punctuate=Punctuate("watermark"))


def test_the_plugin_costs_nothing_until_it_is_used():
    """A platform with the plugin installed loads neither pyspark nor pyarrow; Java can be looked for."""
    program = (
        "import sys, exop_spark, exop_spark.java; exop_spark.register_slets();"
        "print([name for name in ('pyspark', 'pyarrow', 'pandas', 'numpy') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_topology_can_name_the_sql_slet():
    """`spark:sql` is found by the plugin's entry point and takes its settings; here it lacks its input."""
    app = Application("text")
    settings = {"query": "SELECT a FROM rows", "columns": "a int", "out_columns": "a int"}
    with pytest.raises(ExopError, match=r"numbers\.rows is connected to nothing"):
        app.add("numbers", "spark:sql", **settings)


def test_the_sql_slet_has_an_input_for_each_table():
    """`columns` as a table names the inputs; all ports have the declared columns."""
    app = Application("text")
    tables = {"cars": "vid int, time int", "tolls": "vid int, time int, toll int"}
    ports = {name: app.add(name, rows_of(text)) for name, text in tables.items()}
    settings = {"query": "SELECT 1", "columns": tables, "out_columns": "vid int"}
    left = app.add("join", "spark:sql", **settings, **ports, event_time="time s")
    spec = app.build().node("join").slet
    assert {name: spec.ports[name].type.schema for name in ("cars", "out")} == {
        "cars": pa.schema([pa.field("vid", pa.int32(), nullable=False), ("time", pa.int32())]),
        "out": schema_of("vid int"),
    }
    with pytest.raises(ExopError, match=r"join\.out cannot feed next\.tolls .*the columns differ: .*'time'"):
        app.add("next", "spark:sql", **{**settings, "columns": {"tolls": "vid int, time int"}}, tolls=left)
    typed = Node("cli", spec.of("spark"), {**settings, "columns": '{cars = "vid int"}'}, {})
    assert [port.name for port in typed.slet.inputs] == ["cars"]


def test_the_slets_of_topologies_have_all_settings_of_a_query():
    """With the same defaults; an aggregate sets its mode and its times itself, and always reads from the platform."""
    own = {
        name: one.default for name, one in spec_of(query("q", "…", inputs={"r": COLUMNS}, out=COLUMNS)).settings.items()
    }
    del own["query"]
    declared = {name: one.default for name, one in sql.settings.items()}
    assert {name: declared[name] for name in own} == own
    computed = {name: one.default for name, one in aggregate.settings.items()}
    left_out = {"watermark", "mode", "boundary", "native", "stage", "dry_run"}
    assert {name: computed[name] for name in own.keys() - left_out} == {
        name: own[name] for name in own.keys() - left_out
    }


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"columns": {"a b": "x int"}}, "'columns' does not fit: an input cannot be called 'a b'"),
        ({"columns": {"plan": "x int"}}, "'columns' does not fit: an input cannot be called 'plan'"),
        ({"columns": "x integer"}, "'columns' does not fit: 'x integer' is no column"),
        ({"columns": "{a"}, "'columns' does not fit"),
        ({"out_columns": "x"}, "'out_columns' does not fit: 'x' is no column"),
        ({"event_time": "y s"}, "'columns' does not fit: the event time of 'rows' is the column 'y'"),
        ({"event_time": {"cars": "x s"}}, "'event_time' does not fit: there is no input 'cars'; name one of rows"),
        ({"event_time": "x"}, "'event_time' does not fit: 'x' is not `column unit`"),
        ({"max_rows": 0}, "'max_rows' does not fit: 0 is not at least 1"),
        ({"trigger": -1.0}, "'trigger' does not fit: -1.0 is not at least 0"),
        ({"key_groups": -1}, "'key_groups' does not fit: -1 is not at least 0"),
    ],
)
def test_settings_of_the_sql_slet_are_checked_where_it_is_added(wrong, told):
    """The error is at the line that adds the node, and names it."""
    settings = {"query": "SELECT 1", "columns": "x int", "out_columns": "x int"}
    with pytest.raises(ExopError, match=rf"^bad: the setting {told}"):
        Application("text").add("bad", "spark:sql", **settings | wrong)


def test_every_query_and_aggregate_on_spark_checks_its_settings():
    """A batch of no rows would be waited for for ever."""
    counts = {"columns": "x int", "values": {"n": "count"}, "keys": ["x"]}
    for kind, settings in ((query("q", "…", inputs={"r": COLUMNS}, out=COLUMNS), {}), ("spark:aggregate", counts)):
        with pytest.raises(SettingError, match="0 is not at least 1"):
            Application("text").add("bad", kind, **settings, capacity=0)


def rows_of(columns):
    """A source of nothing, of these columns; the first one is never null."""
    schema = schema_of(columns)
    schema = schema.set(0, schema.field(0).with_nullable(False))

    class Rows(Slet):
        def __iter__(self) -> Iterator[Annotated[pa.RecordBatch, schema]]:
            yield from ()

    return Rows


def test_columns_can_be_written_as_text():
    """Spark's way to write columns, and a column with its unit."""
    assert schema_of("a int not null, b DOUBLE") == pa.schema(
        [pa.field("a", pa.int32(), nullable=False), pa.field("b", pa.float64())]
    )
    assert event_time_of("a ms") == EventTime("a", "ms")
    assert event_time_of("") is None


@pytest.mark.parametrize("text", ["a", "a integerr", "a int nullable"])
def test_text_that_is_no_column_is_told(text):
    """With the types there are."""
    with pytest.raises(SettingError, match=r"is no column; write `name type`.*boolean"):
        schema_of(text)


@pytest.mark.parametrize("text", ["a", "a fortnight", "a s now"])
def test_text_that_is_no_event_time_is_told(text):
    """A column and a unit, no less and no more."""
    with pytest.raises(SettingError, match="column unit"):
        event_time_of(text)


def test_event_time_knows_its_units():
    """A timestamp is made of the column in its unit, behind a whole millisecond; time ends where the column does."""
    micros = "CAST(`m` * 60000000L AS BIGINT)"
    assert timestamp(EventTime("m", "minute")) == f"timestamp_micros({micros} + CAST({micros} % 1000 = 0 AS BIGINT))"
    assert EventTime("s").never(32) == 2**31 - 1
    assert EventTime("s").never() == 253_402_300_799


@pytest.mark.parametrize("kind", [pa.int32(), pa.int64(), pa.float32(), pa.float64()])
@pytest.mark.parametrize("slide", [1, 7, 60, 3600, 0.1, 1 / 3, 1e-6, 86400.5])
def test_the_end_of_an_aggregate_is_behind_all_windows_of_any_length(kind, slide):
    """Spark computes the number of its window from it, and the end of the stream follows instead of a punctuation."""
    if (exact := pa.types.is_integer(kind)) and slide % 1:
        return
    time = WindowTime("time", slide=slide, exact=exact)
    trigger = BatchTrigger()
    trigger.release()
    feed = Feed("rows", pa.schema([("time", kind)]), trigger, event_time=time)
    feed.end()
    marker = pa.ipc.open_stream(feed.read(0, 1)).read_all().column("time")[0].as_py()
    number = int(marker // slide) if exact else math.floor(marker / slide)  # as in `WindowTime.number`
    assert number * slide >= feed.never
    assert number + OFFSET <= 250_000_000_000_000
    assert exact or number > OFFSET  # the largest number that rows may have


def test_made_up_rows_fit_any_columns():
    """A warm-up needs no help for ordinary columns; the event time has the given value."""
    kinds = [pa.bool_(), pa.int8(), pa.int64(), pa.float32(), pa.string(), pa.binary(), pa.date32()]
    kinds += [pa.timestamp("us", "UTC"), pa.decimal128(10, 2), pa.list_(pa.int32())]
    columns = pa.schema([pa.field(f"c{number}", kind) for number, kind in enumerate(kinds)])
    batch = made_up(columns.append(pa.field("time", pa.int32())), "time", 120)
    assert batch.num_rows == ROWS
    assert set(batch.column("time").to_pylist()) == {120}
