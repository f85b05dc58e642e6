"""Windows at which a query fails are set aside alone, with their rows; the others go on, and nothing is lost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from math import floor
from typing import Any

import pyarrow as pa
import pytest
from exop_duckdb import DuckDbSql
from exop_duckdb.engine import DuckDb
from hypothesis import given, settings
from hypothesis import strategies as st

from exop import Application, EndOfStream, Memento, Platform, Punctuation, slet
from exop.errors import QueryError
from exop.model.slets.spec import POLICIES
from exop.testing import open as open_slet
from tests.rig import PATIENCE, Gate, collector, threads_leave

COLUMNS = "time {0}, k int, s string"
QUERY = "SELECT k, sum({0}(s AS int)) AS t FROM rows GROUP BY k, window(event, '{1}') ORDER BY ALL"
#: The type of the time, its unit, and the number of its values in a second.
TIMES = [
    ("bigint", "s", 1),
    ("bigint", "ms", 1000),
    ("bigint", "ns", 10**9),
    ("double", "s", 1.0),
    ("double", "ms", 1e3),
]


def query_of(kind: str = "bigint", unit: str = "s", cast: str = "cast", length: str = "10 seconds") -> dict[str, Any]:
    """The settings of a sum by key and window."""
    query = QUERY.format(cast, length)
    out = {"query": query, "columns": COLUMNS.format(kind), "out_columns": "k int, t bigint"}
    return {**out, "event_time": f"time {unit}"}


def batch(rows: list[tuple[Any, ...]], kind: str = "bigint") -> pa.RecordBatch:
    """Rows as a record batch."""
    time = pa.int64() if kind == "bigint" else pa.float64()
    schema = pa.schema([("time", time), ("k", pa.int32()), ("s", pa.string())])
    return pa.RecordBatch.from_pylist([dict(zip(schema.names, row, strict=True)) for row in rows], schema)


def rows_of(found: list[Any]) -> list[tuple[Any, ...]]:
    """The rows of record batches."""
    return [tuple(row.values()) for one in found if isinstance(one, pa.RecordBatch) for row in one.to_pylist()]


ROWS = st.tuples(st.integers(0, 45), st.integers(1, 2), st.sampled_from(["1", "2", "3", "bad"]))
STEPS = st.lists(st.one_of(st.lists(ROWS, max_size=5), st.integers(5, 50)), max_size=12)


@settings(max_examples=20, deadline=None, derandomize=True, database=None)
@given(steps=STEPS, time=st.sampled_from(TIMES), length=st.sampled_from([10, 2.5]))
def test_just_the_windows_that_fail_are_left_out(steps: list[Any], time: tuple[str, str, Any], length: float):
    """For any rows and punctuations: what is emitted and what is set aside are the rows that were not late."""
    kind, unit, size = time
    left, results, windows, complete, late = list[Any](), list[Any](), dict[int, list[Any]](), -1.0, 0
    with open_slet(DuckDbSql, **query_of(kind, unit, length=f"{length} seconds")) as instance:
        instance.omit_rows = lambda error, rows: rows is None or bool(left.append((str(error), rows))) or True
        for step in [*steps, EndOfStream()]:
            if isinstance(step, list):
                rows = [(moment * size, *rest) for moment, *rest in step]
                for row in rows:
                    number = floor(row[0] / size / length)
                    if (number + 1) * length <= complete:
                        late += 1
                    else:
                        windows.setdefault(number, []).append(row)
                results += instance.rows(batch(rows, kind))
            elif isinstance(step, int):
                complete = max(step, complete)
                results += instance.rows(Punctuation.before(step * size))
            else:
                results += instance.rows(step)
        assert instance.metrics()["late_rows"] == late
    bad = [rows for rows in windows.values() if any(row[2] == "bad" for row in rows)]
    assert Counter(rows_of([rows for _, taken in left for _, rows in taken])) == Counter(
        row for rows in bad for row in rows
    )
    assert len(left) == len(bad)
    assert all("the window up to" in error for error, _ in left)
    good = Counter[tuple[int, int]]()
    for rows in windows.values():
        if rows not in bad:
            totals = Counter[int]()
            for _, key, text in rows:
                totals[key] += int(text)
            good.update(totals.items())
    assert Counter(rows_of(results)) == good
    marks = [one.time for one in results if isinstance(one, Punctuation)]
    assert marks == sorted(set(marks))


def test_a_window_that_takes_others_with_it_is_found(monkeypatch: pytest.MonkeyPatch):
    """As if the complete rows were answered, and left out, at once."""
    given = {"steps": [[(1, 1, "1"), (11, 1, "bad"), (21, 1, "3")], 30], "time": TIMES[0], "length": 10}
    check = test_just_the_windows_that_fail_are_left_out.hypothesis.inner_test
    check(**given)
    monkeypatch.setattr(DuckDb, "windows", lambda self, time: [time])
    with pytest.raises(AssertionError):
        check(**given)


def test_what_cannot_be_left_out_leaves_the_state_as_it_was(monkeypatch: pytest.MonkeyPatch):
    """The windows before it were answered in vain: they are answered again with it."""
    with open_slet(DuckDbSql, **query_of()) as instance:
        instance.omit_rows = lambda error, rows: True
        [*instance.rows(batch([(1, 1, "1"), (11, 1, "bad"), (21, 1, "3")]))]
        with monkeypatch.context() as broken:
            broken.setattr(instance.engine, "take_out", lambda time: None)
            with pytest.raises(QueryError):
                instance.rows(Punctuation(30))
        assert rows_of([*instance.rows(Punctuation(30))]) == [(1, 1), (1, 3)]


class Position(Memento):
    """The progress of the source."""

    number: int = 0


def test_an_isolated_engine_does_the_same():
    """A new process repeats what was taken out."""
    with open_slet(DuckDbSql, **query_of(), isolation="process") as instance:
        left = list[Any]()
        instance.omit_rows = lambda error, rows: rows is None or bool(left.append(rows)) or True
        [*instance.rows(batch([(1, 1, "1"), (11, 1, "bad"), (21, 1, "3")]))]
        assert rows_of([*instance.rows(Punctuation(20))]) == [(1, 1)]
        instance.engine._kill("test")
        assert rows_of([*instance.rows(Punctuation(30))]) == [(1, 3)]
        assert rows_of([rows for taken in left for _, rows in taken]) == [(11, 1, "bad")]


@pytest.mark.parametrize("policy", POLICIES)
def test_a_failed_window_can_be_repaired(policy: str):
    """By a corrected query: the suspended slet answers it when it is resumed, a dead letter when it is retried."""
    gate, found = Gate(), list[Any]()

    @slet
    def source(position: Position) -> Iterator[pa.RecordBatch | Punctuation]:
        yield batch([(1, 1, "5"), (2, 2, "7"), (3, 1, "bad"), (11, 1, "1")])
        yield Punctuation.before(20)
        gate.pass_through()
        yield batch([(21, 1, "1")])
        yield Punctuation.before(30)

    app = Application("app")
    rows = app.add("source", source)
    answers = app.add("q", DuckDbSql, rows=rows, on_error=policy, **query_of())
    app.add("found", collector(found), item=answers)
    with threads_leave(), Platform(control=False) as platform:
        mesh, omits = platform.apply(app.build()), policy in ("skip", "dead-letter")
        if omits:
            gate.somebody_waits()
        else:
            with pytest.raises(Exception, match="Could not convert string 'bad'"):
                platform.wait("app", PATIENCE)
        assert platform.status("app")["nodes"]["q"]["metrics"]["skipped"] == (3 if policy == "skip" else 0)
        platform.apply(mesh.configure("q", query=query_of(cast="try_cast")["query"]))
        letters = platform.dead_letters("app", "q")
        assert [rows_of([one.item]) for one in letters] == (
            [[(1, 1, "5"), (2, 2, "7"), (3, 1, "bad")]] if policy == "dead-letter" else []
        )
        if platform.deployment("app").components["q"].status == "failed":
            platform.resume("app", "q")
        assert platform.retry_dead_letters("app", "q") == len(letters)
        gate.open()
        assert platform.wait("app", PATIENCE)
    repaired = [] if policy == "skip" else [(1, 5), (2, 7)]
    assert sorted((row["k"], row["t"]) for row in found) == sorted([(1, 1), (1, 1), *repaired])
