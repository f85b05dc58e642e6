"""Where a slet meets a channel: the handles a slet sees, and the types its ports carry."""

from __future__ import annotations

import types
import typing
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar, Union

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
    """What a port carries, read from an annotation.

    `item` is the type of one item, `form` how the slet handles it (single items, lists, Arrow columns), `schema` the
    declared `pyarrow.Schema` of columns or `None`. `punctuation` and `end` tell whether the slet sees control items.
    """

    item: Any = Any
    form: Form = "item"
    schema: Any = None
    punctuation: bool = False
    end: bool = False

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
    if isinstance(annotation, type) and not typing.get_args(annotation):
        return annotation.__qualname__
    return str(annotation).replace("typing.", "").replace("collections.abc.", "")


def is_columns(annotation: Any) -> bool:
    """Tell whether *annotation* is `pyarrow.RecordBatch`, without importing pyarrow."""
    return getattr(annotation, "__name__", "") == "RecordBatch" and getattr(annotation, "__module__", "").startswith(
        "pyarrow"
    )


def union_members(annotation: Any) -> tuple[Any, ...]:
    """The members of a union, or the annotation alone."""
    if typing.get_origin(annotation) in (Union, types.UnionType):
        return typing.get_args(annotation)
    return (annotation,)


def port_type(annotation: Any) -> PortType:
    """Read what a port carries from its annotation (without the `None` and `Iterator` of a result)."""
    members = union_members(annotation)
    payload = [member for member in members if member not in (Punctuation, EndOfStream, type(None))]
    flags: dict[str, Any] = {"punctuation": Punctuation in members, "end": EndOfStream in members}
    if len(payload) != 1:
        return PortType(Union[tuple(payload)] if payload else Any, **flags)  # noqa: UP007 (built at run time)
    (only,) = payload
    if typing.get_origin(only) is typing.Annotated:
        base, *extras = typing.get_args(only)
        if is_columns(base):
            schema = next((extra for extra in extras if type(extra).__name__ == "Schema"), None)
            return PortType(base, "columns", schema, **flags)
        return PortType(base, **flags)
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
    return None if _fits(source.item, target.item) else f"{source} leaves, {target} is expected"


def has_fields(item: Any) -> bool:
    """Tell whether items of this type can stand in columns: dataclasses, structs, dictionaries, or not declared."""
    if item in (Any, object, dict) or typing.get_origin(item) is dict:
        return True
    return hasattr(item, "__dataclass_fields__") or hasattr(item, "__struct_fields__") or hasattr(item, "_fields")


def _columns(schema: Any) -> str:
    return ", ".join(f"{field.name} {field.type}" for field in schema)


def _fits(source: Any, target: Any) -> bool:
    if Any in (source, target) or object in (source, target) or isinstance(source, TypeVar) or source == target:
        return True
    targets = union_members(target)
    if len(union_members(source)) > 1:
        return all(_fits(member, target) for member in union_members(source))
    if len(targets) > 1:
        return any(_fits(source, member) for member in targets)
    if source is int and target is float:
        return True
    plain_source, plain_target = typing.get_origin(source) or source, typing.get_origin(target) or target
    if not (isinstance(plain_source, type) and isinstance(plain_target, type)):
        return False
    if not issubclass(plain_source, plain_target):
        return False
    pairs = zip(typing.get_args(source), typing.get_args(target), strict=False)
    return all(_fits(one, other) for one, other in pairs)
