"""Operators on single rows: `filter`, `map`, `split`, which work by items and by columns, `number` and `sample`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any, ClassVar, Final, Generic, Literal, NotRequired, Self, TypedDict, TypeVar, Union

from exop.errors import SettingError
from exop.model.slets.memento import Memento
from exop.model.slets.ports import OUT, OutputPort, PortSpec, PortType
from exop.model.slets.slet import Slet, input_port, spec_of
from exop.model.slets.spec import SletSpec
from exop.model.types.description import Type
from exop.model.values.columns import batch_type
from exop.safe_repr import error_text

if TYPE_CHECKING:
    from exop.expressions import Expression

T = TypeVar("T")
#: Whether an operator processes items or record batches; empty: in the form in which they arrive.
Form = Literal["", "items", "columns"]
_BITS: Final = 2**64 - 1


class Filter(Slet, Generic[T], name="filter"):
    """Forward the items for which a condition holds, and drop the others.

    A condition that is NULL, such as `None > 60`, does not hold. If the condition cannot be computed (because a field
    is missing, or because of `"7" > 60`), the slet fails for the item; a text is never equal to a number.

    Args:
        where: The condition on `item`: `"item.speed > 60"`.
        form: `items` or `columns`, the form in which the slet processes the stream; by default that of its input.
    """

    reopens: ClassVar[bool] = True
    where: str
    form: Form = ""

    @classmethod
    def specialised(cls, settings: Mapping[str, Any], inputs: Mapping[str, PortType]) -> SletSpec:
        """Return a specification in the form of the input; refuse a condition on fields that it does not have."""
        taken = inputs.get("item", PortType())
        return _in_form(spec_of(cls), settings["form"], taken, [_condition("where", settings["where"], taken)], "keep")

    @input_port
    def item(self, item: T) -> T | None:
        """Process one item."""
        kept: T | None = self.keep_item(item)
        return kept

    @cached_property
    def keep_item(self) -> Callable[[Any], Any]:
        """The function that the port calls for an item: a method in between would cost a third of it."""
        return self._condition.filter_function()

    @cached_property
    def keep_batch(self) -> Callable[[Any], Any]:
        """The function that the port calls for a record batch."""
        holds = self._condition.column_function()

        def keep_batch(batch: Any) -> Any:
            kept = batch.filter(holds(batch))
            return kept if kept.num_rows else None

        return keep_batch

    @property
    def _condition(self) -> Expression:
        return _condition("where", self.where, self.inputs["item"])


class Map(Slet, name="map"):
    """Compute the fields of a new row from each item.

    The result is a dictionary; of record batches, it is a record batch. An expression that is NULL gives NULL. If an
    expression cannot be computed (because a field is missing, or it divides by zero), the slet fails for the item.

    Args:
        fields: An expression on `item` for each field of the result: `{"kmh": "item.speed * 3.6"}`.
        keep: Whether the result has the fields of the item, too; a new field replaces one of the same name.
        form: `items` or `columns`, the form in which the slet processes the stream; by default that of its input.
    """

    reopens: ClassVar[bool] = True
    fields: dict[str, str]
    keep: bool = False
    form: Form = ""

    @classmethod
    def specialised(cls, settings: Mapping[str, Any], inputs: Mapping[str, PortType]) -> SletSpec:
        """Return a specification whose output has the types of the expressions."""
        if not settings["fields"]:
            raise SettingError(place="", setting="fields", problem="it is empty; give an expression for each field")
        taken, keep = inputs.get("item", PortType()), settings["keep"]
        found = _expressions(settings["fields"], taken)
        spec = _in_form(spec_of(cls), settings["form"], taken, found.values(), "compute")
        if spec.inputs[0].type.form == "columns":
            return spec.with_outputs({OUT: replace(spec.inputs[0].type, schema=_schema(taken, found, keep=keep))})
        return spec.with_outputs({OUT: row_type(taken if keep else None, {n: one.type for n, one in found.items()})})

    @input_port
    def item(self, item: Any) -> dict[str, Any]:
        """Process one item."""
        return self.compute_item(item)

    @cached_property
    def compute_item(self) -> Callable[[Any], dict[str, Any]]:
        """The function that the port calls for an item."""
        from exop.expressions import row_function  # imported lazily: few applications need expressions

        compute, old = row_function(_expressions(self.fields, self.inputs["item"])), row_reader()
        return (lambda item: old(item) | compute(item)) if self.keep else compute

    @cached_property
    def compute_batch(self) -> Callable[[Any], Any]:
        """The function that the port calls for a record batch."""
        # Imported lazily: only columns need it.
        import pyarrow as pa

        found, keep = _expressions(self.fields, self.inputs["item"]), self.keep
        functions = {name: one.column_function() for name, one in found.items()}

        def compute_batch(batch: Any) -> Any:
            columns = dict(zip(batch.schema.names, batch.columns, strict=True)) if keep else {}
            columns |= {name: compute(batch) for name, compute in functions.items()}
            return pa.RecordBatch.from_arrays([*columns.values()], [*columns])

        return compute_batch


class Split(Slet, Generic[T], name="split"):
    """Send each item to the output ports whose conditions hold for it or, if no condition holds, to `rest`.

    There is one output port for each condition, and all outputs have the type of the input. A condition that is NULL,
    such as `None > 60`, does not hold. If a condition cannot be tested (because a field is missing, or because of
    `"7" > 60`), the slet fails for the item; a text is never equal to a number.

    Args:
        conditions: A condition on `item` for each output port, by the name of the port: `{"fast": "item.speed > 60"}`.
        form: `items` or `columns`, the form in which the slet processes the stream; by default that of its input.
    """

    reopens: ClassVar[bool] = True
    conditions: dict[str, str]
    rest: OutputPort[T]
    form: Form = ""

    @classmethod
    def specialised(cls, settings: Mapping[str, Any], inputs: Mapping[str, PortType]) -> SletSpec:
        """Return a specification with an output for each condition; the outputs have the type of the input."""
        taken, spec = inputs.get("item", PortType()), spec_of(cls)
        found = _conditions(settings["conditions"], taken)
        spec = spec.with_outputs(dict.fromkeys(found, spec.ports["rest"].type))
        return _in_form(spec, settings["form"], taken, found.values(), "split")

    def __enter__(self) -> Self:
        from exop.expressions import row_function  # imported lazily: few applications need expressions

        self._conditions = _conditions(self.conditions, self.inputs["item"])
        self._holds = row_function(self._conditions)
        self._push = {port: output.push for port, output in self.outputs.items()}
        return self

    @input_port
    def item(self, item: T) -> None:
        """Process one item."""
        self.split_item(item)

    def split_item(self, item: T) -> None:
        """Process one item."""
        try:
            found = self._holds(item)
        except Exception:
            for port, one in self._conditions.items():
                with self._named(port):
                    one.item_function()(item)
            raise
        rest = True
        for port in found:
            if found[port]:
                self._push[port](item)
                rest = False
        if rest:
            self._push["rest"](item)

    def split_batch(self, batch: Any) -> None:
        """Process one record batch."""
        for port, mask in self._masks(batch).items():
            if (part := batch.filter(mask)).num_rows:
                self.outputs[port].push_batch(part)

    @contextmanager
    def _named(self, port: str) -> Iterator[None]:
        """Name the condition that fails."""
        try:
            yield
        except Exception as error:
            raise ValueError(f"{port} = {self.conditions[port]!r} cannot be tested: {error_text(error)}") from error

    @cached_property
    def _masks(self) -> Callable[[Any], dict[str, Any]]:
        """The function that tests all conditions, before anything leaves."""
        # Imported lazily: only columns need it.
        import pyarrow as pa
        import pyarrow.compute as pc

        tests = {port: one.column_function() for port, one in self._conditions.items()}

        def masks(batch: Any) -> dict[str, Any]:
            found, rest = dict[str, Any](), pa.repeat(pa.scalar(True), batch.num_rows)
            for port, test in tests.items():
                with self._named(port):
                    found[port] = pc.fill_null(test(batch), False)
                rest = pc.and_not(rest, found[port])
            return found | {"rest": rest}

        return masks


class Counted(Memento):
    """The number of items so far."""

    number: int = 0


class Number(Slet, name="number"):
    """Add a running number to each item, from 0.

    The result is a dictionary with the fields of the item and the number. An item without fields fails, and is not
    counted.

    Args:
        into: The field for the number; it replaces one of the same name.
    """

    reopens: ClassVar[bool] = True
    into: str
    counted: Counted

    @classmethod
    def specialised(cls, settings: Mapping[str, Any], inputs: Mapping[str, PortType]) -> SletSpec:
        """Return a specification whose output has the fields of the input and the number."""
        return spec_of(cls).with_outputs(
            {OUT: row_type(inputs.get("item", PortType()), {settings["into"]: PortType(int).items})}
        )

    def __enter__(self) -> Self:
        self._fields = row_reader()
        return self

    @input_port
    def item(self, item: Any) -> dict[str, Any]:
        """Process one item."""
        row = self._fields(item)
        row[self.into] = self.counted.number
        self.counted.number += 1
        return row


class Sample(Slet, Generic[T], name="sample"):
    """Forward a random part of the items, and drop the others.

    Which items are forwarded depends only on their numbers in the stream and on the seed, so it is the same after a
    restart or a replacement. With a higher rate, the same items are forwarded, and others, too.

    Args:
        rate: The probability with which an item is forwarded, from 0 to 1.
        seed: The choice of the items: another seed gives another sample.
    """

    reopens: ClassVar[bool] = True
    rate: float
    seed: int = 0
    counted: Counted

    @classmethod
    def specialised(cls, settings: Mapping[str, Any], _: Mapping[str, PortType]) -> SletSpec:
        """Refuse a rate that is no probability."""
        if not 0 <= (rate := settings["rate"]) <= 1:
            raise SettingError(place="", setting="rate", problem=f"it is {rate:g}, and must be from 0 to 1")
        return spec_of(cls)

    def __enter__(self) -> Self:
        self._below, self._first = self.rate * 2**64, _mixed(self.seed)
        return self

    @input_port
    def item(self, item: T) -> T | None:
        """Process one item."""
        counted = self.counted
        counted.number = number = counted.number + 1
        return item if _mixed(self._first + number) < self._below else None


def _mixed(number: int) -> int:
    """Return an integer of 64 bits that looks random: the output function of SplitMix64."""
    mixed = (number * 0x9E3779B97F4A7C15) & _BITS
    mixed = ((mixed ^ mixed >> 30) * 0xBF58476D1CE4E5B9) & _BITS
    mixed = ((mixed ^ mixed >> 27) * 0x94D049BB133111EB) & _BITS
    return mixed ^ mixed >> 31


def _condition(place: str, text: str, item: PortType) -> Expression:
    from exop.expressions import Names, read_condition

    return read_condition(text, Names(place, {"item": item}))


def _conditions(texts: Mapping[str, str], item: PortType) -> dict[str, Expression]:
    if "rest" in texts:
        problem = "'rest' is the port of the items for which no condition holds; choose another name"
        raise SettingError(place="", setting="conditions", problem=problem)
    return {port: _condition(f"conditions.{port}", text, item) for port, text in texts.items()}


def _expressions(texts: Mapping[str, str], item: PortType) -> dict[str, Expression]:
    from exop.expressions import Names, read

    return {name: read(text, Names(f"fields.{name}", {"item": item})) for name, text in texts.items()}


def _in_form(spec: SletSpec, form: Form, taken: PortType, expressions: Iterable[Expression], method: str) -> SletSpec:
    """Return the slet with the ports of a form, by default that of the input, and with the method for this form."""
    found, carried = [*expressions], PortType(taken.item)
    possible = taken.form == "columns" and all(one.fields is not None for one in found)
    if columns := form == "columns" or (possible and not form):
        for one in found:
            one.column_function()  # refuses one that reads the whole item
        carried = PortType(batch_type(), "columns", taken.schema if taken.form == "columns" else None)
    elif taken.form == "columns":
        carried = row_type(taken, {})

    def port(one: PortSpec) -> PortSpec:
        kept = replace(one.type, item=carried.item, form=carried.form, schema=carried.schema)
        return replace(one, type=kept)

    called = f"{method}_batch" if columns else f"{method}_item"
    inputs = tuple(replace(port(one), method=called) for one in spec.inputs)
    return replace(spec, inputs=inputs, outputs=tuple(map(port, spec.outputs)))


def _schema(taken: PortType, expressions: Mapping[str, Expression], *, keep: bool) -> Any:
    """Return the schema of the results; `None` if it is not known."""
    if taken.schema is None:
        return None
    # Imported lazily: only columns need it.
    import pyarrow as pa

    nothing = pa.RecordBatch.from_pylist([], taken.schema)
    types = {name: one.column_function()(nothing).type for name, one in expressions.items()}
    if any(pa.types.is_null(types[name]) and str(one.type) != "None" for name, one in expressions.items()):
        return None  # it depends on the values
    old = {field.name: field for field in taken.schema} if keep else {}
    return pa.schema([*(old | {name: pa.field(name, kind) for name, kind in types.items()}).values()])


def row_reader() -> Callable[[Any], dict[str, Any]]:
    """Return a function that reads the fields of an item, as a new dictionary."""
    last: tuple[type, list[str]] = dict, []  # most streams have items of one class

    def read(item: Any) -> dict[str, Any]:
        nonlocal last
        if type(item) is dict or isinstance(item, Mapping):
            return {**item}
        kind, names = last
        if type(item) is not kind:
            names = [*PortType(type(item)).items.fields]
            last = type(item), names
        if not names:
            raise TypeError(f"an item of type {type(item).__name__} has no fields")
        return {name: getattr(item, name) for name in names}

    return read


def row_type(taken: PortType | None, fields: Mapping[str, Type]) -> PortType:
    """Return the type of dictionaries with the fields of these items, if they are known, and with these fields."""
    known: dict[str, Any] = {}
    if taken is not None:
        if not taken.items.fields:
            return PortType(dict[str, Any])
        for name, one in taken.items.fields.items():
            kind = _annotation(one.type)
            if not one.required and taken.form == "columns":  # the column may have NULL
                kind = Union[kind, None]  # noqa: UP007 (built at run time)
            known[name] = NotRequired[kind] if not one.required and taken.items.is_row else kind
    return PortType(result_type("Row", known | {name: _annotation(kind) for name, kind in fields.items()}))


def result_type(name: str, fields: Mapping[str, Any]) -> Any:
    """Return the type of dictionaries with fields of these types; the same one for the same fields."""
    found = tuple(fields.items())
    try:
        return _made(name, found)
    except TypeError:  # a type that cannot be a key
        return _made.__wrapped__(name, found)


def _annotation(kind: Type) -> Any:
    """Return the annotation of a type, which may be that of a column."""
    if kind.kind == "union":
        return Union[tuple(map(_annotation, kind.arguments))]  # noqa: UP007 (built at run time)
    if kind.annotation is not None and not isinstance(kind.annotation, str):
        return kind.annotation
    return kind.cls if kind.kind == "scalar" and kind.cls is not None else Any


@lru_cache(maxsize=128)
def _made(name: str, fields: tuple[tuple[str, Any], ...]) -> Any:
    return TypedDict(name, dict(fields))  # type: ignore[operator]
