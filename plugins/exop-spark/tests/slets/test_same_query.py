"""The functions and operators that `duckdb:sql` accepts in the dialect of Spark, compared with Spark."""

from __future__ import annotations

import math
from datetime import date, datetime
from typing import Any

import pyarrow as pa
import pytest
from exop_spark.session.engine import lease

duckdb = pytest.importorskip("duckdb")
spark_rules = pytest.importorskip("exop_duckdb.spark")
queries = pytest.importorskip("exop_duckdb.queries")

#: It compares hundreds of expressions on two engines: too long for `make test`.
pytestmark = [pytest.mark.spark, pytest.mark.edges]

COLUMNS = pa.schema(
    [
        *(("a", pa.int32()), ("b", pa.int32()), ("n", pa.int64()), ("s", pa.string()), ("x", pa.float64())),
        *(("t", pa.timestamp("us")), ("d", pa.date32()), ("k", pa.bool_()), ("f", pa.float32())),
    ]
)
VALUES = [
    (7, 2, 1, "Ab", 2.5, datetime(2024, 3, 31, 23, 59, 59, 999999), date(2024, 3, 31), True, 0.1),
    (-7, 2, -3, "b ", -2.7, datetime(1969, 12, 31, 23, 59, 59, 1), date(1969, 12, 31), False, -2.5),
    (1, None, 2**53 + 1, None, math.nan, None, None, None, None),
    (10, 3, 10**15, " 10", 0.5, datetime(1900, 1, 1), date(1900, 2, 28), True, 1e10),
    (0, -3, 0, "", -0.0, datetime(2000, 2, 29, 12), date(2000, 2, 29), True, 3.3),
    (5, 4, 6, "a\tb😀é", 1e300, datetime(2024, 12, 29), date(2024, 12, 29), False, 16777216.0),
    (8, 5, 2, "xbcbx", math.inf, datetime(9998, 12, 31, 23, 59, 59, 999999), date(9998, 12, 31), None, 0.0),
]
ROWS = pa.Table.from_pylist([dict(zip(COLUMNS.names, one, strict=True)) for one in VALUES], schema=COLUMNS)
#: Numbers that a whole number, or an exponent, can be made of.
SMALL = "if(abs(x) < 9, x, 0)"
EACH = f"""
a / b; x / 2; f / 3; x / (a * a + 1); a / (b * b + 1) * 2; a div b; -a div 2; n div 7; a % b; n % 7; a % -3; x % 3
a + n; a - (b + 1); (a + 1) * 2; f + f; a + 1.5; x * 1.5; a & b; a | b; a ^ b; a <=> b; a = b; a <> b; x > 1; x >= 0
x < 1; x <= 0; s = 'Ab'; s < 'b'; k and a > 0; k or a > 0; s is null; k is true; s in ('Ab', ''); a between 1 and 7
cast({SMALL} AS int); cast(f AS bigint); cast(n AS double); cast(a AS string); cast(k AS string); cast(d AS string)
cast(k AS int); cast(1.7 AS int); cast(' 12' AS int); cast(t AS date); cast('2024-01-05' AS date); cast(f AS double)
cast(cast(a AS string) AS int); a::string; try_cast(s AS int); try_cast(x AS int); try_cast(s AS double)
case when a > 1 then s else 'q' end; if(b is null, 1, 2); coalesce(b, a); nvl(b, -1); nullif(a, 7); greatest(a, b)
least(a, b); greatest(x, 1.0D); least(x, 0D); try_divide(a, b); try_divide(a, a - a); abs(a); abs(x); exists(select 1)
ceil({SMALL}); floor({SMALL}); ceil(n); floor(n); ceil(a); round(x); round(a); round(f); sqrt(x); ln(x); log(x); ln(a)
exp({SMALL}); pow(a, 2); power({SMALL}, 2); pow(0, -1); upper(s); lower(s); trim(s); length(s); concat(s, a)
concat(s, '-', n, k, d); s || a; substring(s, 0, 1); substring(s, 1, 2); substring(s, 2); substring(s, -1, 1)
substring(s, -9, 8); substring(s, 0); substring(s, 2, 0); substring(s, 2, -1); substr(s, a, 2); substring(s, a - 7, 3)
instr(s, 'b'); instr(s, ''); position('b' in s); locate('b', s, 3); startswith(s, 'A'); endswith(s, 'b')
contains(s, 'b'); contains('ab', ''); replace(s, 'b', '__'); replace(s, '', 'q'); initcap(s); s LIKE '%b%'; s LIKE '_b'
s NOT LIKE 'A%'; s RLIKE 'b'; s rlike 'b +'; s rlike '^[A-Z]b|x'; unix_seconds(t); unix_millis(t); unix_micros(t)
year(t); month(t); day(t); dayofmonth(t); hour(t); minute(t); second(t); dayofweek(t); year(d); dayofweek(d) * 2
datediff(d, date'2024-02-01'); date_add(d, 30); date_sub(d, 1); to_date(t); to_date(d); to_date('2024-01-05')
t + interval 1 day; t - interval 10 seconds; d > date'2000-01-01'; concat(a, '-', date_add(d, 1))
"""
TOGETHER = f"""
sum(a); sum(n); sum(x); sum(f); avg(a); avg(b); avg({SMALL}); avg(f); min(a); max(a); min(x); max(x); min(s); max(s)
min(t); max(d); count(*); count(b); count(distinct b); count_if(a > 1); first(s); first(b); bool_or(a > 8); bool_and(k)
count_if(a is null); stddev(a); stddev_samp(a); stddev_pop(a); variance(a); var_samp(b); var_pop(a); percentile(a, 0.5)
percentile(a, 0.9); percentile(b, 0.25); median(a); median({SMALL}); sum(a) filter (where b > 2); sum(a) / count(*)
concat(sum(a), ''); sum(a * 1.5); cast(avg(a) as int); round(avg(b))
"""
NUMBERED = "row_number() over (order by a); rank() over (order by b nulls first); dense_rank() over (order by b)"


