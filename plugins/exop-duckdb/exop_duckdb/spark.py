"""Spark's meaning of a query on DuckDB: what is not the same is translated, or refused.

sqlglot translates the names of functions, which is not enough: DuckDB divides by zero, rounds where Spark cuts, and
counts characters from another position. A query in the dialect `spark` therefore consists of functions and operators of
which it is known that they give the same on both engines.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

from sqlglot import exp
from sqlglot.dialects.spark import Spark

from exop.errors import QueryError

DIALECT: Final = "spark"
#: The functions and operators that are the same, or become so by `translated`.
_SAME: Final = (
    *(exp.And, exp.Or, exp.EQ, exp.NEQ, exp.GT, exp.GTE, exp.LT, exp.LTE, exp.Is, exp.NullSafeEQ, exp.Dot),
    *(exp.Add, exp.Sub, exp.Mul, exp.Div, exp.Mod, exp.IntDiv, exp.BitwiseAnd, exp.BitwiseOr, exp.BitwiseXor),
    *(
        exp.Cast,
        exp.TryCast,
        exp.SafeDivide,
        exp.Case,
        exp.Exists,
        exp.If,
        exp.Coalesce,
        exp.Nullif,
        exp.Greatest,
        exp.Least,
    ),
    *(exp.Abs, exp.Ceil, exp.Floor, exp.Round, exp.Sqrt, exp.Ln, exp.Exp, exp.Pow),
    *(exp.Upper, exp.Lower, exp.Trim, exp.Length, exp.Concat, exp.DPipe, exp.Substring, exp.StrPosition),
    *(exp.StartsWith, exp.EndsWith, exp.Contains, exp.Replace, exp.Initcap, exp.Like, exp.RegexpLike),
    *(
        exp.UnixSeconds,
        exp.UnixMillis,
        exp.UnixMicros,
        exp.Year,
        exp.Month,
        exp.Day,
        exp.DayOfMonth,
        exp.Hour,
        exp.Minute,
    ),
    *(exp.Second, exp.DayOfWeek, exp.DateDiff, exp.TsOrDsAdd, exp.TsOrDsToDate),
    *(exp.Count, exp.CountIf, exp.Sum, exp.Avg, exp.Min, exp.Max, exp.First, exp.LogicalAnd, exp.LogicalOr),
    *(exp.Stddev, exp.StddevSamp, exp.StddevPop, exp.Variance, exp.VariancePop, exp.Quantile, exp.Median),
    *(exp.RowNumber, exp.Rank, exp.DenseRank),
)
#: The functions whose results differ a little, and how.
_NEARLY: Final[dict[Any, str]] = {
    **dict.fromkeys((exp.Avg, exp.Exp, exp.Ln, exp.Pow, exp.Sum), "in the last bits of a double"),
    **dict.fromkeys((exp.Stddev, exp.StddevSamp, exp.StddevPop), "in the last bits of a double"),
    **dict.fromkeys((exp.Variance, exp.VariancePop, exp.Quantile, exp.Median), "in the last bits of a double"),
    **dict.fromkeys((exp.Upper, exp.Lower, exp.Initcap), "for some letters outside ASCII"),
}
#: What those that are translated mean in DuckDB's own SQL.
_OWN: Final[dict[Any, str]] = {
    **dict.fromkeys(
        (exp.Div, exp.Mod, exp.IntDiv), "DuckDB does not refuse every division by zero, and has other types"
    ),
    **dict.fromkeys((exp.Cast, exp.TryCast), "DuckDB rounds a number that becomes a whole one, and reads other texts"),
    **dict.fromkeys((exp.Concat, exp.DPipe), "DuckDB writes numbers and times as other texts, and skips nulls"),
    **dict.fromkeys((exp.Add, exp.Sub, exp.Mul), "a float and a whole number are a double on Spark"),
    exp.Substring: "DuckDB counts the position 0, and a negative length, in another way",
    exp.Ln: "DuckDB refuses a number below zero, for which Spark returns null",
    exp.DayOfWeek: "DuckDB counts from 0",
    **dict.fromkeys((exp.UnixSeconds, exp.UnixMillis), "DuckDB rounds parts of the unit"),
    exp.Quantile: "DuckDB returns one of the values, and Spark one between them",
}
#: The signs of operators.
_SIGNS: Final = {
    exp.Div: "/",
    exp.Mod: "%",
    exp.IntDiv: "div",
    exp.DPipe: "||",
    exp.Add: "+",
    exp.Sub: "-",
    exp.Mul: "*",
    exp.Cast: "cast",
    exp.TryCast: "try_cast",
    exp.Like: "like",
    exp.RegexpLike: "rlike",
    exp.BitwiseXor: "^",
    exp.Bracket: "[…]",
}
_CURE: Final = (
    "write it with other functions (the README of exop-duckdb lists them), keep the query on `spark:sql`, or write it "
    "in DuckDB's SQL, with dialect='duckdb'"
)
_WHOLE: Final = ("TINYINT", "SMALLINT", "INT", "BIGINT")
_FLOATING: Final = ("FLOAT", "DOUBLE")
_TEXT: Final = ("TEXT", "VARCHAR")
_TARGETS: Final = (*_WHOLE, *_FLOATING, *_TEXT, "DATE")
#: The units of a time in whole numbers, in microseconds.
_UNITS: Final[dict[Any, int]] = {exp.UnixSeconds: 1_000_000, exp.UnixMillis: 1_000, exp.UnixMicros: 1}
#: A pattern that Java and RE2 read in the same way.
_PATTERN: Final = re.compile(r"[\w \-()|+*?^,:;/@#%&=<>!~'\"]*(\[\^?[\w \-]+\][\w \-()|+*?,:;/@#%&=<>!~'\"]*)*\Z")
#: What Spark's operators are on DuckDB. `typeof` is known before the query runs, and costs nothing.
MACROS: Final = """
CREATE MACRO _exop_decimal(x) AS typeof(x) LIKE 'DECIMAL%';
CREATE MACRO _exop_floating(x) AS typeof(x) IN ('DOUBLE', 'FLOAT');
CREATE MACRO _exop_whole_and_float(x, y) AS typeof(x) LIKE '%INT%' AND typeof(y) = 'FLOAT';
CREATE MACRO _exop_nonzero(x) AS
    CASE WHEN x = 0 THEN error('division by zero; use try_divide, or nullif(…, 0)') ELSE x END;
