"""Tree → a function of record batches and tables.

An expression is computed by `pyarrow.compute` where that has the meaning of `values`: all of its parts for all rows. If
it has no form by Arrow, or if that fails for a batch, the function of an item is called for each row.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial, reduce
from operator import itemgetter
from typing import Any, Final, NamedTuple, NoReturn, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from exop.errors import suggest
from exop.model.expressions import kernels, tree, values
from exop.model.expressions.functions import FUNCTIONS
from exop.model.expressions.items import FLIPPED, compiled
from exop.model.expressions.kernels import COMPARE, KERNELS, Kernel, NotByArrow, divided, joined
from exop.model.expressions.kinds import TYPES, Kind, common, kind_of, kind_of_value, result_kind
from exop.model.expressions.tree import Tree

Columns: TypeAlias = Mapping[str, Any]
#: The Arrow types of the results, by kind; those of times have the zone of the column.
_ARROW: Final[dict[str, Any]] = {
    "bool": pa.bool_(), "int": pa.int64(), "float": pa.float64(), "str": pa.string(), "date": pa.date32(),
    "timedelta": pa.duration("us"), "none": pa.null(),
}  # fmt: skip


_NULL: Final = pa.scalar(None, pa.bool_())


class Form(NamedTuple):
    """A part of an expression for columns of certain types.

    Attributes:
        kind: The kind of its values.
        arrow: Their Arrow type; `None`: not known before.
        run: Computes them by Arrow, an array or a scalar; `None`: Arrow cannot.
        constant: The value of a literal number, unless it is NaN.
    """

    kind: Kind
    arrow: Any
    run: Callable[[Columns], Any] | None
    constant: float | None = None


def _form(kind: Kind, call: Kernel | None, *given: Form, arrow: Any = None) -> Form:
    """Return the form that calls a function of Arrow with the values of others, if Arrow has all of these."""
    arrow, runs = arrow or _ARROW.get(kind), [one.run for one in given if one.run is not None]
    if call is None or len(runs) < len(given):
        return Form(kind, arrow, None)
    return Form(kind, arrow, lambda columns: call(*[run(columns) for run in runs]))


def column_function(root: Tree, fields: tuple[str, ...], fail: Callable[[str, str], NoReturn]) -> Callable[[Any], Any]:
    """Return the function of record batches and tables that computes an expression.

    Args:
        root: The expression, without settings.
        fields: The columns that it reads.
        fail: Raises the error for a problem, and the column that it is about.
    """
    of_row = compiled(root, rows=True)
    known: tuple[Any, Form, dict[str, Callable[[Any], Any]]] | None = None

    def compute(batch: Any) -> Any:
        nonlocal known
        if (found := known) is None or not batch.schema.equals(found[0]):
            found = known = (batch.schema, *_compiled(root, fields, fail, batch.schema))
        _, form, readers = found
        if not batch.num_rows:  # what is constant would fail without a row
            return pa.array([], form.arrow)
        columns = {name: read(batch) for name, read in readers.items()}
        try:
            if form.run is not None:
                result = form.run(columns)
                return pa.repeat(result, batch.num_rows) if isinstance(result, pa.Scalar) else result
        except (pa.ArrowException, NotByArrow):
            pass  # the rows tell whether one fails
        return _by_rows(of_row, columns, batch.num_rows, form.arrow)

    return compute


def _by_rows(of_row: Callable[[Any], Any], columns: Columns, count: int, arrow: Any) -> Any:
    each = [column.to_pylist() for column in columns.values()]
    rows = [dict(zip(columns, row, strict=True)) for row in zip(*each, strict=True)] if each else [{}] * count
    found = [of_row(row) for row in rows]
    classes = {*map(type, found)} - {type(None)}
    try:
        if bool in classes and len(classes) > 1:
            raise pa.ArrowTypeError("Booleans are no numbers here")
        if len({one.tzinfo is None for one in found if kind_of_value(one) == "datetime"}) > 1:
            raise pa.ArrowTypeError("some times have a zone, others have none")
        return pa.array(found, arrow)
    except (pa.ArrowInvalid, pa.ArrowTypeError) as problem:
        shown = ", ".join(sorted({type(one).__name__ for one in found}))
        raise TypeError(f"no column can hold all values, which are {shown}: {problem}") from problem


def _compiled(
    root: Tree, fields: tuple[str, ...], fail: Callable[[str, str], NoReturn], schema: Any
) -> tuple[Form, dict[str, Callable[[Any], Any]]]:
    """Return the form for batches of a schema, and the functions that read their columns."""
    forms: dict[str, Form] = {}
    readers: dict[str, Callable[[Any], Any]] = {}
    for name in fields:
        if (place := schema.get_field_index(name)) < 0:
            fail(f"the record batch has no column {name!r}; {suggest(name, schema.names, 'column')}", name)
        kind, arrow, normal = _normal(schema.field(place).type)
        readers[name] = partial(_read, place, normal)
        forms[name] = Form(kind, arrow, itemgetter(name))
    return _Compiler(forms).form(root), readers


def _read(place: int, normal: Callable[[Any], Any], batch: Any) -> Any:
    column = batch.column(place)
    if isinstance(column, pa.ChunkedArray):
        whole = column.combine_chunks()
        column = whole if isinstance(whole, pa.Array) else pa.concat_arrays(whole.chunks)
    return normal(column)


def _normal(arrow: Any) -> tuple[Kind, Any, Callable[[Any], Any]]:
    """Return the kind of a column, its Arrow type as it is computed with, and the function that makes it so."""
    types = pa.types
    if types.is_dictionary(arrow):
        kind, target, after = _normal(arrow.value_type)
        return kind, target, lambda column: after(pc.cast(column, arrow.value_type))
    kind = next((found for found, *tests in _KINDS if any(test(arrow) for test in tests)), "any")
    target = pa.timestamp("us", arrow.tz) if types.is_timestamp(arrow) else _ARROW.get(kind, arrow)
    if target == arrow:
        return kind, target, lambda column: column
    # Nanoseconds are cut off, as no time of Python has them.
    return kind, target, lambda column: pc.cast(column, target, safe=not str(arrow).endswith(("[ns]", "[ns")))


_KINDS: Final[tuple[tuple[Any, ...], ...]] = (
    ("bool", pa.types.is_boolean),
    ("int", pa.types.is_integer),
    ("float", pa.types.is_floating),
    ("str", pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view),
    ("date", pa.types.is_date),
    ("datetime", pa.types.is_timestamp),
    ("timedelta", pa.types.is_duration),
    ("none", pa.types.is_null),
    ("Decimal", pa.types.is_decimal),
    ("record", pa.types.is_struct),
    ("list", lambda one: "list" in str(one).partition("<")[0]),
)


class _Compiler:
    """Makes the forms of the parts of one expression, for columns of certain kinds and types."""

    def __init__(self, columns: Mapping[str, Form]) -> None:
        self._columns = columns

    def form(self, part: Tree) -> Form:
        """Return the form of a part."""
        match part:
            case tree.Literal(value=value):
                return _literal(value)
            case tree.Field(of=tree.Subject(), name=name):
                return self._columns[name]
            case tree.Field(of=of, name=name):
                return _struct_field(self.form(of), name)
            case tree.Arithmetic(first=first, steps=steps):
                left = self.form(first)
                return _chained(left, [(sign, self.form(right)) for sign, right in steps])
            case tree.Comparison(first=first, steps=steps):
                operands = [self.form(one) for one in (first, *[right for _, right in steps])]
                return _compared([sign for sign, _ in steps], operands)
            case tree.Operation(call=values.is_null, operands=(of,)):
                return _form("bool", pc.is_null, self.form(of))
            case tree.Operation(call=values.opposite, operands=(of,)):
                return _form("bool", pc.invert, self._test(of))
            case tree.Operation(call=values.contained, operands=(of, among)):
                return self._member(self.form(of), among)
            case tree.Logic(word=word, operands=operands):
                call = pc.and_kleene if word == "and" else pc.or_kleene
                return _form("bool", lambda *each: reduce(call, each), *map(self._test, operands))
            case tree.Choice(cases=cases, otherwise=otherwise):
                kind, arrow, forms = _unified([self.form(one) for one in (*[value for _, value in cases], otherwise)])
                tests = [self._test(test) for test, _ in cases]
                return _form(kind, _chosen if arrow is not None else None, *tests, *forms, arrow=arrow)
            case tree.Operation(call=call, operands=operands):
                is_text = call is not values.listed and self.form(operands[0]).kind == "str"
                return _form("str" if is_text else part.kind, None)
            case tree.Call(arguments=arguments):
                return _called(part, [self.form(one) for one in arguments])
        raise AssertionError(part)

    def _test(self, part: Tree) -> Form:
        """The form of a Boolean; rows with other values fail."""
        form = self.form(part)
        return form if form.kind == "bool" else _form("bool", None)

    def _member(self, form: Form, among: Tree) -> Form:
        elements = among.operands if isinstance(among, tree.Operation) and among.call is values.listed else ()
        known = [one.value for one in elements if isinstance(one, tree.Literal)]
        fits = form.kind in ("int", "str") and {kind_of_value(one) for one in known} == {form.kind}
        if not fits or len(known) < len(elements):
            return _form("bool", None)
        array = pa.array(known, form.arrow)
        return _form("bool", lambda column: pc.if_else(pc.is_valid(column), pc.is_in(column, array), _NULL), form)


def _literal(value: Any) -> Form:
    try:
        scalar = pa.scalar(value)
    except (pa.ArrowException, OverflowError):
        return Form(kind_of_value(value), None, None)
    number = type(value) in (int, float) and value == value
    return Form(kind_of_value(value), scalar.type, lambda _: scalar, value if number else None)


def _beside(form: Form, other: Form) -> Form:
    """A literal integer beside floats is one of them, which saves a cast for each batch."""
    if (form.kind, other.kind) != ("int", "float") or form.constant is None or abs(form.constant) > values.EXACT:
        return form
    return _literal(float(form.constant))


def _struct_field(form: Form, name: str) -> Form:
    if form.kind != "record" or form.arrow is None or form.arrow.get_field_index(name) < 0:
        return Form("any", None, None)
    kind, arrow, normal = _normal(form.arrow.field(name).type)
    return _form(kind, lambda column: normal(pc.struct_field(column, name)), form, arrow=arrow)


def _chained(left: Form, steps: list[tuple[str, Form]]) -> Form:
    """`left + a * …`, from left to right: a long sum is no deep recursion."""
    left = _beside(left, steps[0][1])
    calls, operands = [], [left]
    for sign, form in steps:
        operands.append(right := _beside(form, left))
        calls.append(_calculation(sign, left, right))
        left = _form(result_kind(sign, left.kind, right.kind) or "any", None)

    def call(found: Any, *operands: Any) -> Any:
        for calculate, operand in zip(calls, operands, strict=True):
            found = calculate(found, operand)  # type: ignore[misc]
        return found

    return _form(left.kind, None if None in calls else call, *operands)


def _calculation(sign: str, left: Form, right: Form) -> Kernel | None:
    kinds = {left.kind, right.kind}
    if kinds <= {"int", "float"}:
        if sign in ("//", "%"):
            return partial(divided, sign)
        if sign == "/" and kinds == {"int"}:
            return lambda a, b: pc.divide_checked(pc.cast(a, pa.float64()), b)
        return kernels.CALCULATE[sign]
    if kinds == {"str"} and sign == "+":
        return joined
    return pc.subtract_checked if kinds == {"datetime"} and sign == "-" else None


def _compared(signs: list[str], operands: list[Form]) -> Form:
    if len(operands) == 2:
        operands = [_beside(*operands), _beside(*operands[::-1])]
    calls = [_comparison(sign, *operands[place : place + 2]) for place, sign in enumerate(signs)]

    def call(*each: Any) -> Any:
        pairs = zip(calls, each, each[1:], strict=False)
        return reduce(pc.and_kleene, [compare(a, b) for compare, a, b in pairs])  # type: ignore[misc]

    return _form("bool", None if None in calls else call, *operands)


def _comparison(sign: str, left: Form, right: Form) -> Kernel | None:
    kinds = {left.kind, right.kind}
    if "float" in kinds and kinds <= {"int", "float"}:
        if left.constant is not None:
            return lambda a, b: kernels.COMPARE_NUMBER[FLIPPED[sign]](b, a)
        return kernels.COMPARE_FLOATS[sign] if right.constant is None else kernels.COMPARE_NUMBER[sign]
    compared = ("bool", "int", "str", "date", "datetime", "timedelta")
    return COMPARE[sign] if len(kinds) == 1 and left.kind in compared else None


def _unified(forms: list[Form]) -> tuple[Kind, Any, list[Form]]:
    """Return the common kind of several values, the Arrow type in which Arrow merges them, and these in that type."""
    known = [one for one in forms if one.kind != "none"]
    kind = kind_of(common(TYPES.get(one.kind, TYPES["any"]) for one in known) or TYPES["any"])
    types = {str(one.arrow): one.arrow for one in known}
    arrow = _ARROW.get(kind) if kind == "float" or len(types) != 1 else next(iter(types.values()))
    if not known or arrow is None or pa.types.is_nested(arrow):
        return kind if known else "none", None, forms
    cast = partial(pc.cast, target_type=arrow)
    return kind, arrow, [one if one.arrow == arrow else _form(kind, cast, one, arrow=arrow) for one in forms]


def _chosen(*given: Any) -> Any:
    """The tests, and one value more."""
    tests, (*cases, found) = given[: len(given) // 2], given[len(given) // 2 :]
    for test, value in zip(reversed(tests), reversed(cases), strict=True):
        holds = test if isinstance(test, pa.Array) and not test.null_count else pc.fill_null(test, False)
        found = pc.if_else(holds, value, found)
    return found


def _called(part: tree.Call, given: list[Form]) -> Form:
    function = part.function
    kinds = [TYPES.get(one.kind) or part.arguments[place].type for place, one in enumerate(given)]
    kind = kind_of(function.result_type(kinds) or TYPES["any"])
    if function.lazy:
        kind, arrow, forms = _unified(given)
        return _form(kind, pc.coalesce if arrow is not None else None, *forms, arrow=arrow)
    allowed, call = KERNELS.get(function.name, (None, None))
    if function is not FUNCTIONS.get(function.name):
        allowed, call = None, None if function.arrow is None else partial(_with_arrays, function.arrow)
    fits = all({one.kind, "any"} & function.parameter(place).kinds for place, one in enumerate(given))
    fits = fits and (allowed is None or all(one.kind in allowed for one in given))
    return _form(kind, call if fits else None, *given)


def _with_arrays(call: Kernel, *given: Any) -> Any:
    """Call a function of a plugin, with constants as arrays."""
    if not (counts := [len(one) for one in given if isinstance(one, pa.Array)]):
        raise NotByArrow
    return call(*[pa.repeat(one, counts[0]) if isinstance(one, pa.Scalar) else one for one in given])
