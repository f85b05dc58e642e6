"""The description of a type, read once from its annotation.

Only this module interprets annotations; all others ask it for the kind of a type, its arguments and its fields. These
are described when they are first read, so that a type may contain itself.
"""

from __future__ import annotations

import collections.abc
import dataclasses
import enum
import sys
import types
import typing
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from functools import cached_property, lru_cache
from pathlib import PurePath
from typing import Any, Final, Literal, NewType, TypeAlias, TypeVar, Union
from uuid import UUID

from exop.model.reached import reached

Kind: TypeAlias = Literal[
    "any",  # everything: `Any`, `object`
    "open",  # not known: a name that is not resolved, a form without meaning here
    "none",
    "scalar",  # a number, text, bytes, a moment, a path, an identifier
    "choice",  # `Literal`
    "enum",
    "union",
    "list",  # any number of elements of one type: lists, sets, deques, `tuple[T, ...]`, `Sequence[T]`
    "tuple",  # a fixed number of elements
    "table",  # keys and values
    "record",  # named fields: dataclasses, named tuples, typed dictionaries, msgspec structures, Arrow structures
    "columns",  # record batches; named fields if their schema is declared
    "new",  # `NewType`
    "variable",  # `TypeVar`; the arguments are its bounds
    "class",  # any other class
    "callable",
    "type",
]

SCALARS: Final = frozenset(
    (bool, int, float, complex, str, bytes, bytearray, Decimal, datetime, date, time, timedelta, UUID)
)
_LISTS: Final = (list, tuple, set, frozenset, deque)
#: The concrete class for each abstract container.
CONCRETE: Final[dict[Any, type]] = {
    collections.abc.Iterable: list,
    collections.abc.Collection: list,
    collections.abc.Sequence: list,
    collections.abc.MutableSequence: list,
    collections.abc.Set: set,
    collections.abc.MutableSet: set,
    collections.abc.Mapping: dict,
    collections.abc.MutableMapping: dict,
    **{one: one for one in (*_LISTS, dict, OrderedDict, Counter, defaultdict)},
}
_WRAPPERS: Final = (typing.Required, typing.NotRequired, typing.Final, typing.ClassVar)


@dataclass(frozen=True)
class Field:
    """One field of a record or column of a batch.

    Attributes:
        required: It has no default.
        given: The constructor accepts it.
        written: The annotation as it is in the source.
    """

    name: str
    type: Type
    required: bool = True
    given: bool = True
    written: str = ""


