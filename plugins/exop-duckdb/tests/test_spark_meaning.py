"""A query in the dialect `spark` gives what Spark gives, or is refused."""

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from exop_duckdb import DuckDbSql

from exop import Application, Platform, slet
from exop.engine.columns import schema_of
from exop.errors import QueryError
from exop.runtime.catalog import known_slets
from exop.testing import feed

SLETS = known_slets().slets
COLUMNS = "a int, b int, s string, x double, f float"
ROW = {"a": 7, "b": 0, "s": "Ab", "x": -2.7, "f": 0.1}


def answer(expression: str, kind: str, dialect: str = "spark", **row: Any) -> Any:
    """The value of an expression over one row."""
    given = [pa.RecordBatch.from_pylist([ROW | row], schema_of(COLUMNS))]
    settings = {"columns": COLUMNS, "out_columns": f"c {kind}", "dialect": dialect}
    (found,) = feed(DuckDbSql, given, query=f"SELECT {expression} AS c FROM rows", **settings)
    return found.column("c").to_pylist()[0] if isinstance(found, pa.RecordBatch) else found["c"]


FAILING = [
    ("a / b", "double", "division by zero; use try_divide", "try_divide(a, b)", None),
    ("x / 0", "double", "division by zero; use .* nullif", "x / nullif(b, 0)", None),
    ("a % b", "int", "division by zero", "a % nullif(b, 0)", None),
    ("a div b", "int", "division by zero", "a div nullif(b, 0)", None),
    ("cast(s AS int)", "int", "not a whole number: Ab; use try_cast", "try_cast(s AS int)", None),
    ("cast('1_0' AS double)", "double", "not a number: 1_0; use try_cast", "try_cast('1_0' AS double)", None),
    ("a / 2.0", "double", "Spark rounds the quotient of decimals; divide by a double", "a / 2.0D", 3.5),
    ("avg(a * 1.5)", "double", "rounds the mean of decimals; multiply by a double", "avg(a * 1.5D)", 10.5),
    ("f + a", "double", "cast the float to double", "round(cast(f AS double) + a)", 7.0),
    (
        "concat(s, x)",
        "string",
        "writes a DOUBLE as another text; cast it to another type",
        "concat(s, cast(x AS int))",
        "Ab-2",
    ),
]


@pytest.mark.parametrize(("expression", "kind", "problem", "cure", "value"), FAILING)
def test_what_spark_refuses_or_rounds_is_an_error_whose_cure_works(expression, kind, problem, cure, value):
    """It is no null, and no other number; the error says what to write instead."""
    with pytest.raises(QueryError, match=problem):
        answer(expression, kind)
    assert answer(cure, kind) == value


@pytest.mark.parametrize(
    ("expression", "kind", "value"),
    [
        ("cast(x AS int)", "int", -2),
        ("substring(s, 0, 1)", "string", "A"),
        ("ln(x)", "double", None),
        ("percentile(a, 0.5)", "double", 7.0),
        ("try_cast(x AS int)", "int", -2),
        ("unix_seconds(date'1970-01-02')", "bigint", 86400),
    ],
)
def test_what_differs_is_translated(expression, kind, value):
    """To what Spark computes."""
    assert answer(expression, kind) == value


REFUSED = [
    "skewness(a)",
    "kurtosis(a)",
    "hash(a)",
    "months_between(date'2024-03-31', date'2024-02-01')",
    "element_at(array(1, 2), 3)",
    "array(1, 2)[5]",
    "bround(x)",
    "round(x, 2)",
    "timestamp_seconds(a)",
    "cast(s AS timestamp)",
    "s RLIKE '\\\\d(?=x)'",
    "s LIKE s",
    "approx_count_distinct(a)",
    "corr(a, b)",
]


@pytest.mark.parametrize("expression", REFUSED)
def test_what_is_not_known_to_be_the_same_is_refused_with_its_name_and_place(expression):
    """Before there are rows."""
    query = f"SELECT {expression} AS c FROM rows"
    with pytest.raises(QueryError, match="dialect='duckdb'") as caught:
        DuckDbSql.deep_check({"query": query, "columns": COLUMNS, "out_columns": "c double", "dialect": "spark"}, {})
    name, _, _ = caught.value.facts["problem"].partition(":")
    assert name in {expression.partition("(")[0], "[…]", "cast", "rlike", "like", "round"}


def test_the_cure_of_a_refusal_works():
    """With other functions, or in the SQL of DuckDB."""
    assert answer("skewness(a)", "double", dialect="duckdb") is None
    assert answer("round(x * 100) / 100", "double") == -2.7


@slet
def nothing() -> Iterator[pa.RecordBatch | None]:
    """A source that never has a row."""
    yield None


@pytest.mark.parametrize(
    ("dialect", "expression", "named", "others"),
    [
        ("spark", "avg(a / 2)", ["avg in the query"], ["/"]),
        ("spark", "count(*)", [], ["count"]),
        ("duckdb", "skewness(a) + a / 2", ["skewness in the query", "/ in the query"], []),
        ("duckdb", "cast(substring(s, 0, 1) AS int)", ["substring", "cast"], []),
        ("duckdb", "max(a)", [], ["max"]),
    ],
)
@pytest.mark.parametrize("to_spark", [True, False])
def test_a_plan_that_changes_the_engine_names_the_functions_concerned(dialect, expression, named, others, to_spark):
    """In both directions."""
    pytest.importorskip("exop_spark.slets.sql")
    app, query = Application("moved"), f"SELECT {expression} AS c FROM rows"
    settings = {"query": query, "columns": COLUMNS, "out_columns": "c double"}
    slets = [("duckdb:sql", {"dialect": dialect}), ("spark:sql", {})]
    (begin, own), (end, more) = slets if to_spark else slets[::-1]
    app.add("show", "stock:show", item=app.add("query", begin, rows=app.add("rows", nothing), **settings, **own))
    before = app.build()
    after = before.replace("query", SLETS[end], **more)
    notes = [
        note
        for spec in (before.nodes["query"].slet, after.nodes["query"].slet)
        if hasattr(spec.factory, "differences")
        for note in spec.factory.differences(before.nodes["query"], after.nodes["query"])
    ]
    text = "\n".join(notes)
    assert all(f"warning: query: {name}" in text or name in text for name in named)
    assert not any(f"query: {name} " in text for name in others)
    assert bool(named) == bool(notes)


def test_the_plan_of_the_platform_has_these_notes():
    """A change of the engine that is only planned needs no Spark."""
    pytest.importorskip("exop_spark.slets.sql")
    app = Application("planned")
    settings = {"query": "SELECT avg(a) AS c FROM rows", "columns": COLUMNS, "out_columns": "c double"}
    query = app.add("query", "duckdb:sql", rows=app.add("rows", nothing), dialect="spark", **settings)
    app.add("show", "stock:show", item=query)
    with Platform(control=False) as platform:
        mesh = platform.apply(app.build())
        plan = platform.plan(mesh.replace("query", SLETS["spark:sql"], lose_state=True))
        assert "warning: query: avg in the query differs between DuckDB and Spark" in str(plan)
