"""Queries on a real Spark: one session for all of them, each test a query."""

import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from exop_spark import EventTime, Input, Punctuate, SparkSlet, query
from exop_spark.errors import MasterRefused, OutputMismatch, QueryFailed, QueryRefused, SparkError
from exop_spark.session.engine import lease

from exop import Application, EndOfStream, Platform, Punctuation, slet
from exop.cli import main
from exop.engine.columns import schema_of
from exop.errors import PlanError

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("spark")]

ROWS = pa.schema([pa.field("time", pa.int32(), nullable=False), pa.field("value", pa.int32())])

WINDOWS = """
SELECT CAST(unix_seconds(window.end) AS INT) AS time, CAST(sum(value) AS INT) AS value
FROM rows GROUP BY window(event, '10 seconds')
"""


@dataclass
class Number:
    """An item with a field."""

    n: int


@slet
def numbers(*, to: int) -> Iterator[Number]:
    """Count."""
    for n in range(1, to + 1):
        yield Number(n)


SEEN: list[int] = []


@slet
def see(item: dict[str, int]) -> None:
    """Note what arrives."""
    SEEN.append(item["n"])


def rows(*pairs: tuple[int, int]) -> pa.RecordBatch:
    """Rows of (time, value)."""
    times, values = zip(*pairs, strict=True)
    return pa.RecordBatch.from_arrays([pa.array(times, pa.int32()), pa.array(values, pa.int32())], schema=ROWS)


def doubling(**settings) -> type[SparkSlet]:
    """A query without state."""
    text = "SELECT time, value * 2 AS value FROM rows"
    return query("double", text, inputs={"rows": ROWS}, out=ROWS, **{"warm_up": 0, **settings})


def windowed(**settings) -> type[SparkSlet]:
    """A query with windows of ten seconds."""
    inputs = {"rows": Input(ROWS, EventTime("time"))}
    return query("sums", WINDOWS, inputs=inputs, out=ROWS, **{"warm_up": 0, **settings})


def nowhere(rows: Any) -> Any:
    """A query of DataFrames that names a column which is not there."""
    from pyspark.sql.functions import col

    return rows.select("time", col("speed").alias("value"))


def finish(opened: SparkSlet, out: Any) -> None:
    """End the input and wait until all has left."""
    opened.rows(EndOfStream())
    out.wait_for(lambda: out.ended)
    assert out.error is None


#: Types that Spark does not have, and that hold the values of one that it has; with a value.
LIKE_ITS_OWN = {
    pa.timestamp("ms", "UTC"): datetime(2026, 3, 29, 1, 30, 0, 1000, UTC),
    pa.timestamp("ns", "Europe/Zurich"): datetime(1700, 1, 1, 12, 0, 0, 1, UTC),
    pa.timestamp("us", "America/New_York"): datetime(9999, 12, 31, 1, tzinfo=UTC),
    pa.timestamp("s"): datetime(1900, 1, 1),
    pa.large_string(): "é",
    pa.large_binary(): b"\0",
    pa.binary(2): b"xy",
    pa.dictionary(pa.int32(), pa.string()): "a",
    pa.duration("ms"): timedelta(days=2),
    pa.large_list(pa.large_string()): ["a", None],
    pa.list_(pa.timestamp("ms"), 1): [datetime(1970, 1, 2)],
    pa.struct([("a", pa.timestamp("ns", "UTC")), ("b", pa.large_string())]): {"a": None, "b": "x"},
    pa.map_(pa.large_string(), pa.timestamp("ms")): [("k", datetime(1970, 1, 2))],
}


def test_types_that_are_like_those_of_spark_go_through_as_they_are(out):
    """They are converted on the way to Spark and back, without a difference; also in made-up rows."""
    columns = pa.schema([(f"c{n}", kind) for n, kind in enumerate(LIKE_ITS_OWN)])
    arrays = [pa.array([value, None], kind) for kind, value in LIKE_ITS_OWN.items()]
    given = pa.RecordBatch.from_arrays(arrays, schema=columns)
    same = query("same", "SELECT * FROM rows", inputs={"rows": columns}, out=columns, warm_up=1)
    with same(out=out) as opened:
        opened.rows(given)
        finish(opened, out)
    assert out.batches[0].schema.types == columns.types
    assert out.batches[0].to_pylist() == given.to_pylist()