@dataclass(frozen=True, eq=False, repr=False)
class Type:
    """A type: its kind, its short name for messages, and its class, if that is known here.

    Attributes:
        annotation: The annotation, without aliases and notes.
        notes: The notes on it (`Annotated`) that are more than text, such as bounds.
        identity: Module and name of the class.
    """

    kind: Kind
    name: str
    cls: Any = None
    annotation: Any = None
    notes: tuple[Any, ...] = ()
    identity: str = ""

    def __str__(self) -> str:
        return self.name

    __repr__ = __str__

    @cached_property
    def arguments(self) -> tuple[Type, ...]:
        """The types of which it consists: members, elements, key and value, bounds."""
        return tuple(map(type_of, _arguments(self.kind, self.annotation, self.cls)))

    @cached_property
    def choices(self) -> tuple[Any, ...]:
        """The values of a `Literal`, or the members of an enumeration."""
        if self.kind == "enum":
            return tuple(self.cls.__members__.values())
        return typing.get_args(self.annotation) if self.kind == "choice" else ()

    @property
    def texts(self) -> tuple[str, ...]:
        """The choices as text, which is all that is known of a type described by another platform."""
        if self.kind == "enum" and self.cls is not None:
            return tuple(self.cls.__members__)
        return self.choices if self.annotation is None else tuple(map(repr, self.choices))

    @cached_property
    def fields(self) -> Mapping[str, Field]:
        """The fields of a record, or the columns of a declared schema, by name."""
        if self.kind not in ("record", "columns"):
            return {}
        found = map(_column, self.schema or ()) if self.kind == "columns" else _fields(self.cls)
        return {field.name: field for field in found}

    @property
    def annotated(self) -> Any:
        """The annotation with its notes."""
        return typing.Annotated[(self.annotation, *self.notes)] if self.notes else self.annotation

    @property
    def schema(self) -> Any:
        """The declared `pyarrow.Schema` of columns, or `None`."""
        return next((note for note in self.notes if type(note).__name__ == "Schema"), None)

    @property
    def members(self) -> tuple[Type, ...]:
        """The members of a union, or the type itself."""
        return self.arguments if self.kind == "union" else (self,)

    @cached_property
    def shape(self) -> dict[str, str]:
        """The annotations of the fields as they are in the source, by name."""
        return {name: field.written for name, field in self.fields.items()}

    @property
    def takes_none(self) -> bool:
        """Whether `None` is a valid value: it is declared, or anything is."""
        return self.annotation is Any or self.nullable

    @property
    def nullable(self) -> bool:
        """Whether the type declares `None`."""
        return any(one.kind == "none" for one in self.members)

    @cached_property
    def bare(self) -> Type:
        """The type behind its own names (`NewType`)."""
        found = self
        while found.kind == "new":
            found = found.arguments[0]
        return found

    @cached_property
    def sole(self) -> Type:
        """The one type of all values other than `None`; `Any` if there are several."""
        if len(members := [one for one in self.members if one.kind != "none"]) != 1:
            return ANY
        return members[0].bare if members[0].bare is self else members[0].bare.sole

    @property
    def element(self) -> Type:
        """The type of the elements of a list."""
        return self.arguments[0] if self.kind == "list" and self.arguments else ANY

    def elements(self, count: int) -> list[Type]:
        """The types of *count* elements."""
        if self.kind == "tuple":
            return [*self.arguments, *[ANY] * max(0, count - len(self.arguments))][:count]
        return [self.element] * count

    @property
    def entry(self) -> tuple[Type, Type]:
        """The types of the keys and values of a table."""
        return (self.arguments[0], self.arguments[1]) if self.kind == "table" and self.arguments else (ANY, ANY)

    @cached_property
    def bases(self) -> tuple[Type, ...]:
        """The classes from which its class is derived, other than `object`."""
        return tuple(map(type_of, self.cls.__mro__[1:-1])) if isinstance(self.cls, type) else ()

    @property
    def is_row(self) -> bool:
        """Whether it is a record whose values are dictionaries."""
        is_dict = self.cls is None and any(one.cls is dict for one in self.bases)
        return self.kind == "record" and (is_dict or self.cls is dict or typing.is_typeddict(self.cls))

    def reached(self, *, unions: bool = True) -> Iterator[Type]:
        """Yield this type and all of which it consists, each once; without *unions*, no members of unions."""

        def parts(one: Type) -> Iterator[Type]:
            yield from one.arguments if unions or one.kind != "union" else ()
            yield from (field.type for field in one.fields.values())

        return reached([self], parts)


def type_of(annotation: Any) -> Type:
    """Describe the type that an annotation declares."""
    if type(annotation) is Type:
        return annotation
    try:
        if issubclass(type(annotation), type):
            return _known(annotation)
        # Unions are equal in any order of their members, and the order counts where a value is converted.
        return _known(annotation, repr(annotation))
    except TypeError:  # it cannot be hashed, or a note on it
        return _described(annotation)


def forget() -> None:
    """Clear the cache, when classes are loaded or unloaded."""
    _known.cache_clear()


@lru_cache(maxsize=8192)
def _known(annotation: Any, text: str = "") -> Type:
    elsewhere = None if text else vars(annotation).get("__described__")  # of a class whose code is not here
    return elsewhere if type(elsewhere) is Type else _described(annotation)


def _described(annotation: Any) -> Type:
    annotation = unalias(annotation)
    notes: tuple[Any, ...] = ()
    plain = annotation
    while typing.get_origin(plain) in (typing.Annotated, *_WRAPPERS):
        notes += getattr(plain, "__metadata__", ())
        plain = unalias(typing.get_args(plain)[0])
    kind, cls = _kind(plain)
    name = type_name(plain if kind == "columns" or (plain is not annotation and not notes) else annotation)
    named = plain if kind == "new" else cls
    identity = f"{named.__module__}:{named.__qualname__}" if named is not None else ""
    return Type(kind, name, cls, plain, notes, identity)


