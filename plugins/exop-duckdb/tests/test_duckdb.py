"""`duckdb:sql`: windows, state in tables, dialects, errors, and the lock-down."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pytest
from exop_duckdb import DuckDbSql

from exop import Punctuation
from exop.errors import QueryError, QueryInterrupted, SettingError
from exop.model.slets.slet import spec_of
from exop.testing import feed
from exop.testing import open as open_slet
from exop.testing.engine_suite import EngineSuite
from tests.rig import PATIENCE

ENDLESS = "WITH RECURSIVE n(x) AS (SELECT 1::BIGINT UNION ALL SELECT x + 1 FROM n) SELECT max(x) AS number FROM n"
READINGS = {"columns": "time bigint, sensor int, value double", "event_time": "time s"}
UNORDERED = """
SELECT unix_seconds(window.end) AS until, sensor, avg(value) AS mean
FROM rows GROUP BY window(event, '10 seconds'), sensor
"""
MEANS = f"{UNORDERED} ORDER BY until, sensor"


class TestWindow(EngineSuite):
    """With an event time: rows wait in the database for their punctuation."""

    slet = DuckDbSql
    settings: ClassVar[dict[str, Any]] = {
        "query": "SELECT number FROM rows ORDER BY number",
        "columns": "number bigint",
        "out_columns": "number bigint",
        "event_time": "number s",
    }
    wrong: ClassVar[dict[str, Any]] = {"query": "SELECT numbr FROM rows"}
    position = 7
    endless: ClassVar[dict[str, Any]] = {"query": ENDLESS}

    def row(self, number: int) -> Any:
        """Rows have columns."""
        return {"number": number}

    def number(self, result: Any) -> int:
        """So have results."""
        return int(result["number"])


class TestBatch(TestWindow):
    """Without an event time: the query is answered for each batch."""

    settings: ClassVar[dict[str, Any]] = {**TestWindow.settings, "event_time": ""}


class TestState(TestWindow):
    """A query that counts in a table: its state is handed over."""

    settings: ClassVar[dict[str, Any]] = {
        **TestBatch.settings,
        "tables": "CREATE TABLE seen (one int PRIMARY KEY, before bigint, n bigint)",
        "query": """
            INSERT INTO seen VALUES (1, 0, 0) ON CONFLICT DO NOTHING;
            UPDATE seen SET before = n, n = n + (SELECT count(*) FROM rows);
            SELECT before + row_number() OVER (ORDER BY number) AS number FROM rows, seen ORDER BY number
        """,
    }


def rows(found: list[Any]) -> list[Any]:
    """Results as rows, and control items."""
    return [row for one in found for row in (one.to_pylist() if isinstance(one, pa.RecordBatch) else [one])]


def readings(*values: tuple[int, int, float]) -> pa.RecordBatch:
    """A batch."""
    schema = pa.schema([("time", pa.int64()), ("sensor", pa.int32()), ("value", pa.float64())])
    return pa.RecordBatch.from_pylist([dict(zip(schema.names, one, strict=True)) for one in values], schema)


def test_the_windows_of_spark_close_at_punctuations():
    """A window leaves when all times before its end are complete, and not before; late rows are counted and dropped."""
    given = [
        readings((1, 7, 10.0), (9, 7, 20.0), (12, 7, 5.0)),
        Punctuation(8),
        Punctuation(9),
        readings((3, 7, 99.0), (19, 8, 1.0)),
        Punctuation(20),
    ]
    settings = {**READINGS, "query": MEANS, "dialect": "spark", "out_columns": "until bigint, sensor int, mean double"}
    with open_slet(DuckDbSql, **settings) as slet:
        found = [one for batch in given for one in slet.rows(batch)]
        late = slet.metrics()["late_rows"]
    assert rows(found) == [
        Punctuation(8),
        {"until": 10, "sensor": 7, "mean": 15.0},
        Punctuation(9),
        {"until": 20, "sensor": 7, "mean": 5.0},
        {"until": 20, "sensor": 8, "mean": 1.0},
        Punctuation(20),
    ]
    assert late == 1


def test_between_two_numbers_there_are_others():
    """A window over floating-point times is open after the largest whole number in it."""
    settings = {**READINGS, "query": MEANS, "dialect": "spark", "out_columns": "until bigint, sensor int, mean double"}
    with open_slet(DuckDbSql, **{**settings, "columns": "time double, sensor int, value double"}) as slet:
        schema = pa.schema([("time", pa.float64()), ("sensor", pa.int32()), ("value", pa.float64())])
        one, other = (pa.RecordBatch.from_pylist([{"time": at, "sensor": 7, "value": at}], schema) for at in (9.0, 9.5))
        given = [one, Punctuation(9), other, Punctuation.before(10)]
        found = [result for batch in given for result in slet.rows(batch)]
    assert rows(found) == [Punctuation(9), {"until": 10, "sensor": 7, "mean": 9.25}, Punctuation.before(10)]


def test_the_end_of_the_stream_closes_all_windows():
    """The rows that wait are answered at that point."""
    settings = {**READINGS, "query": MEANS, "dialect": "spark", "out_columns": "until bigint, sensor int, mean double"}
    assert rows(feed(DuckDbSql, [readings((1, 7, 10.0))], **settings)) == [{"until": 10, "sensor": 7, "mean": 10.0}]


REFUSED = [
    "COPY rows TO '/tmp/stolen'",
    "ATTACH '/tmp/stolen.db'",
    "INSTALL httpfs",
    "SET memory_limit = '100GB'",
    "CREATE TABLE more (a int)",
    "DROP TABLE rows",
    "SELECT * FROM read_csv('/etc/passwd')",
    "SELECT * FROM '/etc/passwd'",
    "SELECT content AS number FROM read_text('/etc/passwd')",
    "SELECT * FROM local_of_the_host",
    "SELECT getenv('HOME') AS number",
]


@pytest.mark.parametrize("query", REFUSED)
def test_a_query_reaches_nothing_outside(query):
    """Neither files, nor settings, nor extensions, nor objects of the process; it is refused when the slet opens."""
    local_of_the_host = pa.table({"number": [1]})
    with pytest.raises(QueryError):
        feed(DuckDbSql, [], query=query, columns="number bigint", out_columns="number bigint")
    assert local_of_the_host.num_rows == 1


LARGE = [
    "SELECT len(list(range)) AS number FROM range(100_000_000)",
    "SELECT count(*) AS number FROM (SELECT repeat('x', 100) || range AS s FROM range(1_000_000) ORDER BY s OFFSET 1)",
]


@pytest.mark.parametrize("query", LARGE)
def test_memory_is_limited(query, tmp_path, monkeypatch):
    """The query fails, and the process lives; nothing is written into files."""
    monkeypatch.chdir(tmp_path)
    settings = {"columns": "number bigint", "out_columns": "number bigint", "memory": "32MB"}
    with pytest.raises(QueryError, match="Out of Memory"):
        feed(DuckDbSql, [pa.RecordBatch.from_pylist([{"number": 1}])], query=query, **settings)
    assert not [*tmp_path.iterdir()]


def test_what_exceeds_the_memory_is_not_written_to_the_disk(tmp_path, monkeypatch):
    """A sort is refused as well: a database has no files, also not in the working directory; the next query runs."""
    monkeypatch.chdir(tmp_path)
    sort = "SELECT n AS number FROM range(5_000_000) t(n), rows ORDER BY hash(n) LIMIT 1 OFFSET 4_000_000"
    settings = {"columns": "number bigint", "out_columns": "number bigint", "memory": "16MB"}
    with open_slet(DuckDbSql, query=sort, **settings) as slet:
        with pytest.raises(QueryError, match="Out of Memory"):
            slet.rows(pa.RecordBatch.from_pylist([{"number": 1}]))
        assert [*slet.rows(pa.RecordBatch.from_pylist([], pa.schema([("number", pa.int64())])))] == []
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("column", "unit", "times"),
    [
        ("bigint", "ns", [-1, 9_999_999_999, 10_000_000_000, 1_700_000_009_999_999_999]),
        ("bigint", "us", [-1, 9_999_999, 10_000_000, 1_700_000_009_999_999]),
        ("double", "s", [-1e-9, 9.9999999, 10.0, 1_700_000_009.9999998]),
        ("double", "minute", [-1e-9, 9.9999999 / 60, 10 / 60, 1_700_000_009 / 60]),
    ],
)
def test_a_row_is_in_the_window_that_its_punctuation_closes(column, unit, times):
    """Also in the last moment before the end, in which rounding would put it into the next window."""
    query = """SELECT unix_seconds(window.end) AS until, count(*) AS n FROM rows GROUP BY window(event, '10 seconds')"""
    settings = {"columns": f"time {column}", "event_time": f"time {unit}", "out_columns": "until bigint, n bigint"}
    ticks = {"ns": 10**9, "us": 10**6, "s": 1, "minute": 1 / 60}[unit]
    given = [pa.RecordBatch.from_pydict({"time": times}), *(Punctuation(end * ticks) for end in (0, 10, 20))]
    found = rows(feed(DuckDbSql, given, query=query, dialect="spark", **settings))
    assert [one["until"] for one in found if isinstance(one, dict)] == [0, 10, 20, 1_700_000_010]


@pytest.mark.parametrize("restored", [False, True])
@pytest.mark.parametrize(
    ("query", "late", "results"),
    [
        ("SELECT time - 1700000009999999890 AS n FROM rows", 1, [100]),
        ("SELECT count(*) AS n FROM rows GROUP BY window(event, '10 seconds')", 0, [3]),
    ],
)
def test_a_nanosecond_after_a_punctuation_is_not_late(query, late, results, restored):
    """Whole times are compared exactly, also after a restart; as floating-point numbers, they are in steps of 256."""
    start = 1_700_000_009_999_999_890
    settings = {"query": query, "columns": "time bigint", "event_time": "time ns", "out_columns": "n bigint"}
    with open_slet(DuckDbSql, **settings) as slet, open_slet(DuckDbSql, **settings) as other:
        assert rows([*slet.rows(Punctuation(start))]) == [Punctuation(start)]
        if restored:
            other.engine.restore(slet.engine.snapshot(), 1)
        used = (other if restored else slet).engine
        assert used.push("rows", pa.RecordBatch.from_pydict({"time": [start, start + 1, start + 100]})) == []
        assert rows(used.advance(start + late)) == [{"n": 1}] * late
        assert used.metrics()["late_rows"] == late
        assert [one["n"] for one in rows(used.advance(start + 109))] == results
        assert used.push("rows", pa.RecordBatch.from_pydict({"time": [start + 109]})) == []
        assert used.metrics()["late_rows"] == late + 1


@pytest.mark.parametrize("time", [float("nan"), float("inf"), 1e300])
def test_a_time_that_no_calendar_has_is_refused(time):
    """It would wait forever, or make every later answer fail."""
    settings = {"columns": "time double", "event_time": "time s", "out_columns": "n bigint"}
    with open_slet(DuckDbSql, query="SELECT count(event) AS n FROM rows", **settings) as slet:
        with pytest.raises(QueryError, match="the column 'time' has a time that is no number, or too far away"):
            slet.rows(pa.RecordBatch.from_pydict({"time": [1.0, time]}))
        slet.rows(pa.RecordBatch.from_pydict({"time": [1.0, None]}))
        assert rows([*slet.rows(Punctuation(5))]) == [{"n": 1}, Punctuation(5)]


def test_a_quoted_window_is_one():
    """And every statement but the last may return rows."""
    query = """SELECT 1; SELECT epoch("window".end)::int AS until FROM rows GROUP BY window(event, '10 seconds')"""
    settings = {"columns": "time bigint", "event_time": "time s", "out_columns": "until int"}
    given = [pa.RecordBatch.from_pydict({"time": [1, 11]})]
    found = rows(feed(DuckDbSql, given, query=query, **settings))
    assert sorted(one["until"] for one in found) == [10, 20]


WRONG = [
    ("SELECT numbr FROM rows", "", 7, 'column "numbr" not found'),
    ("SELECT number\nFROM rws", "", 19, "rws does not exist"),
    ("SELECT number FRM rows WHERE (", "", 18, "Invalid expression"),
    ("SELECT 1 AS other", "", None, "it returns the columns other INTEGER, not those of `out_columns` .number."),
    ("SELECT number FROM rows", "CREATE TABLE a (b int", None, "the setting `tables`: Expecting"),
    ("SELECT number, number FROM rows", "", None, "returns the columns number BIGINT, number BIGINT, not those"),
    ("SELECT number FROM rows; LOAD httpfs", "", 25, "LOAD is not allowed"),
    ("SELECT 1 FROM rows GROUP BY window(event, '0 seconds')", "", None, "is no tumbling window"),
    ("DROP TABLE rows", "", 0, "DROP is not allowed"),
    ("SELECT number FROM rows", "CREATE VIEW a AS SELECT 1", None, "nothing but CREATE TABLE"),
    ("SELECT window.start FROM rows GROUP BY window(event, '10 seconds')", "", 7, "needs the setting `event_time`"),
]


@pytest.mark.parametrize(("query", "tables", "position", "problem"), WRONG)
def test_a_mistake_is_shown_where_it_is(query, tables, position, problem):
    """The position is that in the text as it was given."""
    with pytest.raises(QueryError, match=problem) as caught:
        feed(DuckDbSql, [], query=query, tables=tables, columns="number bigint", out_columns="number bigint")
    assert caught.value.position == position


@pytest.mark.parametrize(
    ("table", "problem"),
    [
        ("a (b BIT)", "a.b is BIT, which snapshots do not keep"),
        ("a (b STRUCT(c TIMETZ))", "a.b is TIME WITH TIME ZONE, which"),
        ("a (b UHUGEINT)", "a.b is UHUGEINT, which"),
        ("a (b int, c int GENERATED ALWAYS AS (b + 1))", "a has GENERATED ALWAYS, which cannot be restored"),
        ("z (b int PRIMARY KEY); CREATE TABLE a (b int REFERENCES z (b))", "a has FOREIGN KEY, which cannot"),
        ("rows (b int)", "'rows' is the name of an input"),
    ],
)
def test_a_table_that_a_snapshot_would_lose_is_refused(table, problem):
    """When the slet opens, not after a crash."""
    with pytest.raises(QueryError, match=re.escape(f"the setting `tables`: {problem}")):
        feed(DuckDbSql, [], **{**TestBatch.settings, "tables": f"CREATE TABLE {table}"})


def test_a_state_with_other_tables_is_refused():
    """The table and its columns are named."""
    counting = TestState.settings
    with open_slet(DuckDbSql, **counting) as slet:
        slet.rows(pa.RecordBatch.from_pylist([{"number": 1}]))
        slet.flush()
        state = slet.state
    with pytest.raises(QueryError, match=r"the state has a table seen \(one int32, before int64, n int64\)"):
        feed(DuckDbSql, [], **TestBatch.settings, state=state)


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("columns", "a int); DROP TABLE x; --"),
        ("out_columns", "a nonsense"),
        ("event_time", "a s"),
        ("event_time", "number h"),
        ("memory", "much"),
        ("threads", 0),
        ("time_limit", -1.0),
        ("memory_limit", -1),
    ],
)
def test_a_setting_that_cannot_be_is_refused(setting, value):
    """When the node is added, with the name of the setting."""
    with pytest.raises(SettingError) as caught:
        feed(DuckDbSql, [], **{**TestBatch.settings, setting: value})
    assert caught.value.setting == setting


README = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")


def test_the_examples_of_the_readme_run(capsys):
    """They print what they say."""
    names: dict = {"__name__": "readme"}
    programs, printed = (re.findall(rf"```{kind}\n(.*?)```", README, re.DOTALL) for kind in ("python", "text"))
    for program, shown in zip(programs, printed, strict=True):
        exec(program, names)
        assert capsys.readouterr().out == shown


def test_every_setting_is_explained():
    """In the README."""
    for setting in DuckDbSql.__slet__.settings:
        assert f"`{setting}`" in README, setting


def test_one_query_text_is_accepted_by_spark_and_here():
    """The same settings make a slet of either plugin, with the same columns."""
    spark = pytest.importorskip("exop_spark.slets.sql")
    settings = {**READINGS, "query": MEANS, "out_columns": "until bigint, sensor int, mean double"}
    here = spec_of(DuckDbSql).asked("here", {**settings, "dialect": "spark"})
    there = spark.sql.asked("there", settings)
    assert [port.type.schema for port in here.outputs] == [port.type.schema for port in there.outputs]
    assert [port.type.schema for port in here.inputs] == [port.type.schema for port in there.inputs]


@pytest.mark.edges
@pytest.mark.spark
def test_one_query_text_has_the_same_results_on_spark_and_here():
    """Windows, their ends, and averages."""
    spark = pytest.importorskip("exop_spark.slets.sql")
    settings = {**READINGS, "query": UNORDERED, "out_columns": "until bigint, sensor int, mean double"}
    given = [readings((1, 7, 10.0), (9, 7, 20.0), (12, 7, 5.0)), Punctuation(15), readings((19, 8, 1.0))]
    here = rows(feed(DuckDbSql, given, **settings, dialect="spark"))
    there = rows(feed(spark.sql, given, **settings))
    results = [sorted(map(repr, (row for row in found if isinstance(row, dict)))) for found in (here, there)]
    assert results[0] == results[1]
    assert len(results[0]) == 3


def test_a_query_runs_in_a_process_of_its_own(monkeypatch):
    """With the same results and errors; one that does not return is interrupted there."""
    monkeypatch.setattr("exop.engine.isolated.GRACE", PATIENCE)
    isolated = {"columns": "number bigint", "out_columns": "number bigint", "isolation": "process"}
    batch = pa.RecordBatch.from_pydict({"number": [3, 1]})
    with open_slet(DuckDbSql, query="SELECT number + 1 AS number FROM rows ORDER BY 1", **isolated) as slet:
        assert rows([*slet.rows(batch)]) == [{"number": 2}, {"number": 4}]
    with open_slet(DuckDbSql, query=ENDLESS, time_limit=0.2, **isolated) as slet:
        with pytest.raises(QueryInterrupted, match=r"interrupted after 0\.2 s"):
            slet.rows(batch)
        assert slet.metrics()["worker_starts"] == 1
    with pytest.raises(QueryError, match="numbr") as caught:
        DuckDbSql.deep_check({"query": "SELECT numbr AS number FROM rows", **isolated}, {})
    assert caught.value.position == 7