def test_a_value_that_spark_cannot_hold_is_refused_before_it_takes_it(out):
    """The query goes on; the error names the column, and both of its cures lead to what they say."""
    columns = pa.schema([("c", pa.timestamp("ns"))])
    exact, other = (pa.record_batch([pa.array([ns], pa.timestamp("ns"))], schema=columns) for ns in (5_000, 5_001))
    same = query("same", "SELECT * FROM rows", inputs={"rows": columns}, out=columns, warm_up=0)
    with same(out=out) as opened:
        with pytest.raises(SparkError, match=r"port 'rows'.*'c' is timestamp\[ns\].*lose data.*safe=False.*int64"):
            opened.rows(other)
        opened.rows(exact)
        cast = other.column(0).cast(pa.timestamp("us"), safe=False).cast(pa.timestamp("ns"))
        opened.rows(pa.record_batch([cast], schema=columns))
        finish(opened, out)
    assert [value.value for value in pa.Table.from_batches(out.batches).column("c")] == [5_000, 5_000]
    assert other.column(0).cast(pa.int64()).to_pylist() == [5_001]  # for `columns="c bigint"`


@pytest.mark.parametrize(
    ("kind", "instead"),
    [
        (pa.uint32(), pa.int64()),
        (pa.uint64(), pa.decimal128(20, 0)),
        (pa.time64("us"), pa.int64()),
        (pa.float16(), pa.float32()),
    ],
)
def test_a_type_that_spark_does_not_have_is_refused_with_its_column(kind, instead):
    """Before there are rows; the type that the error names is accepted, and takes the values."""
    made = [
        query("same", "SELECT a FROM rows", inputs={"rows": columns}, out=columns.remove(1))
        for columns in (pa.schema([("a", pa.int32()), ("c", one)]) for one in (kind, instead))
    ]
    with pytest.raises(QueryRefused, match=f"port 'rows'.*the column 'c' is .*declare it as {re.escape(str(instead))}"):
        made[0].deep_check({}, {})
    made[1].deep_check({}, {})()
    assert pa.array([None], kind).cast(instead).type == instead


@pytest.mark.edges
@pytest.mark.parametrize(("kind", "unit"), [(pa.float64(), "us"), (pa.float32(), "hour")])
def test_windows_over_floating_point_times_close_at_the_end(out, kind, unit):
    """The end of time is a number that the column can hold, also where it holds not every integer."""
    columns = pa.schema([("time", kind), ("value", pa.int32())])
    text = "SELECT CAST(sum(value) AS INT) AS value FROM rows GROUP BY window(event, '10 days')"
    inputs, to = {"rows": Input(columns, EventTime("time", unit))}, pa.schema([("value", pa.int32())])
    with query("sums", text, inputs=inputs, out=to, warm_up=0)(out=out) as opened:
        opened.rows(pa.record_batch([pa.array([2.5], kind), pa.array([7], pa.int32())], schema=columns))
        finish(opened, out)
    assert out.table() == [(7,)]
    assert all(time < 2.5 for time in out.punctuations)


def test_every_type_of_column_goes_through(out):
    """Those that the setting `columns` knows; with values, and missing."""
    kinds = [
        "boolean",
        "tinyint",
        "smallint",
        "int",
        "bigint",
        "float",
        "double",
        "string",
        "binary",
        "date",
        "timestamp",
    ]
    columns = schema_of(", ".join(f"c_{kind} {kind}" for kind in kinds))
    moment = datetime(2026, 3, 29, 1, 30, 0, 1, UTC)
    values = [True, 1, 2, 3, 4, 0.5, 0.25, "é", b"\0\xff", date(1969, 7, 20), moment]
    given = pa.RecordBatch.from_pylist([dict(zip(columns.names, values, strict=True)), {}], schema=columns)
    same = query("same", "SELECT * FROM rows", inputs={"rows": columns}, out=columns, warm_up=1)
    with same(out=out) as opened:
        opened.rows(given)
        finish(opened, out)
    assert out.table() == [(*values,), (None,) * len(kinds)]