def unalias(annotation: Any) -> Any:
    """Remove aliases (`type X = …`) and notes that are only text."""
    while True:
        if type(annotation).__name__ == "TypeAliasType":
            annotation = annotation.__value__
        elif typing.get_origin(annotation) is typing.Annotated and all(
            isinstance(note, str) for note in annotation.__metadata__
        ):
            annotation = annotation.__origin__
        else:
            return annotation


def type_name(annotation: Any) -> str:
    """The short text of an annotation, for messages."""
    if typing.get_origin(annotation) in (Union, types.UnionType):
        return " | ".join(type_name(member) for member in typing.get_args(annotation))
    if annotation is type(None):
        return "None"
    if isinstance(annotation, (type, NewType)) and not typing.get_args(annotation):
        return str(annotation.__qualname__)  # type: ignore[union-attr]
    return str(annotation).replace("typing.", "").replace("collections.abc.", "").replace("~", "")


def is_named_tuple(kind: Any) -> bool:
    """Whether *kind* is a class of named tuples."""
    return isinstance(kind, type) and issubclass(kind, tuple) and hasattr(kind, "_fields")


def _kind(plain: Any) -> tuple[Kind, Any]:
    """The kind of an annotation, and its class."""
    origin = typing.get_origin(plain)
    if plain is Any or plain is object:
        return "any", None
    if plain is None or plain is type(None):
        return "none", type(None)
    if origin in (Union, types.UnionType):
        return "union", None
    if isinstance(plain, (TypeVar, NewType)):
        return ("variable" if isinstance(plain, TypeVar) else "new"), None
    if origin is Literal:
        return "choice", None
    if origin is type or plain is type:
        return "type", type
    if origin is collections.abc.Callable or plain is collections.abc.Callable:
        return "callable", collections.abc.Callable
    kind = origin or plain
    return (_kind_of_class(kind, typing.get_args(plain)), kind) if isinstance(kind, type) else ("open", None)


def _kind_of_class(kind: type, arguments: tuple[Any, ...]) -> Kind:
    if issubclass(kind, enum.Enum):
        return "enum"
    if kind in SCALARS or issubclass(kind, PurePath):
        return "scalar"
    is_struct = hasattr(kind, "__struct_fields__")
    if dataclasses.is_dataclass(kind) or typing.is_typeddict(kind) or is_named_tuple(kind) or is_struct:
        return "record"
    if issubclass(kind, tuple) and arguments and arguments[-1] is not Ellipsis:
        return "tuple"
    if issubclass(kind, _LISTS):
        return "list"
    if issubclass(kind, dict):
        return "table"
    if kind in CONCRETE:
        return "table" if CONCRETE[kind] is dict else "list"
    return "columns" if kind.__name__ == "RecordBatch" and kind.__module__.partition(".")[0] == "pyarrow" else "class"


def _arguments(kind: Kind, plain: Any, cls: Any) -> tuple[Any, ...]:
    if kind == "new":
        return (plain.__supertype__,)
    if kind == "variable":
        return plain.__constraints__ or ((plain.__bound__,) if plain.__bound__ is not None else ())
    if kind == "choice":
        return tuple(dict.fromkeys(map(type, typing.get_args(plain))))
    if kind in ("callable", "open"):
        return ()
    found = typing.get_args(plain)
    if kind == "table":
        found = (found[0], int) if cls is Counter and len(found) == 1 else found
        return found if len(found) == 2 else ()
    return tuple(one for one in found if one is not Ellipsis)


def built(
    kind: Kind,
    name: str,
    cls: Any = None,
    *,
    identity: str = "",
    arguments: tuple[Type, ...] = (),
    fields: typing.Iterable[Field] = (),
    choices: tuple[Any, ...] = (),
) -> Type:
    """Describe a type without an annotation."""
    found = Type(kind, name, cls, None, (), identity)
    vars(found).update(arguments=arguments, fields={field.name: field for field in fields}, choices=choices)
    return found