CREATE MACRO _exop_divide(x, y) AS
    CASE WHEN (_exop_decimal(x) OR _exop_decimal(y)) AND NOT (_exop_floating(x) OR _exop_floating(y))
    THEN error('Spark rounds the quotient of decimals; divide by a double (1.5D)')
    ELSE CAST(x AS DOUBLE) / _exop_nonzero(CAST(y AS DOUBLE)) END;
CREATE MACRO _exop_alike(x, y) AS
    CASE WHEN _exop_whole_and_float(x, y) OR _exop_whole_and_float(y, x)
    THEN error('on Spark, a float and a whole number make a double; cast the float to double') ELSE x END;
CREATE MACRO _exop_only_whole(x) AS
    CASE WHEN typeof(x) NOT LIKE '%INT%' THEN error('div is the same only for whole numbers; use cast') ELSE x END;
CREATE MACRO _exop_binary(x) AS
    CASE WHEN _exop_decimal(x) THEN error('Spark rounds the mean of decimals; multiply by a double (1.5D)') ELSE x END;
CREATE MACRO _exop_ceil(x) AS
    CASE WHEN _exop_floating(x) OR _exop_decimal(x) THEN CAST(ceil(x) AS BIGINT) ELSE CAST(x AS BIGINT) END;
CREATE MACRO _exop_floor(x) AS
    CASE WHEN _exop_floating(x) OR _exop_decimal(x) THEN CAST(floor(x) AS BIGINT) ELSE CAST(x AS BIGINT) END;
CREATE MACRO _exop_text_of(x) AS CASE WHEN typeof(x) = 'VARCHAR' THEN CAST(x AS VARCHAR) ELSE '0' END;
CREATE MACRO _exop_digits(x) AS regexp_full_match(trim(_exop_text_of(x)), '[+-]?[0-9]+');
CREATE MACRO _exop_cut(x) AS
    CASE WHEN _exop_floating(x) OR _exop_decimal(x) THEN TRY_CAST(trunc(TRY_CAST(x AS DOUBLE)) AS HUGEINT)
    WHEN typeof(x) = 'VARCHAR' THEN TRY_CAST(trim(CAST(x AS VARCHAR)) AS HUGEINT) ELSE TRY_CAST(x AS HUGEINT) END;