def test_rows_go_through_once_in_order_after_a_warm_up(out):
    """Pushed rows leave once, punctuations behind their rows; the rows of the warm-up neither leave nor count."""
    with doubling(warm_up=2)(out=out) as opened:
        opened.rows(rows((1, 10), (1, 11)))
        opened.rows(Punctuation(1))
        out.wait_for(lambda: out.punctuations == [1])
        opened.rows(rows((2, 20)))
        opened.rows(Punctuation(2))
        finish(opened, out)
        metrics = opened.metrics()
    assert out.table() == [(1, 20), (1, 22), (2, 40)]
    assert out.items[-1] == Punctuation(2)
    assert out.batches[0].schema == ROWS
    assert (metrics["input_rows"], metrics["output_rows"], metrics["lag"]) == (3, 3, 0)
    assert [rows for name, rows in metrics.items() if name.startswith("rows read by ")] == [3]


def test_punctuations_need_no_rows(out):
    """On a silent stream time goes on: nothing waits for the next row."""
    with doubling()(out=out) as opened:
        opened.rows(Punctuation(1))
        out.wait_for(lambda: out.punctuations == [1])
        opened.rows(rows((2, 1)))
        opened.rows(Punctuation(2))
        out.wait_for(lambda: out.punctuations == [1, 2])
        opened.rows(Punctuation(3))
        out.wait_for(lambda: out.punctuations == [1, 2, 3])
    assert out.items.index(Punctuation(2)) > out.items.index(out.batches[0])


@pytest.mark.edges
def test_windows_of_a_query_with_a_condition_close_by_punctuations(out):
    """The optimizer must not let the condition drop what moves the watermark."""
    text = WINDOWS.replace("GROUP BY", "WHERE value >= 0 AND time < 100 GROUP BY")
    with windowed()(out=out, query=text) as opened:
        opened.rows(rows((3, 1), (4, -1)))
        opened.rows(Punctuation(12))
        out.wait_for(lambda: 12 in out.punctuations)
        assert out.table() == [(10, 1)]
        finish(opened, out)


def test_a_changed_text_changes_the_answers(out):
    """The query is what runs: as a setting it can be replaced by another."""
    with doubling()(out=out, query="SELECT time, value + 1 AS value FROM rows WHERE value > 10") as opened:
        opened.rows(rows((1, 10), (1, 11)))
        finish(opened, out)
    assert out.table() == [(1, 12)]


def test_an_open_slet_puts_out_what_it_was_given_when_it_is_to_be_replaced(out):
    """`quiesce` returns when all has left, whatever the pace; the slet goes on if it stays after all."""
    with doubling(trigger=3600.0)(out=out) as opened:
        opened.rows(rows((1, 1)))
        opened.quiesce()
        opened.rows(rows((2, 2)))
        opened.quiesce()
        assert out.table() == [(1, 2), (2, 4)]


def test_settings_of_an_open_slet_cannot_be_changed_silently(out):
    """Spark has compiled them: a change is refused with what to do, the same value is none."""
    with doubling()(out=out) as opened:
        opened.query = opened.query
        with pytest.raises(PlanError, match=r"'query' is compiled .* replace the slet"):
            opened.query = "SELECT 1"


def test_a_function_makes_a_query_too(out):
    """It gets the streaming DataFrames of its ports by name."""
    made = query("f", lambda rows: rows.where("value > 1"), inputs={"rows": ROWS}, out=ROWS, warm_up=0)
    with made(out=out) as opened:
        opened.rows(rows((1, 1), (1, 2)))
        finish(opened, out)
    assert out.table() == [(1, 2)]


def test_a_punctuation_closes_windows_without_a_later_row(out):
    """Complete through second 9: the window of seconds 0 to 9 comes out, and the watermark follows as punctuation."""
    with windowed()(out=out) as opened:
        opened.rows(rows((3, 1), (9, 2), (11, 4)))
        opened.rows(Punctuation(11))
        out.wait_for(lambda: 11 in out.punctuations)
        assert out.table() == [(10, 3)]
        assert out.items.index(Punctuation(11)) > out.items.index(out.batches[0])
        finish(opened, out)
        assert opened.metrics()["input_rows"] == 3
    assert out.table() == [(10, 3), (20, 4)]
    assert opened.metrics()["watermark"] > 20


