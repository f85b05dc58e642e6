"""Tree → a function of record batches and tables, by `pyarrow.compute`, with the meaning that items have."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from exop.errors import ExpressionError, suggest
from exop.model.expressions import branches, forms, tree, values
from exop.model.expressions.branches import logical
from exop.model.expressions.forms import ARROW, Form, Rows, by_rows, chained, literal
from exop.model.expressions.kernels import KERNELS
from exop.model.expressions.tree import TYPES, Kind, Tree, kind_of, kind_of_value

if TYPE_CHECKING:
    from exop.model.expressions.expression import Expression


def column_function(root: Tree, expression: Expression) -> Callable[[Any], Any]:
    """Return the function of record batches and tables that computes an expression, which has no settings."""
    if expression.fields is None:
        problem = f"columns have no {expression.subject}: name the fields that are meant"
        raise ExpressionError(place=expression.place, expression=expression.text, position=0, problem=problem)
    known: tuple[Any, Form, Mapping[str, Callable[[Any], Any]]] | None = None

    def compute(batch: Any) -> Any:
        nonlocal known
        if known is None or not batch.schema.equals(known[0]):
            known = _compiled(root, expression, batch.schema)
        _, form, readers = known
        if not batch.num_rows:  # what is constant would fail without a row
            return pa.array([], form.arrow)
        return form.array(Rows(batch.num_rows, lambda name: readers[name](batch)))

    return compute


def _compiled(root: Tree, expression: Expression, schema: Any) -> tuple[Any, Form, Mapping[str, Callable[[Any], Any]]]:
    """Return the form for batches of a schema, and the functions that read their columns."""
    places = {name: _place(schema, name, expression) for name in expression.fields or ()}
    columns = {name: _normal(schema.field(place).type) for name, place in places.items()}
    form = _Compiler({name: (kind, arrow) for name, (kind, arrow, _) in columns.items()}).form(root)
    return schema, form, {name: _reader(place, columns[name][2]) for name, place in places.items()}


def _reader(place: int, normal: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def read(batch: Any) -> Any:
        column = batch.column(place)
        return normal(column if isinstance(column, pa.Array) else _whole(column))

    return read


def _whole(column: Any) -> Any:
    """A column of a table as one array."""
    found = column.combine_chunks()
    return found if isinstance(found, pa.Array) else pa.concat_arrays(found.chunks)


def _place(schema: Any, name: str, expression: Expression) -> int:
    if (place := schema.get_field_index(name)) < 0:
        problem = f"the record batch has no column {name!r}; {suggest(name, schema.names, 'column')}"
        at = max(0, expression.text.find(name))
        raise ExpressionError(place=expression.place, expression=expression.text, position=at, problem=problem)
    return int(place)


def _normal(arrow: Any) -> tuple[Kind, Any, Callable[[Any], Any]]:
    """Return the kind of a column, its Arrow type as it is computed with, and the function that makes it so."""
    types = pa.types
    if types.is_dictionary(arrow):
        kind, target, after = _normal(arrow.value_type)
        return kind, target, lambda column: after(pc.cast(column, arrow.value_type))
    kind, target = next((found for test, *found in _COLUMNS if test(arrow)), ("any", arrow))
    if types.is_timestamp(arrow):
        target = pa.timestamp("us", arrow.tz)
    elif kind in ("Decimal", "bytes", "time", "list", "record", "any"):
        target = arrow
    if target == arrow:
        return kind, target, lambda column: column
    # Nanoseconds are cut off, as no time of Python has them.
    return kind, target, lambda column: pc.cast(column, target, safe=not str(arrow).endswith(("[ns]", "[ns")))


_COLUMNS: Final[tuple[tuple[Any, ...], ...]] = (
    (pa.types.is_boolean, "bool", ARROW["bool"]),
    (pa.types.is_integer, "int", ARROW["int"]),
    (pa.types.is_floating, "float", ARROW["float"]),
    (lambda one: pa.types.is_string(one) or pa.types.is_large_string(one), "str", ARROW["str"]),
    (lambda one: str(one) == "string_view", "str", ARROW["str"]),
    (pa.types.is_date, "date", ARROW["date"]),
    (pa.types.is_timestamp, "datetime", None),
    (pa.types.is_duration, "timedelta", ARROW["timedelta"]),
    (pa.types.is_null, "none", ARROW["none"]),
    (pa.types.is_decimal, "Decimal", None),
    (pa.types.is_struct, "record", None),
    (lambda one: "list" in str(one).partition("<")[0], "list", None),
)


class _Compiler:
    """Makes the forms of the parts of one expression, for columns of these kinds and types."""

    def __init__(self, types: Mapping[str, tuple[Kind, Any]]) -> None:
        self._types = types

    def form(self, part: Tree) -> Form:
        """Return the form of a part."""
        match part:
            case tree.Literal(value=value):
                return literal(value)
            case tree.Field(of=tree.Subject(), name=name):
                kind, target = self._types[name]
                return Form(kind, lambda rows: rows.column(name), True, target)
            case tree.Field(of=of, name=name):
                return _struct_field(self.form(of), name)
            case tree.Arithmetic(first=first, steps=steps):
                further = [(sign, self.form(right)) for sign, right in steps]
                return chained(self.form(first), further, lambda left, step: forms.calculated(step[0], left, step[1]))
            case tree.Comparison(first=first, steps=steps):
                return self._compared(first, steps)
            case tree.Negative(of=of):
                return forms.negated(self.form(of))
            case tree.IsNull(of=of, negated=negated):
                form, test = self.form(of), pc.is_valid if negated else pc.is_null
                return Form("bool", lambda rows: test(form.run(rows)), form.total, ARROW["bool"])
            case tree.Not(of=of):
                form = logical(self.form(of))
                return Form("bool", lambda rows: pc.invert(form.run(rows)), form.total, ARROW["bool"])
            case tree.Logic(word=word, operands=operands):
                first_one, *others = [logical(self.form(one)) for one in operands]
                return chained(first_one, others, partial(branches.combined, word == "and"))
            case tree.Choice(cases=cases, otherwise=otherwise):
                return branches.chosen(
                    [(logical(self.form(test)), self.form(one)) for test, one in cases], self.form(otherwise)
                )
            case tree.Membership(of=of, among=among, negated=negated):
                return self._member(of, among, negated)
            case tree.Element(of=of, index=index):
                form = self.form(of)
                return by_rows(values.element, "str" if form.kind == "str" else "any", form, self.form(index))
            case tree.Slice(of=of, bounds=bounds):
                form = self.form(of)
                given = [literal(None) if one is None else self.form(one) for one in bounds]
                absent = [place for place, one in enumerate(bounds) if one is None]
                return by_rows(partial(_sliced, absent), form.kind if form.kind == "str" else "any", form, *given)
            case tree.Listed(elements=elements):
                return by_rows(lambda *each: [*each], "any", *map(self.form, elements))
            case tree.Call(arguments=arguments):
                return self._called(part, [self.form(one) for one in arguments])
        raise AssertionError(part)

    def _compared(self, first: Tree, steps: tuple[tuple[str, Tree], ...]) -> Form:
        each = [forms.shared(self.form(one)) for one in (first, *(right for _, right in steps))]
        found = [forms.compared(sign, *each[place : place + 2]) for place, (sign, _) in enumerate(steps)]
        return chained(found[0], found[1:], partial(branches.combined, True))

    def _member(self, of: Tree, among: Tree, negated: bool) -> Form:
        form, call = self.form(of), values.missing if negated else values.contained
        if isinstance(among, tree.Listed):
            known = [one.value for one in among.elements if isinstance(one, tree.Literal)]
            if len(known) < len(among.elements) or {kind_of_value(one) for one in known} != {form.kind}:
                return by_rows(call, "bool", form, self.form(among))
            if form.kind not in ("int", "str"):
                return by_rows(lambda value: call(value, known), "bool", form)
            found = forms.is_among(form, known)
        elif isinstance(of, tree.Literal) and of.kind == "str" and (other := self.form(among)).kind == "str":
            found = Form("bool", lambda rows: pc.match_substring(other.run(rows), of.value), other.total, ARROW["bool"])
        else:
            return by_rows(call, "bool", form, self.form(among))
        return replace(found, run=lambda rows: pc.invert(found.run(rows))) if negated else found

    def _called(self, part: tree.Call, given: list[Form]) -> Form:
        function = part.function
        kinds = [TYPES.get(one.kind) or part.arguments[place].type for place, one in enumerate(given)]
        kind = kind_of(function.result_type(kinds) or TYPES["any"])
        if function.lazy:
            return branches.first_of(given)
        if (arrow := function.arrow) is not None:
            return Form(kind, lambda rows: arrow(*[one.array(rows) for one in given]), False, None)
        lowered = KERNELS[function.name](*given) if function.name in KERNELS else None
        call = function.safe()
        if kind == "float" and function.result is None:
            call = partial(_real_result, call)
        return lowered or by_rows(call, kind, *given)


def _real_result(call: Callable[..., Any], *given: Any) -> Any:
    return values.real(call(*given))


def _sliced(absent: list[int], value: Any, *bounds: Any) -> Any:
    return values.part(value, *[... if place in absent else one for place, one in enumerate(bounds)])


def _struct_field(form: Form, name: str) -> Form:
    if form.kind == "record" and form.arrow is not None and form.arrow.get_field_index(name) >= 0:
        kind, target, read = _normal(form.arrow.field(name).type)
        return Form(kind, lambda rows: read(pc.struct_field(form.array(rows), name)), form.total, target)
    return by_rows(lambda value: values.field_of(value, name), "any", form)