CREATE MACRO _exop_whole(x) AS
    CASE WHEN x IS NOT NULL AND (NOT _exop_digits(x) OR _exop_cut(x) IS NULL)
    THEN error('not a whole number: ' || CAST(x AS VARCHAR) || '; use try_cast') ELSE _exop_cut(x) END;
CREATE MACRO _exop_try_whole(x) AS CASE WHEN _exop_digits(x) THEN _exop_cut(x) END;
CREATE MACRO _exop_number(x) AS
    CASE WHEN contains(_exop_text_of(x), '_') THEN error('not a number: ' || CAST(x AS VARCHAR) || '; use try_cast')
    ELSE x END;
CREATE MACRO _exop_try_number(x) AS
    CASE WHEN regexp_full_match(trim(_exop_text_of(x)), '.*[0-9.][dDfF]')
    THEN error('Spark reads a number from ' || CAST(x AS VARCHAR) || ', and DuckDB does not; remove its last letter')
    WHEN NOT contains(_exop_text_of(x), '_') THEN x END;
CREATE MACRO _exop_epoch(t, unit) AS (epoch_us(t) - (epoch_us(t) % unit + unit) % unit) // unit;
CREATE MACRO _exop_first(n) AS CASE WHEN n = 0 THEN 1 ELSE n END;
CREATE MACRO _exop_least(n) AS CASE WHEN n < 0 THEN 0 ELSE n END;
CREATE MACRO _exop_text(x) AS
    CASE WHEN _exop_floating(x) OR typeof(x) LIKE 'TIMESTAMP%' OR typeof(x) = 'BLOB'
    THEN error('Spark writes a ' || typeof(x) || ' as another text; cast it to another type first')
    ELSE CAST(x AS VARCHAR) END;
"""


class AnsiSpark(Spark):
    """The dialect of Spark in ANSI mode, in which a cast that is not possible is an error."""

    class Parser(Spark.Parser):  # type: ignore[misc, valid-type]
        """The parser."""

        STRICT_CAST = True


def name_of(node: Any) -> str:
    """Return how a function or operator is called in Spark's SQL."""
    if type(node) in _SIGNS:
        return _SIGNS[type(node)]
    if isinstance(node, exp.Anonymous):
        return str(node.name).lower()
    text = node.sql(DIALECT)
    found = re.match(r"\w+(?=\()", text)
    return found[0].lower() if found else type(node).__name__.lower()


def differing(tree: Any) -> Iterator[tuple[str, str]]:
    """Return what is not the same on both engines in a query, as it is written for Spark: its name, and why."""
    for node in tree.walk():
        if isinstance(node, (exp.Func, exp.Binary, exp.Bracket, exp.In)) and (problem := _problem(node)):
            yield name_of(node), problem


def compared(tree: Any, *, own: bool) -> Iterator[tuple[str, str]]:
    """Return the functions and operators of a query that may give something else on DuckDB, and how they differ.

    With *own*, they have DuckDB's own meaning there, since they are not `translated`.
    """
    yield from differing(tree)
    for node in tree.walk():
        for known in (_NEARLY, _OWN) if own else (_NEARLY,):
            if type(node) in known:
                yield name_of(node), known[type(node)]


def translated(tree: Any, text: str) -> Any:
    """Return a query with Spark's meaning on a DuckDB that has `MACROS`.

    Raises:
        QueryError: it has a function or an operator that is not the same.
    """
    for name, problem in differing(tree):
        at = text.lower().find(name)
        raise QueryError(problem=f"{name}: {problem}; {_CURE}", position=at if at >= 0 else None)
    for node in reversed(list(tree.walk())):
        if node is not (other := _on_duckdb(node)):
            node.replace(other)
    return tree


