"""Parts of an expression for columns: what Arrow computes, with the meaning of `values`.

Where Arrow has no function with that meaning, a part goes by rows: the function of `values` is called for each row.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from itertools import repeat
from typing import Any, Final, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from exop.model.expressions import tree, values
from exop.model.expressions.tree import Kind, kind_of_value, result_kind
from exop.model.expressions.values import EXACT

T = TypeVar("T")
#: The Arrow types of the results, by kind; those of times have the zone of the column.
ARROW: Final[dict[str, Any]] = {
    "bool": pa.bool_(),
    "int": pa.int64(),
    "float": pa.float64(),
    "str": pa.string(),
    "date": pa.date32(),
    "timedelta": pa.duration("us"),
    "none": pa.null(),
}
_COMPARE: Final = {
    "<": pc.less,
    "<=": pc.less_equal,
    "==": pc.equal,
    "!=": pc.not_equal,
    ">": pc.greater,
    ">=": pc.greater_equal,
}
_CALCULATE: Final = {"+": pc.add_checked, "-": pc.subtract_checked, "*": pc.multiply_checked, "/": pc.divide_checked}
_FLIPPED: Final = {"<": ">", "<=": ">=", ">": "<", ">=": "<=", "==": "==", "!=": "!="}


class Rows:
    """The columns of some rows: those of a batch, or those among them that a part of an expression reaches."""

    def __init__(self, count: int, column: Callable[[str], Any]) -> None:
        self.count = count
        self.memo: dict[Any, Any] = {}  # what several parts use
        self._column = column
        self._columns: dict[str, Any] = {}

    def column(self, name: str) -> Any:
        """Return a column."""
        if (found := self._columns.get(name)) is None:
            found = self._columns[name] = self._column(name)
        return found

    def where(self, mask: Any, count: int) -> Rows:
        """Return the *count* rows for which a mask is true."""
        return Rows(count, lambda name: self.column(name).filter(mask))


@dataclass(frozen=True)
class Form:
    """A part of an expression for columns of certain types.

    Attributes:
        kind: The kind of its values.
        run: Computes its values for some rows: an array or a scalar.
        total: Whether it cannot fail.
        arrow: The Arrow type of its values; `None`: not known before.
        constant: The value of a literal, in a tuple.
    """

    kind: Kind
    run: Callable[[Rows], Any]
    total: bool
    arrow: Any = None
    constant: tuple[Any, ...] = ()

    def array(self, rows: Rows) -> Any:
        """Return its values as an array."""
        found = self.run(rows)
        return pa.repeat(found, rows.count) if isinstance(found, pa.Scalar) else found

    def objects(self, rows: Rows) -> Iterable[Any]:
        """Return its values as those of Python."""
        if self.constant:
            return repeat(self.constant[0], rows.count)
        return self.array(rows).to_pylist()  # type: ignore[no-any-return]


def literal(value: Any) -> Form:
    """Return the form of a constant."""
    kind = kind_of_value(value)
    arrow = ARROW.get(kind) or (pa.timestamp("us", _zone(value)) if kind == "datetime" else None)
    if arrow is None:
        return Form(kind, lambda rows: pa.array([value] * rows.count), True, None, (value,))
    scalar = pa.scalar(value, arrow)
    return Form(kind, lambda _: scalar, True, arrow, (value,))


def _zone(value: Any) -> str | None:
    return None if value.tzinfo is None else "UTC"


def by_rows(call: Callable[..., Any], kind: Kind, *given: Form) -> Form:
    """Return the form that calls a function of Python values for each row."""
    arrow = ARROW.get(kind)

    def run(rows: Rows) -> Any:
        found = (
            [call(*row) for row in zip(*[one.objects(rows) for one in given], strict=True)]
            if given
            else [call()] * rows.count
        )
        return listed(found, arrow)

    return Form(kind, run, False, arrow)


def shared(form: Form) -> Form:
    """Return a form that is computed once for some rows, however many parts use it."""
    if form.constant:
        return form

    def run(rows: Rows) -> Any:
        if (found := rows.memo.get(run)) is None:
            found = rows.memo[run] = form.run(rows)
        return found

    return replace(form, run=run)


def chained(first: Form, others: Sequence[T], combine: Callable[[Form, T], Form]) -> Form:
    """Combine forms from left to right, such that a long sum is not a deep recursion."""
    if not others:
        return first
    forms, key = [first], object()
    for one in others:
        left = forms[-1]
        slot = left if left.constant else replace(left, run=lambda rows: rows.memo[key])
        forms.append(combine(slot, one))

    def run(rows: Rows) -> Any:
        for form in forms:
            rows.memo[key] = found = form.run(rows)
        return found

    return replace(forms[-1], run=run, constant=())


def cast(form: Form, kind: Kind, *, safe: bool = False) -> Form:
    """Return a number as one of another kind; with *safe*, integers beyond 2**53 cannot become floats."""
    if form.kind == kind:
        return form
    if form.constant and not safe:
        return literal((float if kind == "float" else int)(form.constant[0]))
    arrow = ARROW[kind]

    def run(rows: Rows) -> Any:
        if safe and not _exact(found := form.run(rows)):
            raise OverflowError("an integer is beyond 2**53, and would have to become a float to share a column")
        return pc.cast(found if safe else form.run(rows), arrow, safe=False)

    return Form(kind, run, form.total and not safe, arrow)


def calculated(sign: str, left: Form, right: Form) -> Form:
    """Return the form of an arithmetic operation."""
    kind = result_kind(sign, left.kind, right.kind) or "any"
    total = left.total and right.total
    if left.kind in tree.NUMERIC and right.kind in tree.NUMERIC:
        if sign == "/" and "float" not in (left.kind, right.kind):
            return _quotient(cast(left, "int"), cast(right, "int"))
        number: Kind = "float" if kind == "float" else "int"
        left, right = cast(left, number), cast(right, number)
        if sign in ("//", "%"):
            call = partial(_divided, sign) if number == "int" else partial(_float_divided, sign)
        else:
            call = _CALCULATE[sign]
        safe = total and number == "float" and sign in "+-*"
        return Form(number, lambda rows: call(left.run(rows), right.run(rows)), safe, ARROW[number])
    if left.kind == right.kind == "str" and sign == "+":
        return joined(left, right)
    if left.kind == right.kind == "datetime" and (pair := _zoned(left, right)) is not None:
        a, b = pair
        return Form("timedelta", lambda rows: pc.subtract_checked(a.run(rows), b.run(rows)), False, ARROW["timedelta"])
    return by_rows(values.CALCULATIONS[sign], kind, left, right)


def _quotient(left: Form, right: Form) -> Form:
    """`/` of integers: Python divides those beyond 2**53 exactly, too."""
    left, right = shared(left), shared(right)
    rowwise = by_rows(values.CALCULATIONS["/"], "float", left, right)
    a, b = cast(left, "float"), cast(right, "float")

    def run(rows: Rows) -> Any:
        exact = _exact(left.run(rows)) and _exact(right.run(rows))
        return pc.divide_checked(a.run(rows), b.run(rows)) if exact else rowwise.run(rows)

    return Form("float", run, False, ARROW["float"])


def joined(*forms: Form) -> Form:
    """Return the form of texts behind each other."""
    total = all(one.total for one in forms)
    return Form(
        "str", lambda rows: pc.binary_join_element_wise(*[one.run(rows) for one in forms], ""), total, ARROW["str"]
    )


def _divided(sign: str, a: Any, b: Any) -> Any:
    """Floor division and modulo of integers: Arrow divides towards zero, and has no modulo."""
    if isinstance(b, pa.Scalar) and (b.as_py() or 0) > 0:
        below = pc.multiply(quotient := pc.divide_checked(a, b), b)
        if sign == "//":
            return pc.subtract(quotient, pc.cast(pc.less(a, below), pa.int64()))
        rest = pc.subtract(a, below)
        return pc.if_else(pc.less(rest, 0), pc.add(rest, b), rest)
    if sign == "%":  # the least integer cannot be divided by -1, but has the rest 0
        b = pc.if_else(pc.equal(b, -1), 1, b)
    quotient = pc.divide_checked(a, b)
    rest = pc.subtract(a, pc.multiply(quotient, b))
    off = pc.and_(pc.not_equal(rest, 0), pc.xor(pc.less(rest, 0), pc.less(b, 0)))
    if sign == "//":
        return pc.subtract(quotient, pc.cast(off, pa.int64()))
    return pc.if_else(off, pc.add(rest, b), rest)


def _float_divided(sign: str, a: Any, b: Any) -> Any:
    """Likewise of floats: NumPy has the algorithm of Python."""
    import numpy as np

    valid = pc.and_(pc.is_valid(a), pc.is_valid(b))
    if pc.any(pc.and_(pc.equal(pc.fill_null(b, 1.0), 0.0), valid)).as_py():
        raise ZeroDivisionError("float division by zero")
    divide: Any = np.floor_divide if sign == "//" else np.remainder
    with np.errstate(all="ignore"):
        found = divide(*map(_floats_of, (a, b)))
    if isinstance(valid, pa.Scalar):
        return pa.scalar(float(found) if valid.as_py() else None, pa.float64())
    return pc.if_else(valid, pa.array(found), pa.scalar(None, pa.float64()))


def _floats_of(values: Any) -> Any:
    """Floats as those of NumPy, with NaN for NULL."""
    if isinstance(values, pa.Scalar):
        return float("nan") if (one := values.as_py()) is None else one
    return values.to_numpy(zero_copy_only=False)


def negated(form: Form) -> Form:
    """Return the form of `-x`."""
    if form.kind not in tree.NUMERIC:
        return by_rows(values.negative, form.kind, form)
    number = cast(form, "int") if form.kind == "bool" else form
    total = number.total and number.kind == "float"
    return Form(number.kind, lambda rows: pc.negate_checked(number.run(rows)), total, number.arrow)


def compared(sign: str, left: Form, right: Form) -> Form:
    """Return the form of a comparison."""
    kinds = {left.kind, right.kind}
    if (kinds <= {"int", "bool"} and kinds != {"bool"}) or (kinds == {"bool"} and sign not in ("==", "!=")):
        left, right = cast(left, "int"), cast(right, "int")
    elif kinds <= {*tree.NUMERIC} and kinds != {"bool"}:
        return _compared_floats(sign, left, right)
    elif kinds == {"datetime"}:
        if (pair := _zoned(left, right)) is None:
            return by_rows(values.COMPARISONS[sign], "bool", left, right)
        left, right = pair
    elif len(kinds) > 1 or not kinds & {"str", "date", "timedelta", "bool"}:
        return by_rows(values.COMPARISONS[sign], "bool", left, right)
    return _comparison(_COMPARE[sign], left, right)


def _comparison(call: Callable[[Any, Any], Any], left: Form, right: Form) -> Form:
    total = left.total and right.total
    return Form("bool", lambda rows: call(left.run(rows), right.run(rows)), total, ARROW["bool"])


def _zoned(left: Form, right: Form) -> tuple[Form, Form] | None:
    """Two times such that Arrow compares their instants; `None` if only one has a zone, or if that is not known."""
    if left.arrow is None or right.arrow is None or (left.arrow.tz is None) != (right.arrow.tz is None):
        return None
    if left.arrow == right.arrow:
        return left, right
    target = left.arrow
    return left, Form("datetime", lambda rows: pc.cast(right.run(rows), target), right.total, target)


def _compared_floats(sign: str, left: Form, right: Form) -> Form:
    """NaN is equal to itself, and greater than all others; integers and floats are compared exactly, as in Python."""
    if left.constant and not right.constant:
        return _compared_floats(_FLIPPED[sign], right, left)
    if right.constant and (value := right.constant[0]) == value:
        if left.kind == "float" and value == float(value):
            return _comparison(partial(_with_number, sign), left, literal(float(value)))
        if left.kind != "float" and not left.constant and math.isfinite(value):
            # x < 2.5 is x < 3, and x <= 2.5 is x <= 2
            whole = math.ceil(value) if sign in ("<", ">=") else math.floor(value)
            if whole == value or sign not in ("==", "!="):
                return (
                    compared(sign, left, literal(whole))
                    if abs(whole) < 2**63
                    else by_rows(values.COMPARISONS[sign], "bool", left, right)
                )
    left, right = shared(left), shared(right)
    rowwise = by_rows(values.COMPARISONS[sign], "bool", left, right)
    whole_numbers = [one for one in (left, right) if one.kind == "int"]
    a, b = cast(left, "float"), cast(right, "float")
    total = left.total and right.total

    def run(rows: Rows) -> Any:
        if not all(_exact(one.run(rows)) for one in whole_numbers):
            return rowwise.run(rows)
        return _floats(sign, a.run(rows), b.run(rows))

    return Form("bool", run, total, ARROW["bool"])


def _exact(numbers: Any) -> bool:
    """Whether each of these integers has a float."""
    found = [numbers.as_py()] if isinstance(numbers, pa.Scalar) else pc.min_max(numbers).as_py().values()
    return all(one is None or -EXACT <= one <= EXACT for one in found)


def _with_number(sign: str, a: Any, number: Any) -> Any:
    """The comparison with a number that is not NaN."""
    if sign == ">":
        return pc.invert(pc.less_equal(a, number))
    return pc.invert(pc.less(a, number)) if sign == ">=" else _COMPARE[sign](a, number)


def _floats(sign: str, a: Any, b: Any) -> Any:
    if sign in ("<", "<="):
        return _floats(_FLIPPED[sign], b, a)
    if sign == ">":
        return pc.and_(pc.invert(pc.less_equal(a, b)), pc.equal(b, b))
    if sign == ">=":
        return pc.or_(pc.greater_equal(a, b), pc.not_equal(a, a))
    same = pc.or_(pc.equal(a, b), pc.and_(pc.not_equal(a, a), pc.not_equal(b, b)))
    return same if sign == "==" else pc.invert(same)


def is_among(form: Form, known: list[Any]) -> Form:
    """Return whether a value is one of some constants of its kind."""
    among, unknown = pa.array(known, form.arrow), pa.scalar(None, pa.bool_())

    def run(rows: Rows) -> Any:
        found = form.array(rows)
        inside = pc.is_in(found, among)
        return pc.if_else(pc.is_valid(found), inside, unknown) if found.null_count else inside

    return Form("bool", run, form.total, ARROW["bool"])


def listed(found: list[Any], arrow: Any) -> Any:
    """Return values as an array; fail if no type of column has all of them."""
    try:
        if len({one.tzinfo is None for one in found if isinstance(one, datetime)}) > 1:
            raise pa.ArrowTypeError("some times have a zone, others have none")
        return pa.array(found, arrow)
    except (pa.ArrowInvalid, pa.ArrowTypeError) as problem:
        shown = ", ".join(sorted({type(one).__name__ for one in found}))
        raise TypeError(f"no column can hold all values, which are {shown}: {problem}") from problem
