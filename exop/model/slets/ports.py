"""Ports: the objects through which a slet sends and pulls items, and the types of the items."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from types import GenericAlias
from typing import Annotated, Any, Final, Generic, Literal, TypeVar, Union

from exop.errors import SettingError, UnknownName
from exop.model.items import Batch, EndOfStream, Punctuation, Reference
from exop.model.types import assignable
from exop.model.types.description import ANY, Type, type_name, type_of
from exop.model.values.columns import batch_type

T = TypeVar("T")
#: The output port by which the results of a slet leave.
OUT: Final = "out"
#: The kind of channel that hands out lists of items.
WINDOW: Final = "window"
In = TypeVar("In", contravariant=True)

Form = Literal["item", "batch", "columns"]
Direction = Literal["in", "out"]


class OutputPort(ABC, Generic[In]):
    """An output port of a slet (paper §2.2: push).

    Items that are pushed in a method are emitted when the method returns. A slet with its own driver (`class
    Engine(Slet, own_driver=True)`) pushes from its own thread, and every call is then a safe point.
    """

    @abstractmethod
    def push(self, item: In | Punctuation | EndOfStream) -> None:
        """Send one item, or a control item. Wait while the channel is full."""

    @abstractmethod
    def push_batch(self, batch: Any) -> None:
        """Send several items at once: a list of items or a `pyarrow.RecordBatch`."""

    @abstractmethod
    def end(self) -> None:
        """Send the end of the stream. Required only of slets with their own driver."""

    @abstractmethod
    def fail(self, error: BaseException) -> None:
        """Report that the engine has failed. The component becomes `failed`, and its status shows *error*."""


class InputPort(ABC, Generic[T]):
    """An input port from which a slet pulls (paper §2.2: pull).

    On a direct channel, a queue or a log, a pull takes the next items. On a channel that stores items (latch, table,
    window), a pull reads the current content. The other methods of the channel (`get`, `find`, …) are the port's, too.
    """

    @abstractmethod
    def pull(self, most: int = 1024, wait: bool = True) -> list[T]:
        """Return at most *most* items; with *wait*, at least one item, unless the stream has ended."""

    @abstractmethod
    def __iter__(self) -> Iterator[T]:
        """Pull items one by one until the stream ends."""

    @abstractmethod
    def __getattr__(self, name: str) -> Any:
        """Access the other methods of the channel."""


class OutputPorts(dict[str, OutputPort[In]]):
    """A family of output ports: a dictionary of the connected ports by name (`to.cars` of the field `to`)."""

    def __missing__(self, name: str) -> OutputPort[In]:
        raise UnknownName(place="the family of ports", kind="member", name=name, known=self)


class InputPorts(dict[str, InputPort[T]]):
    """A family of input ports from which the slet pulls: a dictionary of the connected ports by name."""


@dataclass(frozen=True)
class PortType:
    """The type of the items of a port, read from an annotation.

    Attributes:
        item: The type of one item.
        form: How the slet handles items: one by one, as lists, or as Arrow columns.
        schema: The declared `pyarrow.Schema` of columns, or `None`.
        reference: The class of the references that an output sends instead of columns.
        punctuation, end: Whether the slet receives these control items.
        pauses: Whether it may yield `None`, which is not an item.
        bare: Whether it carries control items only.
        origin: The output from which the type of an input was derived, for messages.
    """

    item: Any = Any
    form: Form = "item"
    schema: Any = None
    punctuation: bool = False
    end: bool = False
    reference: type[Reference] | None = None
    pauses: bool = field(default=False, compare=False)
    bare: bool = field(default=False, compare=False)
    origin: str = field(default="", compare=False)

    def __str__(self) -> str:
        return "pyarrow.RecordBatch" if self.form == "columns" else type_name(self.item)

    @cached_property
    def fingerprint(self) -> str:
        """A short text that is equal for equal types, on any platform."""
        # Imported lazily: only statuses and descriptions need it.
        from exop.model.types.evolution import fingerprint

        return fingerprint(self.items)

    @cached_property
    def items(self) -> Type:
        """The description of one item, or of the schema of columns."""
        return type_of(self.item if self.schema is None else Annotated[self.item, self.schema])

    @property
    def windowed(self) -> PortType:
        """The type of windows of these items: lists; rows of columns become dictionaries."""
        item = dict if self.form == "columns" else self.item
        return replace(self, item=GenericAlias(list, (item,)), form="item", schema=None, reference=None)

    @property
    def sent_by(self) -> str:
        """The end of a message about these items: the output that sends them."""
        return f" ({self.origin} sends it)" if self.origin else ""

    def check_field(self, place: str, setting: str, name: str) -> None:
        """Refuse a field *name* in a *setting* of *place* if these items have no such field.

        The field named by a setting called `time` has to be a number. Slets whose settings name fields call this in
        `specialised`, with an empty *place*.

        Raises:
            SettingError: there is no such field, and the error lists the known ones; or it is no number.
        """
        problem = assignable.missing_field(self.items, name)
        if problem is None and setting.rpartition(".")[2] == "time":
            problem = assignable.not_a_time(self.items, name)
        if problem is not None:
            raise SettingError(place=place, setting=setting, problem=f"{problem}{self.sent_by}")


@dataclass(frozen=True)
class PortSpec:
    """One port of a slet: its name, direction and type; `method` handles an input, `pulled` means the slet pulls it.

    A port called `family.*` is a family: any number of ports `family.member` of its type.
    """

    name: str
    direction: Direction
    type: PortType
    method: str | None = None
    pulled: bool = False

    @property
    def family(self) -> str:
        """The name of its family; its own name if it belongs to none."""
        return self.name.partition(".")[0]

    @property
    def member(self) -> str:
        """Its name within its family; empty if it belongs to none."""
        return self.name.partition(".")[2]

    def of(self, port: str) -> PortSpec | None:
        """The member of the family with this name, such as `to.cars`; `None` if the name is invalid."""
        family, _, member = port.partition(".")
        fits = family == self.family and member and all(letter.isalnum() or letter in "-_" for letter in member)
        return replace(self, name=port) if fits else None


def node_at(place: str, nodes: Container[str]) -> tuple[str, str]:
    """Split a place, `node.port` or `node.family.member`, into the node, one of *nodes*, and the port."""
    node, _, port = place.rpartition(".")
    head, _, family = node.rpartition(".")
    return (head, f"{family}.{port}") if node not in nodes and head in nodes else (node, port)


def is_generic(ports: Iterable[PortSpec]) -> bool:
    """Whether outputs among these ports have type variables, which are bound to the types of the inputs."""
    return any(port.direction == "out" and assignable.variables(port.type.item) for port in ports)


def derived(
    inputs: Iterable[PortSpec], outputs: Iterable[PortSpec], taken: Mapping[str, PortType]
) -> tuple[PortSpec, ...]:
    """Return the outputs with their type variables bound to the types in *taken*, which arrive at the inputs."""
    found: dict[TypeVar, Any] = {}
    for port in inputs:
        if (given := taken.get(port.name)) is not None:
            assignable.bind(type_of(port.type.item), type_of(dict if given.form == "columns" else given.item), found)
    return tuple(
        replace(port, type=replace(port.type, item=assignable.substitute(port.type.item, found))) for port in outputs
    )


def port_type(annotation: Any) -> PortType:
    """Read the type of a port from its annotation (of a result, without `None` and `Iterator`).

    Raise `TypeError` for a union of several forms: items, batches, columns.
    """
    members = type_of(annotation).members
    payload = [one for one in members if one.kind != "none" and one.cls not in (Punctuation, EndOfStream)]
    kinds = {one.cls for one in members}
    flags: dict[str, Any] = {"punctuation": Punctuation in kinds, "end": EndOfStream in kinds}
    if (only := payload[0] if len(payload) == 1 else ANY).kind == "columns":
        return PortType(only.annotation, "columns", only.schema, **flags)
    if only.cls is Batch and only.schema is not None and Reference in getattr(only.element.cls, "__mro__", ()):
        return PortType(batch_type(), "columns", only.schema, reference=only.element.cls, **flags)
    if only.cls is Batch:
        return PortType(only.element.annotation, "batch", **flags)
    if any(one.kind == "columns" or one.cls is Batch for one in payload):
        raise TypeError("a union of items, batches and columns has no form: choose one of them")
    flags["bare"] = not payload and any(flags.values())
    return PortType(Union[tuple(one.annotation for one in payload)] if payload else Any, **flags)  # noqa: UP007 (built at run time)


def names_references(item: Any, kind: type[Reference]) -> bool:
    """Whether items of the type *item* are references of this class, and not the rows for which these stand."""
    return any(one.cls in kind.__mro__ for one in type_of(item).members)


def mismatch(source: PortType, target: PortType, *, decoded: bool = False) -> str | None:
    """Return why items of *source* cannot enter *target*, with the field in which they differ, or `None`.

    With *decoded*, they come from another host.
    """
    if target.form != "columns" and names_references(target.item, source.reference or Reference):
        if source.reference is not None:
            return None
        if source.form == "columns":
            return "these are rows, and no references to them"
    if "columns" not in (source.form, target.form):
        found = assignable.find_mismatch(source.items, target.items, decoded=decoded)
        return None if found is None else str(found)
    for rows in (source, target):
        if rows.form != "columns" and not all(map(_has_fields, rows.items.members)):
            return f"items of type {rows} have no columns"
    found = assignable.find_column_mismatch(source.items, target.items)
    return None if found is None else "the columns differ: " * (source.form == target.form) + str(found)


def _has_fields(item: Type) -> bool:
    """Whether items of this type can be converted to columns: they have fields, or their type is unknown."""
    mapping = isinstance(item.cls, type) and issubclass(item.cls, Mapping)
    return mapping or item.kind in ("any", "open", "variable", "record")
