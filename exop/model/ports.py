"""Ports: the handles that a slet uses, and the types that its ports carry."""

from __future__ import annotations

import types
import typing
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, Literal, TypeVar, Union

from exop.model.fitting import fits, unalias, union_members
from exop.model.items import Batch, EndOfStream, Punctuation

T = TypeVar("T")
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


@dataclass(frozen=True)
class PortType:
    """The type of the items of a port, read from an annotation.

    `item` is the type of one item, `form` how the slet handles it (single items, lists, Arrow columns), `schema` the
    declared `pyarrow.Schema` of columns or `None`. `punctuation` and `end` tell whether the slet sees control items,
    `pauses` whether it may yield `None`, which is no item.
    """

    item: Any = Any
    form: Form = "item"
    schema: Any = None
    punctuation: bool = False
    end: bool = False
    pauses: bool = field(default=False, compare=False)

    def __str__(self) -> str:
        return "pyarrow.RecordBatch" if self.form == "columns" else type_name(self.item)


@dataclass(frozen=True)
class PortSpec:
    """One port of a slet: its name, direction and type; `method` handles an input, `pulled` means the slet pulls it."""

    name: str
    direction: Direction
    type: PortType
    method: str | None = None
    pulled: bool = False


def type_name(annotation: Any) -> str:
    """The short text of an annotation, for messages."""
    if typing.get_origin(annotation) in (Union, types.UnionType):
        return " | ".join(type_name(member) for member in typing.get_args(annotation))
    if annotation is type(None):
        return "None"
    if isinstance(annotation, (type, typing.NewType)) and not typing.get_args(annotation):
        return str(annotation.__qualname__)  # type: ignore[union-attr]
    return str(annotation).replace("typing.", "").replace("collections.abc.", "")


def is_columns(annotation: Any) -> bool:
    """Tell whether *annotation* is `pyarrow.RecordBatch`, without importing pyarrow."""
    return getattr(annotation, "__name__", "") == "RecordBatch" and getattr(annotation, "__module__", "").startswith(
        "pyarrow"
    )


def port_type(annotation: Any) -> PortType:
    """Read what a port carries from its annotation (without the `None` and `Iterator` of a result).

    Raises:
        TypeError: a union of several forms: items, batches, columns.
    """
    members = tuple(unalias(member) for member in union_members(unalias(annotation)))
    payload = [member for member in members if member not in (Punctuation, EndOfStream, type(None))]
    flags: dict[str, Any] = {"punctuation": Punctuation in members, "end": EndOfStream in members}
    if len(payload) != 1:
        if any(_payload_type(member, {}).form != "item" for member in payload):
            raise TypeError("a union of items, batches and columns has no form: choose one of them")
        return PortType(Union[tuple(payload)] if payload else Any, **flags)  # noqa: UP007 (built at run time)
    return _payload_type(payload[0], flags)


def _payload_type(only: Any, flags: dict[str, Any]) -> PortType:
    if typing.get_origin(only) is typing.Annotated:
        base, *extras = typing.get_args(only)
        if is_columns(base):
            schema = next((extra for extra in extras if type(extra).__name__ == "Schema"), None)
            return PortType(base, "columns", schema, **flags)
        return _payload_type(base, flags)
    if is_columns(only):
        return PortType(only, "columns", **flags)
    if typing.get_origin(only) is Batch or only is Batch:
        return PortType((typing.get_args(only) or (Any,))[0], "batch", **flags)
    return PortType(only, **flags)


def mismatch(source: PortType, target: PortType) -> str | None:
    """Say why what leaves *source* cannot enter *target*, or `None` when it can."""
    if source.form == "columns" and target.form == "columns":
        if source.schema is None or target.schema is None or source.schema.equals(target.schema):
            return None
        return f"the columns differ: {_columns(source.schema)} leave, {_columns(target.schema)} are expected"
    if "columns" in (source.form, target.form):
        rows = target if source.form == "columns" else source
        return None if has_fields(rows.item) else f"items of type {rows} have no columns"
    return None if fits(source.item, target.item) else f"{source} leaves, {target} is expected"


def has_fields(item: Any) -> bool:
    """Tell whether items of this type can stand in columns: dataclasses, structs, dictionaries, or not declared."""
    members = union_members(item)
    if len(members) > 1:
        return all(has_fields(member) for member in members)
    plain = typing.get_origin(item) or item
    if plain in (Any, object) or isinstance(plain, TypeVar):
        return True
    if isinstance(plain, type) and issubclass(plain, Mapping):
        return True
    return any(hasattr(plain, mark) for mark in ("__dataclass_fields__", "__struct_fields__", "_fields"))


def _columns(schema: Any) -> str:
    return ", ".join(f"{field.name} {field.type}" for field in schema)
