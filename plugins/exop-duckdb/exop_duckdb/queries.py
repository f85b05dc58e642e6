"""The front end: a query in the dialect of another engine, as statements of DuckDB."""

from __future__ import annotations

import logging
import re
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError

from exop.errors import QueryError

from . import spark

#: The column that stands for the window of a row; as long as the keyword, so that positions remain valid.
WINDOW: Final = "_exopw"
# It prints a line on statements that it does not know; the error says more.
logging.getLogger("sqlglot").setLevel(logging.ERROR)
#: The statements that a query may consist of, and those that declare its tables.
_QUERIES: Final = (exp.Query, exp.Insert, exp.Update, exp.Delete, exp.Merge)
_SECONDS: Final = {"second": 1, "minute": 60, "hour": 3600, "day": 86400, "week": 604800, "millisecond": 0.001}
_NAMED: Final = re.compile(r'column "([^"]+)"|named "([^"]+)"|near "([^"]+)"|[Nn]ame (\S+) does not exist')


@dataclass(frozen=True)
class Parsed:
    """A query in DuckDB's dialect.

    Attributes:
        statements: Its statements.
        selects: Whether the last one is a SELECT.
        seconds: The length of its tumbling windows; 0 if it has none.
    """

    statements: tuple[str, ...]
    selects: bool
    seconds: float


def parsed(text: str, dialect: str) -> Parsed:
    """Translate a query; `window(event, '10 seconds')`, as in Spark, becomes a column with `start` and `end`.

    Raises:
        QueryError: the query has a syntax error, or a statement that is no query.
    """
    trees = _trees(text, dialect)
    lengths = {_length(call) for tree in trees for call in tree.find_all(exp.Anonymous) if _is_window(call)}
    if len(lengths) > 1:
        raise QueryError(problem=f"its windows have several lengths ({', '.join(f'{one:g} s' for one in lengths)})")
    for tree in trees:
        if not isinstance(tree, _QUERIES):
            word = str(tree.this if isinstance(tree, (exp.Command, exp.Column)) else tree.key).upper()
            problem = f"{word} is not allowed; write SELECT, INSERT, UPDATE, DELETE or MERGE"
            raise QueryError(problem=problem, position=max(0, text.upper().find(word)))
    changed = [_with_column(tree) for tree in trees]
    if not trees:
        raise QueryError(problem="the query is empty", position=0)
    if dialect == spark.DIALECT:
        changed = [spark.translated(tree, text) for tree in changed]
    selects = isinstance(trees[-1], exp.Query)
    return Parsed(tuple(tree.sql("duckdb") for tree in changed), selects, lengths.pop() if lengths else 0)


def differences(text: str, dialect: str) -> dict[str, str]:
    """Return the functions and operators of a query for Spark that are not the same on DuckDB, and how they differ.

    There, the query is written in *dialect*.
    """
    try:
        trees = [_with_column(tree) for tree in _trees(text, spark.DIALECT)]
    except QueryError:  # Spark refuses it, and says why
        return {}
    found = dict[str, str]()
    for tree in trees:
        for name, how in spark.compared(tree, own=dialect != spark.DIALECT):
            found[name] = how if found.get(name, how) == how else f"{found[name]}; {how}"
    return found


def declared(text: str) -> tuple[str, ...]:
    """Return the statements that create the tables of the state.

    Raises:
        QueryError: one of them is no `CREATE TABLE`.
    """
    trees = _trees(text, "duckdb") if text.strip() else []
    for tree in trees:
        if not (isinstance(tree, exp.Create) and tree.kind == "TABLE"):
            raise QueryError(problem="nothing but CREATE TABLE is allowed", query=text, position=0)
    return tuple(tree.sql("duckdb") for tree in trees)


def position(text: str, problem: str) -> int | None:
    """Return the position of the name that a message of DuckDB quotes, in the text of the query."""
    found = _NAMED.search(problem)
    name = next(filter(None, found.groups()), "") if found is not None else ""
    at = text.lower().find(name.lower()) if name else -1
    return at if at >= 0 else None


def _trees(text: str, dialect: str) -> list[Any]:
    try:
        read = spark.AnsiSpark if dialect == spark.DIALECT else dialect
        trees = sqlglot.parse(_with_windows(text, dialect), read=read)
    except SqlglotError as error:
        facts = (getattr(error, "errors", None) or [{}])[0]
        at = None
        if facts.get("line"):
            above = sum(len(line) + 1 for line in text.split("\n")[: facts["line"] - 1])
            at = max(0, above + facts["col"] - len(facts["highlight"] or ""))
        problem = facts.get("description") or str(error).splitlines()[0]
        raise QueryError(problem=problem, position=at) from error
    except ValueError as error:  # of an unknown dialect
        raise QueryError(problem=str(error)) from error
    return [tree for tree in trees if tree is not None]


def _with_windows(text: str, dialect: str) -> str:
    """Rename `window` where it is a function or a column: sqlglot reads the word as the keyword of a clause."""
    tokens, letters = sqlglot.tokenize(text, read=dialect), list(text)
    for one, following in pairwise(tokens):
        if one.text.lower() == "window" and following.text in ("(", "."):
            quotes = (one.end + 1 - one.start - len(WINDOW)) // 2
            letters[one.start + quotes : one.end + 1 - quotes] = WINDOW
    return "".join(letters)


def _with_column(tree: Any) -> Any:
    """Return a query in which the window is a column."""
    return tree.transform(lambda node: exp.column(WINDOW) if _is_window(node) else node)


def _is_window(node: Any) -> bool:
    return isinstance(node, exp.Anonymous) and str(node.this).lower() == WINDOW


def _length(call: Any) -> float:
    """Return the seconds of `window(event, '10 seconds')`."""
    try:
        column, length = call.expressions
        number, unit = str(length.this).split()
        seconds = float(number) * _SECONDS[unit.lower().removesuffix("s")]
        if column.name.lower() != "event" or not 1e-6 <= seconds < 1e10:
            raise ValueError(seconds)
        return seconds
    except (ValueError, KeyError, AttributeError):
        shown = call.sql("duckdb").replace(WINDOW.upper(), "window")
        problem = f"{shown} is no tumbling window; write window(event, '10 seconds')"
        raise QueryError(problem=problem) from None