#: The type that takes everything, and one of which nothing is known.
ANY: Final = type_of(Any)
OPEN: Final = built("open", "Any")


def _fields(kind: Any) -> Iterator[Field]:
    hints, absent = _hints(kind), dataclasses.MISSING
    if dataclasses.is_dataclass(kind):
        for one in dataclasses.fields(kind):
            required = one.default is absent and one.default_factory is absent
            # Nearly as it is in the source, since stored mementos contain it.
            plain = isinstance(one.type, type) and not typing.get_args(one.type)
            written = getattr(one.type, "__qualname__", "") if plain else str(one.type)
            yield Field(one.name, type_of(hints[one.name]), required, one.init, written)
        return
    if typing.is_typeddict(kind):
        names = tuple(kind.__annotations__)
        # Python itself does not see `NotRequired` in an annotation that is text.
        optional = {name for name in names if typing.get_origin(hints[name]) is typing.NotRequired}
        defaults: Mapping[str, Any] = dict.fromkeys(kind.__optional_keys__ | optional)
    elif hasattr(kind, "__struct_fields__"):
        names = kind.__struct_fields__
        found = kind.__struct_defaults__
        named = zip(names[len(names) - len(found) :], found, strict=True)
        defaults = {name: one for name, one in named if "nodefault" not in type(one).__name__.lower()}
    else:
        names, defaults = kind._fields, kind._field_defaults
    for name in names:
        wanted = type_of(hints[name])
        yield Field(name, wanted, name not in defaults, written=wanted.name)


def _hints(kind: Any) -> Mapping[str, Any]:
    """Resolve the annotations of a class, by field; one that cannot be resolved becomes `open`, under its text."""
    found: dict[str, Any] = defaultdict(lambda: OPEN)
    with suppress(*_UNRESOLVED):
        return found | typing.get_type_hints(kind, include_extras=True)
    for base in reversed(kind.__mro__):
        known = dict(vars(sys.modules.get(base.__module__, types)))
        for name, one in vars(base).get("__annotations__", {}).items():
            found[name] = built("open", one) if isinstance(one, str) else OPEN
            holder = types.SimpleNamespace(__annotations__={name: one})
            with suppress(*_UNRESOLVED):
                found |= typing.get_type_hints(holder, known, dict(vars(base)), include_extras=True)
    return found


_UNRESOLVED: Final = (NameError, TypeError, AttributeError, SyntaxError)


#: The types of Arrow by the beginning of their name.
_ARROW: Final[dict[str, type]] = {
    **dict.fromkeys(("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"), int),
    **dict.fromkeys(("halffloat", "float", "double"), float),
    **dict.fromkeys(("string", "large_string", "string_view"), str),
    **dict.fromkeys(("binary", "large_binary", "binary_view", "fixed_size_binary"), bytes),
    **dict.fromkeys(("date32", "date64"), date),
    **dict.fromkeys(("time32", "time64"), time),
    **dict.fromkeys(("decimal32", "decimal64", "decimal128", "decimal256"), Decimal),
    "bool": bool,
    "timestamp": datetime,
    "duration": timedelta,
}


def _column(column: Any) -> Field:
    return Field(column.name, _of_arrow(column.type), not column.nullable, written=str(column.type))


def _of_arrow(arrow: Any) -> Type:
    text = str(arrow)
    if (head := text.partition("[")[0].partition("(")[0].partition("<")[0]) in _ARROW:
        return Type("scalar", text, _ARROW[head], text, identity=type_of(_ARROW[head]).identity)
    if head == "dictionary":
        return _of_arrow(arrow.value_type)
    if head in ("list", "large_list", "fixed_size_list", "list_view"):
        return built("list", text, list, identity="builtins:list", arguments=(_of_arrow(arrow.value_type),))
    if head == "struct":
        columns = [_column(arrow.field(place)) for place in range(arrow.num_fields)]
        return built("record", text, dict, identity="builtins:dict", fields=columns)
    return Type("none" if head == "null" else "open", text)