def expressions(text: str) -> list[str]:
    """The expressions of a text."""
    return [one.strip() for line in text.strip().split("\n") for one in line.split(";") if one.strip()]


def values(table: pa.Table) -> list[list[Any]]:
    """The columns, without the last bits of numbers."""

    def plain(value: Any) -> Any:
        if isinstance(value, float):
            return "NaN" if math.isnan(value) else f"{value + 0.0:.12g}"  # -0.0 is 0.0
        return f"{float(value):.12g}" if isinstance(value, int) and not isinstance(value, bool) else value

    kinds = {pa.types.is_decimal: pa.float64(), pa.types.is_timestamp: pa.timestamp("us")}
    columns = []
    for column in table.columns:
        kind = next((to for holds, to in kinds.items() if holds(column.type)), column.type)
        columns.append([plain(one) for one in column.cast(kind).to_pylist()])
    return columns


@pytest.fixture(scope="module")
def session():
    """A session of Spark with the rows; of another Java, if a test has killed the one before."""
    share = lease()
    made = share.engine.session()
    with share.engine.building(made):  # otherwise it would remain the active session of this thread
        made.createDataFrame(ROWS).createOrReplaceTempView("rows")
        yield made
    share.release()


@pytest.mark.parametrize("text", [EACH, TOGETHER, NUMBERED])
def test_all_that_is_taken_as_the_same_is_the_same(session, text):
    """In one query over all values."""
    found = expressions(text)
    query = f"SELECT {', '.join(f'{one} AS c{n}' for n, one in enumerate(found))} FROM rows"
    base = duckdb.connect()
    base.register("rows", ROWS)
    base.execute(spark_rules.MACROS)
    here = base.sql(queries.parsed(query, "spark").statements[0]).to_arrow_table()
    for expression, one, other in zip(found, values(here), values(session.sql(query).toArrow()), strict=True):
        assert one == other, expression


def test_everything_that_is_taken_as_the_same_is_compared():
    """Each function and operator of the list is in an expression above."""
    import sqlglot

    found = set()
    for one in (one for text in (EACH, TOGETHER, NUMBERED) for one in expressions(text)):
        found |= {type(node) for node in sqlglot.parse_one(f"SELECT {one}", read=spark_rules.AnsiSpark).walk()}
    assert {kind.__name__ for kind in set(spark_rules._SAME) - found} == {"Dot"}  # of `window.end`