def _problem(node: Any) -> str:
    """Return why a function or operator may give something else on DuckDB; empty if it gives the same."""
    if isinstance(node, exp.In):
        return "in a query, Spark and DuckDB treat nulls differently" if node.args.get("query") is not None else ""
    if type(node) not in _SAME:
        return "it is not known to give the same on DuckDB as on Spark"
    if isinstance(node, exp.Cast) and _target(node) not in _TARGETS:
        return f"a cast to {node.to.sql(DIALECT)} gives something else on DuckDB"
    if isinstance(node, exp.TryCast) and _target(node) == "DATE":
        return "Spark reads a date from more texts than DuckDB"
    if isinstance(node, exp.TsOrDsToDate) and node.args.get("format") is not None:
        return "its formats are others on DuckDB"
    if isinstance(node, exp.Round) and node.args.get("decimals") is not None:
        return "with decimals, DuckDB rounds the binary number, and Spark the decimal one"
    if isinstance(node, (exp.Like, exp.RegexpLike)):
        pattern = node.expression
        plain = isinstance(pattern, exp.Literal) and "\\" not in pattern.this
        if not plain or (isinstance(node, exp.RegexpLike) and not _PATTERN.match(pattern.this)):
            return "DuckDB may read this pattern in another way"
    if isinstance(node, exp.Quantile) and not isinstance(node.args.get("quantile"), exp.Literal):
        return "its second argument is not one number"
    if isinstance(node, exp.Trim) and (node.expression is not None or node.args.get("position")):
        return "it is the same only with one argument"
    return ""


def _target(node: Any) -> str:
    return str(node.to.this.value)


def _on_duckdb(node: Any) -> Any:
    """Return what takes the place of a node, whose parts are translated; the node itself if it stays."""
    match node:
        case exp.Div():
            return _call("divide", node.this, node.expression)
        case exp.Add() | exp.Sub() | exp.Mul():
            node.set("this", _call("alike", node.this, node.expression.copy()))
        case exp.CountIf():
            return exp.Count(this=exp.If(this=node.this, true=exp.Literal.number(1)))
        case exp.IntDiv():
            node.set("this", _call("only_whole", node.this))
            node.set("expression", _call("nonzero", _call("only_whole", node.expression)))
        case exp.Mod():
            node.set("this", _call("alike", node.this, node.expression.copy()))
            node.set("expression", _call("nonzero", node.expression))
        case exp.SafeDivide():
            return exp.If(
                this=exp.NEQ(this=node.expression.copy(), expression=exp.Literal.number(0)),
                true=_call("divide", node.this, node.expression),
            )
        case exp.TryCast() if _target(node) in _WHOLE:
            node.set("this", _call("try_whole", node.this))
        case exp.TryCast() if _target(node) in _FLOATING:
            node.set("this", _call("try_number", node.this))
        case exp.Cast() if _target(node) in _WHOLE:
            node.set("this", _call("whole", node.this))
        case exp.Cast() if _target(node) in _FLOATING:
            node.set("this", _call("number", node.this))
        case exp.Cast() if _target(node) in _TEXT:
            return _call("text", node.this)
        case exp.Concat():
            node.set("expressions", [_call("text", one) for one in node.expressions])
        case exp.DPipe():
            node.set("this", _call("text", node.this))
            node.set("expression", _call("text", node.expression))
        case exp.Substring() if node.args.get("start") is not None:
            node.set("start", _call("first", node.args["start"]))
            if node.args.get("length") is not None:
                node.set("length", _call("least", node.args["length"]))
        case exp.Ln():
            positive = exp.GT(this=node.this.copy(), expression=exp.Literal.number(0))
            return exp.If(this=positive, true=node.copy())
        case exp.Ceil() | exp.Floor():
            return _call(node.key, node.this)
        case exp.TsOrDsToDate():
            return exp.Cast(this=node.this, to=exp.DataType.build("DATE"))
        case exp.TsOrDsAdd():
            return exp.Cast(this=node.copy(), to=exp.DataType.build("DATE"))
        case exp.Avg() | exp.Median():
            node.set("this", _call("binary", node.this))
        case exp.UnixSeconds() | exp.UnixMillis() | exp.UnixMicros():
            return _call("epoch", node.this, exp.Literal.number(_UNITS[type(node)]))
        case exp.DayOfWeek():
            return exp.Paren(this=exp.Add(this=node.copy(), expression=exp.Literal.number(1)))
        case exp.Quantile():
            return exp.Anonymous(this="quantile_cont", expressions=[_call("binary", node.this), node.args["quantile"]])
    return node


def _call(name: str, *parts: Any) -> Any:
    """Return a call of one of `MACROS`."""
    return exp.Anonymous(this=f"_exop_{name}", expressions=[*parts])
