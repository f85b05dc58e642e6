"""Ports: the handles that a slet uses, and the types that its ports carry."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from types import GenericAlias
from typing import Annotated, Any, Final, Generic, Literal, TypeVar, Union

from exop.errors import SettingError, UnknownName
from exop.model.items import Batch, EndOfStream, Punctuation
from exop.model.types.assignable import (
    bind,
    find_column_mismatch,
    find_mismatch,
    missing_field,
    not_a_time,
    substitute,
    variables,
)
from exop.model.types.description import Type, type_name, type_of

T = TypeVar("T")
#: The output port by which the results of a slet leave.
OUT: Final = "out"
#: The kind of channel that hands out lists of items.
WINDOW: Final = "window"
In = TypeVar("In", contravariant=True)

Form = Literal["item", "batch", "columns"]
Direction = Literal["in", "out"]


class OutputPort(ABC, Generic[In]):
    """An output port in the hands of its slet (paper §2.2: push).

    What a slet pushes inside a method leaves after the method has returned. A slet with a driver of its own
    (`class Engine(Slet, own_driver=True)`) pushes from its own thread; every call is then a safe point.
    """

    @abstractmethod
    def push(self, item: In | Punctuation | EndOfStream) -> None:
        """Send one item, or a control item. Waits while the channel has no room."""

    @abstractmethod
    def push_batch(self, batch: Any) -> None:
        """Send several items at once: a list of items or a `pyarrow.RecordBatch`."""

    @abstractmethod
    def end(self) -> None:
        """Send the end of the stream. Only a slet with a driver of its own has to."""

    @abstractmethod
    def fail(self, error: BaseException) -> None:
        """Report that the work behind this port broke; the component becomes `failed` and shows *error*."""


class InputPort(ABC, Generic[T]):
    """An input port from which its slet pulls (paper §2.2: pull).

    On a channel that passes items on (direct, queue, log) a pull takes the next ones; on one that keeps them (latch,
    table, window) it reads the current contents. Further methods of the channel (`get`, `query`, …) are found here too.
    """

    @abstractmethod
    def pull(self, most: int = 1024, wait: bool = True) -> list[T]:
        """Return 0..*most* items. With *wait*, at least one, unless the stream has ended."""

    @abstractmethod
    def __iter__(self) -> Iterator[T]:
        """Pull items one by one until the stream ends."""

    @abstractmethod
    def __getattr__(self, name: str) -> Any:
        """Reach the extended interface of the channel."""


class OutputPorts(dict[str, OutputPort[In]]):
    """A family of output ports: those that the mesh connects, by name (`to.cars` of the field `to`)."""

    def __missing__(self, name: str) -> OutputPort[In]:
        raise UnknownName(place="the family of ports", kind="member", name=name, known=self)


class InputPorts(dict[str, InputPort[T]]):
    """A family of input ports from which the slet pulls: those that the mesh connects, by name."""


@dataclass(frozen=True)
class PortType:
    """The type of the items of a port, read from an annotation.

    `item` is the type of one item, `form` how the slet handles it (single items, lists, Arrow columns), `schema` the
    declared `pyarrow.Schema` of columns or `None`. `punctuation` and `end` tell whether the slet sees control items,
    `pauses` whether it may yield `None`, which is no item. `origin` names the output from which a type of an input
    comes, for messages.
    """

    item: Any = Any
    form: Form = "item"
    schema: Any = None
    punctuation: bool = False
    end: bool = False
    pauses: bool = field(default=False, compare=False)
    origin: str = field(default="", compare=False)

    def __str__(self) -> str:
        return "pyarrow.RecordBatch" if self.form == "columns" else type_name(self.item)

    @cached_property
    def fingerprint(self) -> str:
        """A short text that is equal for ports that carry the same, on any platform."""
        # Imported lazily: only statuses and descriptions need it.
        from exop.model.types.evolution import fingerprint

        return fingerprint(self.items)

    @cached_property
    def items(self) -> Type:
        """The description of one item; of columns, that of their schema."""
        return type_of(self.item if self.schema is None else Annotated[self.item, self.schema])

    @property
    def windowed(self) -> PortType:
        """The type of the windows of such items: lists; rows of columns are dictionaries."""
        item = dict if self.form == "columns" else self.item
        return replace(self, item=GenericAlias(list, (item,)), form="item", schema=None)

    @property
    def sent_by(self) -> str:
        """The end of a message on such items: where they come from."""
        return f" ({self.origin} sends it)" if self.origin else ""

    def check_field(self, place: str, setting: str, name: str) -> None:
        """Refuse the *name* that a *setting* of *place* gives to a field if these items have none of that name.

        The field that a setting called `time` names has to be a number.

        A slet whose settings name fields calls it in `specialised`, with an empty *place*.

        Raises:
            SettingError: they have none, and the error names those that they have; or it is no number.
        """
        problem = missing_field(self.items, name)
        if problem is None and setting.rpartition(".")[2] == "time":
            problem = not_a_time(self.items, name)
        if problem is not None:
            raise SettingError(place=place, setting=setting, problem=f"{problem}{self.sent_by}")


@dataclass(frozen=True)
class PortSpec:
    """One port of a slet: its name, direction and type; `method` handles an input, `pulled` means the slet pulls it.

    One called `family.*` is a family: it stands for any number of ports `family.member` of its type.
    """

    name: str
    direction: Direction
    type: PortType
    method: str | None = None
    pulled: bool = False

    @property
    def family(self) -> str:
        """The name of its family, or its own where it belongs to none."""
        return self.name.partition(".")[0]

    @property
    def member(self) -> str:
        """Its name within its family; empty where it belongs to none."""
        return self.name.partition(".")[2]

    def of(self, port: str) -> PortSpec | None:
        """The member of a family that has this name, `to.cars`; `None` if there can be none."""
        family, _, member = port.partition(".")
        fits = family == self.family and member and all(letter.isalnum() or letter in "-_" for letter in member)
        return replace(self, name=port) if fits else None


def node_at(place: str, nodes: Container[str]) -> tuple[str, str]:
    """Split a place, `node.port` or `node.family.member`, into the node, which is one of *nodes*, and the port."""
    node, _, port = place.rpartition(".")
    head, _, family = node.rpartition(".")
    return (head, f"{family}.{port}") if node not in nodes and head in nodes else (node, port)


def is_generic(ports: Iterable[PortSpec]) -> bool:
    """Whether there are outputs among these ports whose types have variables, which stand for what comes."""
    return any(port.direction == "out" and variables(port.type.item) for port in ports)


def derived(
    inputs: Iterable[PortSpec], outputs: Iterable[PortSpec], taken: Mapping[str, PortType]
) -> tuple[PortSpec, ...]:
    """Return outputs with the types that their variables stand for where *taken* comes to the inputs."""
    found: dict[TypeVar, Any] = {}
    for port in inputs:
        if (given := taken.get(port.name)) is not None:
            bind(type_of(port.type.item), type_of(dict if given.form == "columns" else given.item), found)
    return tuple(replace(port, type=replace(port.type, item=substitute(port.type.item, found))) for port in outputs)


def port_type(annotation: Any) -> PortType:
    """Read what a port carries from its annotation (without the `None` and `Iterator` of a result).

    Raises:
        TypeError: a union of several forms: items, batches, columns.
    """
    members = type_of(annotation).members
    payload = [one for one in members if one.kind != "none" and one.cls not in (Punctuation, EndOfStream)]
    kinds = {one.cls for one in members}
    flags: dict[str, Any] = {"punctuation": Punctuation in kinds, "end": EndOfStream in kinds}
    if len(payload) == 1:
        return _payload_type(payload[0], flags)
    if any(one.kind == "columns" or one.cls is Batch for one in payload):
        raise TypeError("a union of items, batches and columns has no form: choose one of them")
    return PortType(Union[tuple(one.annotation for one in payload)] if payload else Any, **flags)  # noqa: UP007 (built at run time)


def _payload_type(only: Type, flags: dict[str, Any]) -> PortType:
    if only.kind == "columns":
        return PortType(only.annotation, "columns", only.schema, **flags)
    if only.cls is Batch:
        return PortType(only.element.annotation, "batch", **flags)
    return PortType(only.annotation, **flags)


def mismatch(source: PortType, target: PortType) -> str | None:
    """Say why what leaves *source* cannot enter *target*, with the field where they differ; `None` when it can."""
    if "columns" not in (source.form, target.form):
        found = find_mismatch(source.items, target.items)
        return None if found is None else str(found)
    for rows in (source, target):
        if rows.form != "columns" and not all(map(_has_fields, rows.items.members)):
            return f"items of type {rows} have no columns"
    found = find_column_mismatch(source.items, target.items)
    both = "the columns differ: " if source.form == target.form else ""
    return None if found is None else f"{both}{found}"


def _has_fields(item: Type) -> bool:
    """Whether items of this type can stand in columns: they have fields, or nothing is known of them."""
    mapping = isinstance(item.cls, type) and issubclass(item.cls, Mapping)
    return mapping or item.kind in ("any", "open", "variable", "record")
