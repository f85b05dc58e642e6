"""The functions of expressions by `pyarrow.compute`; where one has no entry for the given types, columns go by rows."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from exop.model.expressions import tree
from exop.model.expressions.branches import unified
from exop.model.expressions.forms import (
    ARROW,
    Form,
    Rows,
    by_rows,
    calculated,
    cast,
    chained,
    compared,
    joined,
    shared,
)
from exop.model.expressions.functions import FUNCTIONS
from exop.model.expressions.tree import Kind

#: The characters that `str.strip` removes; Arrow would leave some of them.
_SPACE: Final = "".join(chr(one) for one in range(0x3001) if chr(one).isspace())

#: The time, in microseconds since 1970, from which Arrow has no summer time.
_SUMMERS_END: Final = 2_114_380_800_000_000


def _form(kind: Kind, call: Callable[..., Any], *given: Form, total: bool = True, arrow: Any = None) -> Form:
    """A form that calls a function of Arrow."""
    total = total and all(one.total for one in given)
    return Form(kind, lambda rows: call(*[one.run(rows) for one in given]), total, arrow or ARROW[kind])


def _absolute(x: Form) -> Form | None:
    if x.kind not in ("int", "float"):
        return None
    return _form(x.kind, pc.abs_checked, x, total=x.kind == "float")


def _whole(call: Callable[[Any], Any], x: Form, *digits: Form) -> Form | None:
    """A float as an integer; NaN and infinite ones fail, as does what has more than 64 bits."""
    if digits or x.kind not in ("int", "float"):
        return None
    return x if x.kind == "int" else _form("int", lambda one: pc.cast(call(one), pa.int64()), x, total=False)


def _extreme(sign: str, *given: Form) -> Form | None:
    if not {one.kind for one in given} <= {"int", "float"}:
        return None
    kind, arrow, forms = unified(list(given))

    def first(found: Form, one: Form) -> Form:
        one = shared(one)
        return _form(kind, pc.if_else, compared(sign, found, one), found, one, arrow=arrow)

    return chained(forms[0], forms[1:], first)


def _cased(call: Callable[[Any], Any], name: str, x: Form) -> Form | None:
    """Small and capital letters: those beyond ASCII are the business of Python, which has the whole of Unicode."""
    if x.kind != "str":
        return None
    x = shared(x)
    rowwise = by_rows(FUNCTIONS[name].safe(), "str", x)

    def run(rows: Rows) -> Any:
        found = x.array(rows)
        ascii_only = pc.all(pc.string_is_ascii(found)).as_py() is not False
        return call(found) if ascii_only else rowwise.run(rows)

    return Form("str", run, x.total, ARROW["str"])


def _with_pattern(call: Callable[..., Any], x: Form, pattern: Form) -> Form | None:
    if x.kind != "str" or pattern.kind != "str" or not pattern.constant:
        return None
    return _form("bool", lambda one: call(one, pattern.constant[0]), x)


def _replaced(x: Form, old: Form, new: Form) -> Form | None:
    if x.kind != "str" or not (old.constant and new.constant) or {old.kind, new.kind} != {"str"}:
        return None
    before, after = old.constant[0], new.constant[0]
    if not before or len(after.encode()) > len(before.encode()):
        return None
    return _form("str", lambda one: pc.replace_substring(one, before, after), x)


def _of_time(name: str, call: Callable[[Any], Any], kinds: tuple[str, ...], x: Form) -> Form | None:
    """A part of a time, as the clock of its zone shows it; Arrow knows zones by name, and their summers until 2037."""
    if x.kind not in kinds or x.arrow is None or (x.kind == "datetime" and (x.arrow.tz or "").startswith(("+", "-"))):
        return None
    x = shared(x)
    form = _form("int", lambda one: pc.cast(call(one), pa.int64()), x)
    if x.kind == "date" or x.arrow.tz in (None, "UTC"):
        return form
    rowwise = by_rows(FUNCTIONS[name].safe(), "int", x)

    def run(rows: Rows) -> Any:
        latest = pc.max(pc.cast(x.array(rows), pa.int64())).as_py()
        return (rowwise if (latest or 0) >= _SUMMERS_END else form).run(rows)

    return Form("int", run, x.total, ARROW["int"])


def _seconds(kind: Kind, x: Form) -> Form | None:
    if x.kind != kind or x.arrow is None:
        return None
    return _form("float", lambda one: pc.divide(pc.cast(pc.cast(one, pa.int64()), pa.float64(), safe=False), 1e6), x)


def _bucket(x: Form, size: Form) -> Form | None:
    if not {x.kind, size.kind} <= {*tree.NUMERIC}:
        return None
    size = shared(size)
    return calculated("*", calculated("//", x, size), size)


def _day(x: Form) -> Form | None:
    return x if x.kind == "date" else None


def _text(x: Form) -> Form | None:
    return x if x.kind == "str" else _form("str", lambda one: pc.cast(one, pa.string()), x) if x.kind == "int" else None


def _length(x: Form) -> Form | None:
    return _form("int", lambda one: pc.cast(pc.utf8_length(one), pa.int64()), x) if x.kind == "str" else None


def _stripped(x: Form) -> Form | None:
    return _form("str", lambda one: pc.utf8_trim(one, characters=_SPACE), x) if x.kind == "str" else None


def _joined(*given: Form) -> Form | None:
    return joined(*given) if {one.kind for one in given} == {"str"} else None


def _real(x: Form) -> Form | None:
    return cast(x, "float") if x.kind in ("int", "float") else None


#: The forms by the names of functions.
KERNELS: Final[dict[str, Callable[..., Form | None]]] = {
    "abs": _absolute,
    "round": partial(_whole, lambda one: pc.round(one, round_mode="half_to_even")),
    "floor": partial(_whole, pc.floor),
    "ceil": partial(_whole, pc.ceil),
    "int": partial(_whole, pc.trunc),
    "float": _real,
    "min": partial(_extreme, "<="),
    "max": partial(_extreme, ">="),
    "bucket": _bucket,
    "str": _text,
    "len": _length,
    "lower": partial(_cased, pc.ascii_lower, "lower"),
    "upper": partial(_cased, pc.ascii_upper, "upper"),
    "strip": _stripped,
    "contains": partial(_with_pattern, pc.match_substring),
    "starts": partial(_with_pattern, pc.starts_with),
    "ends": partial(_with_pattern, pc.ends_with),
    "replace": _replaced,
    "concat": _joined,
    "date": _day,
    "timestamp": partial(_seconds, "datetime"),
    "seconds": partial(_seconds, "timedelta"),
    "weekday": partial(_of_time, "weekday", pc.day_of_week, ("datetime", "date")),
    **{name: partial(_of_time, name, getattr(pc, name), ("datetime", "date")) for name in ("year", "month", "day")},
    **{name: partial(_of_time, name, getattr(pc, name), ("datetime",)) for name in ("hour", "minute", "second")},
}
