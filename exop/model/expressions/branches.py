"""Parts of an expression for columns that do not compute all of their parts for all rows: logic, `if`, `coalesce`."""

from __future__ import annotations

from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from exop.model.expressions import values
from exop.model.expressions.forms import ARROW, Form, Rows, by_rows, cast, chained, listed
from exop.model.expressions.tree import TYPES, Kind, common, kind_of


def logical(form: Form) -> Form:
    """Return a form that is a Boolean; rows with other values fail."""
    if form.kind == "bool":
        return form
    if form.kind == "none" and form.total:
        return Form("bool", lambda rows: pa.scalar(None, pa.bool_()), True, ARROW["bool"])
    return by_rows(values.truth, "bool", form)


def combined(every: bool, left: Form, right: Form) -> Form:
    """Return `left and right`, `left or right`; the right one is computed where the left one does not decide."""
    call = pc.and_kleene if every else pc.or_kleene
    if right.total:
        total = left.total
        return Form("bool", lambda rows: call(left.run(rows), right.run(rows)), total, ARROW["bool"])

    def run(rows: Rows) -> Any:
        found = left.array(rows)
        open_ = pc.fill_null(found if every else pc.invert(found), True)
        if (count := open_.true_count) == rows.count:
            return call(found, right.run(rows))
        if not count:
            return found
        reached = call(found.filter(open_), right.run(rows.where(open_, count)))
        return pc.replace_with_mask(found, open_, reached)

    return Form("bool", run, False, ARROW["bool"])


def unified(forms: list[Form]) -> tuple[Kind, Any, list[Form]]:
    """Return the common kind and Arrow type of several forms, and these as forms of it."""
    kinds = [one.kind for one in forms if one.kind != "none"]
    kind = kind_of(common(TYPES.get(one, TYPES["any"]) for one in kinds) or TYPES["any"])
    if kind == "float":
        forms = [cast(one, "float", safe=True) if one.kind == "int" else one for one in forms]
    found = {str(one.arrow): one.arrow for one in forms if one.kind != "none"}
    if kind == "datetime" and None not in found.values() and len({one.tz is None for one in found.values()}) == 1:
        target = next(iter(found.values()))
        forms = [one if one.arrow == target or one.kind == "none" else _retyped(one, target) for one in forms]
        found = {str(target): target}
    arrow = next(iter(found.values())) if len(found) == 1 else ARROW["none"] if not found else None
    if arrow is not None:
        forms = [_retyped(one, arrow) if one.kind == "none" != kind else one for one in forms]
    return kind if found else "none", arrow, forms


def _retyped(form: Form, arrow: Any) -> Form:
    return Form(form.kind, lambda rows: pc.cast(form.run(rows), arrow), form.total, arrow)


def chosen(cases: list[tuple[Form, Form]], otherwise: Form) -> Form:
    """Return the form of `x if condition else y`: a value is computed for the rows alone that are given it."""
    kind, arrow, forms = unified([*[value for _, value in cases], otherwise])
    tests, last = [test for test, _ in cases], forms.pop()
    total = all(one.total for one in (*tests[1:], *forms, last))
    run = partial(
        _at_once if total and _merges(arrow) else _case_by_case, [*zip(tests, forms, strict=True)], last, arrow
    )
    return Form(kind, run, total and tests[0].total, arrow)


def _holding(mask: Any) -> Any:
    """The rows for which a condition holds: NULL does not."""
    return pc.fill_null(mask, False) if mask.null_count else mask


def _at_once(cases: list[tuple[Form, Form]], otherwise: Form, _: Any, rows: Rows) -> Any:
    found = otherwise.run(rows)
    for test, value in reversed(cases):
        found = pc.if_else(_holding(test.array(rows)), value.run(rows), found)
    return found


def _case_by_case(cases: list[tuple[Form, Form]], otherwise: Form, arrow: Any, rows: Rows) -> Any:
    pieces: list[tuple[Any, Any, Any]] = []
    for test, value in cases:
        mask = _holding(test.array(rows))
        if (count := mask.true_count) == rows.count:
            otherwise = value
            break
        if count:
            others = pc.invert(mask)
            pieces.append((mask, others, value.array(rows.where(mask, count))))
            rows = rows.where(others, rows.count - count)
    found = otherwise.array(rows)
    for mask, others, value in reversed(pieces):
        found = _merged(mask, others, value, found, arrow)
    return found


def _merges(arrow: Any) -> bool:
    return arrow is not None and not pa.types.is_nested(arrow) and not pa.types.is_null(arrow)


def _merged(mask: Any, others: Any, a: Any, b: Any, arrow: Any) -> Any:
    """Return the values of *a* at the rows of a mask, and those of *b* at the others."""
    if _merges(arrow) and isinstance(a, pa.Array) and isinstance(b, pa.Array):
        plain = pa.int64() if pa.types.is_duration(arrow) else arrow  # which the function does not know
        base = pc.replace_with_mask(pa.nulls(len(mask), plain), others, b.view(plain))
        return pc.replace_with_mask(base, mask, a.view(plain)).view(arrow)
    then, otherwise = iter(a.to_pylist()), iter(b.to_pylist())
    return listed([next(then) if one else next(otherwise) for one in mask.to_pylist()], arrow)


def first_of(forms: list[Form]) -> Form:
    """Return the form of `coalesce`: a further value is computed for the rows alone that have none yet."""
    kind, arrow, forms = unified(forms)
    return chained(forms[0], forms[1:], lambda first, second: _coalesced(first, second, kind, arrow))


def _coalesced(first: Form, second: Form, kind: Kind, arrow: Any) -> Form:
    total = first.total and second.total

    def run(rows: Rows) -> Any:
        found = first.array(rows)
        if not found.null_count:
            return found
        if second.total and _merges(arrow):
            return pc.coalesce(found, second.run(rows))
        mask = pc.is_null(found)
        count = mask.true_count
        after = second.array(rows.where(mask, count))
        others = pc.invert(mask)
        return _merged(others, mask, found.filter(others), after, arrow)

    return Form(kind, run, total, arrow)