@pytest.mark.edges
def test_windows_may_stay_open_at_the_end(out):
    """With close_windows_at_end=False the end closes only what the last punctuation did."""
    with windowed(close_windows_at_end=False, boundary=10.0)(out=out) as opened:
        opened.rows(rows((3, 1), (11, 4)))
        opened.rows(Punctuation(12))
        finish(opened, out)
    assert out.table() == [(10, 1)]
    assert out.punctuations[-1] == 12


@pytest.mark.edges
def test_punctuations_can_be_mapped_to_the_output_s_own_time(out):
    """The stream's unit may change on the way: from seconds to tens of seconds here."""
    inputs = {"rows": Input(ROWS, EventTime("time"))}
    tens = Punctuate("watermark", lambda seconds: int(seconds // 10) or None)
    made = query("tens", WINDOWS, inputs=inputs, out=ROWS, punctuate=tens, warm_up=0)
    with made(out=out) as opened:
        opened.rows(Punctuation(9))
        out.wait_for(lambda: out.punctuations)
    assert out.punctuations == [1]


def test_two_inputs_are_joined_and_end_together(out):
    """Each port is a table; the output ends, and is complete, when both inputs are."""
    text = "SELECT l.time AS time, l.value + r.value AS value FROM left_rows l JOIN right_rows r ON l.time = r.time"
    made = query("pairs", text, inputs={"left_rows": ROWS, "right_rows": ROWS}, out=ROWS, warm_up=0)
    with made(out=out) as opened:
        opened.left_rows(rows((1, 10), (2, 20)))
        opened.left_rows(Punctuation(2))
        opened.left_rows(EndOfStream())
        opened.right_rows(rows((2, 5)))
        opened.right_rows(Punctuation(1))
        opened.right_rows(EndOfStream())
        out.wait_for(lambda: out.ended)
    assert out.table() == [(2, 25)]
    assert out.punctuations == [1]


@pytest.mark.edges
def test_an_input_that_has_ended_holds_nobody_back(out):
    """The rows of an ended input have left and it sends nothing more: time is that of the other input."""
    text = "SELECT time, value FROM early UNION ALL SELECT time, value FROM late"
    made = query("both", text, inputs={"early": ROWS, "late": ROWS}, out=ROWS, warm_up=0)
    with made(out=out) as opened:
        opened.early(rows((1, 1)))
        opened.early(Punctuation(1))
        opened.early(EndOfStream())
        opened.late(Punctuation(7))
        out.wait_for(lambda: 7 in out.punctuations)
        opened.late(rows((8, 2)))
        opened.late(EndOfStream())
        out.wait_for(lambda: out.ended)
    assert sorted(out.table()) == [(1, 1), (8, 2)]


@pytest.mark.edges
def test_late_rows_are_counted(out):
    """Spark drops rows that are older than the watermark; the figures say how many."""
    with windowed(boundary=10.0)(out=out) as opened:
        opened.rows(rows((3, 1)))
        opened.rows(Punctuation(19))
        out.wait_for(lambda: 19 in out.punctuations)
        opened.rows(rows((4, 1), (21, 1)))
        finish(opened, out)
        assert opened.metrics()["late_rows"] == 1
    assert out.table() == [(10, 1), (30, 1)]


@pytest.mark.edges
def test_rows_at_the_watermark_are_not_late(out):
    """Neither the rows that follow a punctuation at once, nor others at the time of the last row."""
    text = "SELECT l.time AS time, l.value AS value FROM l JOIN r ON l.value = r.value AND l.event = r.event"
    timed = Input(ROWS, EventTime("time"))
    made = query("pairs", text, inputs={"l": timed, "r": timed}, out=ROWS, warm_up=0)
    with made(out=out) as opened:
        for time in range(1, 4):
            for value in range(2):
                for port in (opened.l, opened.r):
                    port(rows((time, value)))
                opened.quiesce()
                opened.proceed()
            for port in (opened.l, opened.r):
                port(Punctuation(time))
            out.wait_for(lambda time=time: out.punctuations[-1:] == [time])
    assert sorted(out.table()) == [(time, value) for time in range(1, 4) for value in range(2)]


@pytest.mark.parametrize(
    ("text", "condition", "hint", "place"),
    [
        ("SELECT time, value FROM rowz", "TABLE_OR_VIEW_NOT_FOUND", "`rowz`", "line 1, column 25"),
        ("SELECT time,\n speed AS value FROM rows", "UNRESOLVED_COLUMN.WITH_SUGGESTION", "`speed`", "line 2, column 2"),
        ("SELECT time, value FROM rows WHERE (", "PARSE_SYNTAX_ERROR", "near", "line 1, column 36"),
        ("SELECT time, sum(value) AS value FROM rows GROUP BY time", "UNSUPPORTED_OPERATION", "watermark", ""),
        (nowhere, "UNRESOLVED_COLUMN.WITH_SUGGESTION", "`speed`", f"{__file__}:{nowhere.__code__.co_firstlineno + 4}"),
    ],
)
def test_a_query_that_spark_refuses_is_told_when_it_is_checked_or_opened(
    out, text, condition, hint, place, monkeypatch
):
    """Slet, port, text, position and Spark's own condition are in the error; analysing alone finds the same."""
    # As if the first query of this process had been built in a thread without an active session.
    monkeypatch.setattr("pyspark.errors.utils._enable_debugging_cache", False)
    made = query("bad", text, inputs={"rows": ROWS}, out=ROWS, warm_up=0)
    with pytest.raises(QueryRefused) as caught:
        made.deep_check({}, {})
    error = caught.value
    assert condition in error.condition
    assert error.position == place
    assert re.search(rf"^bad, port 'rows': Spark refuses the query \[.*{hint}", str(error))
    assert (text if isinstance(text, str) else "nowhere(rows)").splitlines()[-1] in str(error)
    with pytest.raises(QueryRefused) as caught:
        made(out=out).__enter__()
    assert str(caught.value) == str(error)


@pytest.mark.parametrize(
    "command",
    [
        "INSERT OVERWRITE DIRECTORY '{folder}' USING parquet SELECT 1",
        "WITH one AS (SELECT 1) INSERT OVERWRITE DIRECTORY '{folder}' USING parquet SELECT * FROM one",
        "RESET",
        "BEGIN INSERT OVERWRITE DIRECTORY '{folder}' USING parquet SELECT 1; END",
    ],
)
def test_a_command_is_refused_and_not_carried_out(tmp_path, command):
    """Spark carries out a command when it is analysed; a check must have no effect."""
    folder = tmp_path / "written"
    made = query("bad", command.format(folder=folder), inputs={"rows": ROWS}, out=ROWS)
    with pytest.raises(QueryRefused, match="it is a command, which would be carried out at once; write a query"):
        made.deep_check({}, {})
    assert not folder.exists()


def test_a_query_may_end_with_a_semicolon_and_a_comment():
    """It is a query nevertheless."""
    text = "SELECT time, value FROM rows -- all; really\n; -- the end\n/* of it */"
    made = query("good", text, inputs={"rows": ROWS}, out=ROWS)
    made.deep_check({}, {})()


SQUARES = """
from collections.abc import Iterator
from dataclasses import dataclass

from exop import Application, slet


@dataclass
class Number:
    n: int


@slet
def numbers() -> Iterator[Number]:
    yield Number(1)


def squares(*, query: str) -> Application:
    app = Application("squares")
    columns = {"columns": "n bigint", "out_columns": "n bigint"}
    squared = app.add("squares", "spark:sql", rows=app.add("numbers", numbers), query=query, **columns)
    app.add("shown", "stock:show", item=squared)
    return app
"""


def test_check_deep_asks_spark(capsys, tmp_path, monkeypatch):
    """`exop check --deep` names the node, the place and the query that Spark refuses; what it accepts is named, too."""
    monkeypatch.chdir(tmp_path)
    Path("squares.py").write_text(SQUARES)
    assert main(["check", "squares.py", "query=SELECT n * n AS n FROM rows", "--deep"]) == 0
    assert "analysed: squares\n" in capsys.readouterr().out
    wrong = ["check", "squares.py", "query=SELECT m AS n FROM rows"]
    assert main(wrong) == 0
    assert main([*wrong, "--deep"]) == 2
    told = capsys.readouterr().err
    assert "in the query, at line 1, column 8" in told
    assert told.endswith("  in the node 'squares'\n")


def test_columns_that_are_not_declared_are_told_when_it_is_opened(out):
    """The output is what was declared, or the slet does not open."""
    with pytest.raises(OutputMismatch, match="no column 'value'; it has a column 'speed' that is not declared"):
        doubling()(out=out, query="SELECT time, value AS speed FROM rows").__enter__()


def test_a_query_that_fails_while_it_runs_is_reported_and_takes_nothing_more(out):
    """The component learns of it by its port, with the inner condition; the next push raises the same."""
    with doubling()(out=out, query="SELECT time, 10 DIV value AS value FROM rows") as opened:
        opened.rows(rows((1, 0)))
        out.wait_for(lambda: False)
        assert isinstance(out.error, QueryFailed)
        assert (out.error.condition, out.error.port) == ("DIVIDE_BY_ZERO", "rows")
        with pytest.raises(QueryFailed):
            opened.rows(rows((2, 0)))


def test_a_value_that_does_not_fit_the_declared_column_ends_the_query(out):
    """Spark counts in 64 bits, the declared column has 32: too large is an error, not another number."""
    with doubling()(out=out, query="SELECT time, CAST(value AS BIGINT) * 1000000000 AS value FROM rows") as opened:
        opened.rows(rows((1, 2), (1, 3)))
        out.wait_for(lambda: False)
    assert "not in range" in str(out.error)


@pytest.mark.edges
def test_a_warm_up_that_fails_says_what_to_do(out):
    """Made-up rows do not suit every query."""
    with pytest.raises(QueryFailed) as caught:
        doubling(warm_up=1)(out=out, query="SELECT time, 10 DIV (value - value) AS value FROM rows").__enter__()
    assert "give its inputs a sample=, or set warm_up=0" in caught.value.__notes__[0]


@pytest.mark.edges
def test_slets_open_at_the_same_time_with_tables_of_the_same_name(noted):
    """Each has its own tables and settings on the common Spark; another master is refused meanwhile."""
    factors = [1, 2, 3]
    notes = [noted() for _ in factors]
    slets = [
        doubling()(out=note, query=f"SELECT time, value * {factor} AS value FROM rows")
        for factor, note in zip(factors, notes, strict=True)
    ]
    with ThreadPoolExecutor(len(slets)) as pool:
        list(pool.map(lambda one: one.__enter__(), slets))
    for opened, note in zip(slets, notes, strict=True):
        opened.rows(rows((1, 1)))
        finish(opened, note)
    with pytest.raises(MasterRefused, match=r"runs on 'local\[\*\]'.*the same master"):
        lease("local[1]")
    for opened in slets:
        opened.__exit__()
    assert [note.table() for note in notes] == [[(1, 1)], [(1, 2)], [(1, 3)]]


def test_it_runs_in_an_application_next_to_other_slets():
    """Items become columns at the channel, `spark:sql` needs no code, and the end of the stream ends the platform."""
    app = Application("squares")
    source = app.add("numbers", numbers, to=5)
    text = {"query": "SELECT n * n AS n FROM rows", "columns": "n bigint", "out_columns": "n bigint"}
    squares = app.add("squares", "spark:sql", rows=source, warm_up=0, **text)
    app.add("seen", see, item=squares)
    with Platform() as platform:
        platform.apply(app.build())
        platform.wait("squares", 240)
        assert platform.status("squares")["nodes"]["squares"]["metrics"]["own"]["input_rows"] == 5
    assert SEEN == [1, 4, 9, 16, 25]


@pytest.mark.edges
def test_a_query_reads_two_inputs_that_its_settings_name():
    """The tables of the query are the ports of the node."""
    app = Application("pairs")
    columns = {"ones": "n bigint", "twos": "n bigint"}
    query = "SELECT 10 * ones.n + twos.n AS n FROM ones JOIN twos ON ones.n = twos.n"
    sources = {name: app.add(name, numbers, to=to) for name, to in (("ones", 3), ("twos", 5))}
    settings = {"query": query, "columns": columns, "out_columns": "n bigint", "warm_up": 0}
    SEEN.clear()
    app.add("seen", see, item=app.add("pairs", "spark:sql", **sources, **settings))
    with Platform() as platform:
        platform.apply(app.build())
        platform.wait("pairs", 240)
    assert sorted(SEEN) == [11, 22, 33]
