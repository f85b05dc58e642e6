"""The pure functions of expressions: their signatures, and what they do with values of Python."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime, timedelta
from operator import attrgetter
from typing import Any, Final, NamedTuple

from exop.model.expressions.kinds import TYPES, common, kind_of, list_of
from exop.model.expressions.values import calculate, checked, less, real
from exop.model.types.description import ANY, Type, type_of

#: The maximum number of characters of a text that `replace` makes longer.
LARGEST_TEXT: Final = 1_000_000
#: The names of several kinds, in signatures.
_SEVERAL: Final[dict[str, tuple[str, ...]]] = {
    "number": ("int", "float", "Decimal"),
    "value": ("any",),
    "ordered": ("bool", "int", "float", "Decimal", "str", "datetime", "date", "timedelta"),
}


class Parameter(NamedTuple):
    """A parameter of a function: its name, the kinds of values it takes, and how it is written in messages."""

    name: str
    kinds: frozenset[str]
    written: str


@dataclass(frozen=True)
class Function:
    """A pure function that expressions may call.

    Attributes:
        name: The name in expressions; that of a function of a plugin is `plugin.name`.
        call: The function of Python.
        parameters: The parameters.
        result: The type of the result; `None`: the common type of the arguments.
        required: The number of arguments that have to be given.
        repeats: Whether further arguments for the last parameter may follow.
        lazy: Whether it sees NULL, and only the arguments that it needs: `coalesce`.
        arrow: A function of Arrow arrays that does the same for columns; without one, columns go row by row, some
            hundred times slower.
        example: An expression without fields, and its value.
    """

    name: str
    call: Callable[..., Any]
    parameters: tuple[Parameter, ...]
    result: Type | None
    required: int
    repeats: bool = False
    lazy: bool = False
    arrow: Callable[..., Any] | None = None
    doc: str = ""
    example: tuple[str, str] = field(default=("", ""), compare=False)

    @classmethod
    def of(cls, call: Callable[..., Any], arrow: Callable[..., Any] | None = None) -> Function:
        """Return an annotated function of Python as one of expressions; NULL is its result if an argument is NULL.

        Raises:
            TypeError: a parameter can only be given by name.
        """
        signature = inspect.signature(call, eval_str=True)
        found = [*signature.parameters.values()]
        if any(one.kind in (one.KEYWORD_ONLY, one.VAR_KEYWORD) for one in found):
            raise TypeError(f"{call.__name__} has a parameter that can only be given by name")
        types = [ANY if one.annotation is one.empty else type_of(one.annotation) for one in found]
        parameters = tuple(
            Parameter(one.name, _accepted(kind), str(kind)) for one, kind in zip(found, types, strict=True)
        )
        result = ANY if signature.return_annotation is signature.empty else type_of(signature.return_annotation)
        required = sum(one.default is one.empty and one.kind is not one.VAR_POSITIONAL for one in found)
        repeats = any(one.kind is one.VAR_POSITIONAL for one in found)
        doc = (inspect.getdoc(call) or "").partition("\n")[0]
        return cls(call.__name__, call, parameters, result, required, repeats, arrow=arrow, doc=doc)

    @property
    def signature(self) -> str:
        """The signature, as it is written in messages."""
        shown = [
            f"{'*' * (self.repeats and one is self.parameters[-1])}{one.name}: {one.written}"
            + " = …" * (place >= self.required and not self.repeats)
            for place, one in enumerate(self.parameters)
        ]
        return f"{self.name}({', '.join(shown)}) -> {self.result or 'the same'}"

    def parameter(self, place: int) -> Parameter:
        """The parameter of an argument."""
        return self.parameters[min(place, len(self.parameters) - 1)]

    def safe(self) -> Callable[..., Any]:
        """Return the function for any values: NULL gives NULL, and arguments of other kinds fail."""
        if self.lazy:
            return self.call
        return checked(self.name, self.call, tuple(one.kinds for one in self.parameters))

    def result_type(self, arguments: list[Type]) -> Type | None:
        """Return the type of the result for arguments of these types; `None` if they do not go together."""
        if self.name == "round":
            return arguments[0] if len(arguments) > 1 else TYPES["int"]
        found = self.result or common(arguments)
        return TYPES.get(kind_of(found), found) if found is not None and not self.lazy else found


def _accepted(kind: Type) -> frozenset[str]:
    """The kinds of values for a parameter of a type."""
    found = frozenset(kind_of(one) for one in kind.members if one.kind != "none")
    return found | {"bool", "int"} if "float" in found else found


#: The functions by name.
FUNCTIONS: Final[dict[str, Function]] = {}
#: Those of plugins: of all platforms in this process, since a mesh can be edited without one.
_OFFERED: dict[str, Function] = {}


def find_functions(extra: Mapping[str, Function]) -> Mapping[str, Function]:
    """Return all known functions by name."""
    return {**_OFFERED, **FUNCTIONS, **extra}


def offer(plugin: str, thing: Any) -> dict[str, Function]:
    """Add a function of a plugin, and return it by its name in expressions."""
    made = thing if isinstance(thing, Function) else Function.of(thing)
    name = f"{plugin.partition('@')[0].replace('-', '_')}.{made.name}"
    found = {name: replace(made, name=name)}
    _OFFERED.update(found)
    return found


def withdraw(functions: Mapping[str, Function]) -> None:
    """Remove functions of plugins, other than those that a later plugin has replaced."""
    for name, function in functions.items():
        if _OFFERED.get(name) is function:
            del _OFFERED[name]


def _extreme(first: Callable[[Any, Any], Any], values: tuple[Any, ...]) -> Any:
    found = values[0]
    for one in values[1:]:
        found = one if first(one, found) else found
    return real(found) if any(isinstance(one, float) for one in values) else found


def _rounded(x: Any, digits: int | None = None) -> Any:
    if digits is not None and not -400 <= digits <= 400:  # a power of ten of any length
        raise ValueError(f"round: {digits} digits are not possible")
    return round(x) if digits is None else round(x, digits)


def _replaced(text: str, old: str, new: str) -> str:
    if (longer := len(new) - len(old)) > 0 and len(text) + text.count(old) * longer > LARGEST_TEXT:
        raise ValueError(f"replace: the result has more than {LARGEST_TEXT:,} characters")
    return text.replace(old, new)


def _day(x: Any) -> date:
    return x.date() if isinstance(x, datetime) else x if isinstance(x, date) else date.fromisoformat(x)


def _moment(text: str, form: str = "") -> datetime:
    return datetime.strptime(text, form) if form else datetime.fromisoformat(text)


def _formatted(x: Any, form: str) -> str:
    if len(form) > 200:
        raise ValueError("format_time: the format has more than 200 characters")
    return str(x.strftime(form))


def _since_1970(x: datetime) -> float:
    return (x.replace(tzinfo=UTC) if x.tzinfo is None else x).timestamp()


def _whole(x: Any) -> int:
    if isinstance(x, str) and len(x) > 40:
        raise ValueError("int: the text has more than 40 characters")
    return int(x)


#: What a function calls.
_CALLS: Final[dict[str, Callable[..., Any]]] = {
    "abs": abs,
    "round": _rounded,
    "floor": math.floor,
    "ceil": math.ceil,
    "min": lambda *x: _extreme(less, x),
    "max": lambda *x: _extreme(lambda a, b: less(b, a), x),
    "bucket": lambda x, size: calculate("*", calculate("//", x, size), size),
    "int": _whole,
    "float": float,
    "str": lambda x: x.isoformat() if isinstance(x, (date, datetime)) else str(x),
    "lower": str.lower,
    "upper": str.upper,
    "strip": str.strip,
    "len": len,
    "contains": str.__contains__,
    "starts": str.startswith,
    "ends": str.endswith,
    "find": str.find,
    "replace": _replaced,
    "split": str.split,
    "concat": lambda *texts: "".join(texts),
    "coalesce": lambda *values: next((one for one in values if one is not None), None),
    "date": _day,
    "parse_time": _moment,
    "format_time": _formatted,
    **{name: attrgetter(name) for name in ("year", "month", "day", "hour", "minute", "second")},
    "weekday": lambda x: x.weekday(),
    "timestamp": _since_1970,
    "seconds": timedelta.total_seconds,
    "duration": lambda seconds: timedelta(seconds=float(seconds)),
}
#: The signatures, what the functions do, and an example with its value.
_TABLE: Final = """
abs(x: float | int | Decimal) -> the same; The absolute value.; abs(-2); 2
round(x: number, digits: int = …) -> the same; With so many digits; without, the nearest integer.; round(2.5); 2
floor(x: number) -> int; The greatest integer that is not greater.; floor(-1.5); -2
ceil(x: number) -> int; The least integer that is not less.; ceil(-1.5); -1
min(x: ordered, *more: ordered) -> the same; The least one.; min(3, 1.5); 1.5
max(x: ordered, *more: ordered) -> the same; The greatest one.; max(3, 1.5); 3.0
bucket(x: number, size: number) -> the same; The beginning of its interval of this size.; bucket(125, 60); 120
int(x: number | str) -> int; An integer: a fraction is cut off, a text is read.; int('42'); 42
float(x: number | str) -> float; A float.; float('1.5'); 1.5
str(x: value) -> str; The value as text.; str(1.5); '1.5'
lower(text: str) -> str; In small letters.; lower('ABC'); 'abc'
upper(text: str) -> str; In capital letters.; upper('ß'); 'SS'
strip(text: str) -> str; Without white space at both ends.; strip(' a '); 'a'
len(x: str | bytes | list) -> int; The number of characters, bytes or elements.; len('für'); 3
contains(text: str, part: str) -> bool; Whether it has the part.; contains('abc', 'b'); True
starts(text: str, part: str) -> bool; Whether it begins with the part.; starts('abc', 'ab'); True
ends(text: str, part: str) -> bool; Whether it ends with the part.; ends('abc', 'ab'); False
find(text: str, part: str) -> int; The position of the part, from 0, or -1.; find('abc', 'c'); 2
replace(text: str, old: str, new: str) -> str; With each *old* replaced by *new*.; replace('a-b', '-', '+'); 'a+b'
split(text: str, at: str) -> list[str]; The parts between the separators.; split('a,b', ','); ['a', 'b']
concat(text: str, *more: str) -> str; The texts, one behind the other.; concat('a', 'b'); 'ab'
coalesce(x: value, *more: value) -> the same; The first one that is not NULL.; coalesce(None, 1); 1
date(x: str | datetime | date) -> date; The day of a time or of a text.; date('2024-02-29'); datetime.date(2024, 2, 29)
parse_time(text: str, format: str = …) -> datetime; The time that a text has in ISO 8601, or in a format of \
`strptime`.; parse_time('2024-02-29T12:30'); datetime.datetime(2024, 2, 29, 12, 30)
format_time(x: datetime | date, format: str) -> str; The time in a format of `strftime`.; \
format_time(date('2024-02-29'), '%d.%m.'); '29.02.'
year(x: datetime | date) -> int; The year.; year(date('2024-02-29')); 2024
month(x: datetime | date) -> int; The month, from 1.; month(date('2024-02-29')); 2
day(x: datetime | date) -> int; The day of the month, from 1.; day(date('2024-02-29')); 29
hour(x: datetime) -> int; The hour on the clock of its zone.; hour(parse_time('2024-02-29T12:30')); 12
minute(x: datetime) -> int; The minute.; minute(parse_time('2024-02-29T12:30')); 30
second(x: datetime) -> int; The second.; second(parse_time('2024-02-29T12:30')); 0
weekday(x: datetime | date) -> int; The day of the week: 0 is Monday.; weekday(date('2024-02-29')); 3
timestamp(x: datetime) -> float; The seconds since 1970; without a zone, the time counts as UTC.; \
timestamp(parse_time('1970-01-02T00:00')); 86400.0
seconds(x: timedelta) -> float; The length in seconds.; seconds(date('2024-03-01') - date('2024-02-29')); 86400.0
duration(seconds: number) -> timedelta; The time span of so many seconds.; duration(90); datetime.timedelta(seconds=90)
"""


def _defined(line: str) -> Function:
    """A function, given its line in the table."""
    signature, *doc, example, value = line.split("; ")
    name, _, rest = signature.partition("(")
    listed, _, result = rest.partition(") -> ")
    parameters, required = [], 0
    for one in listed.split(", "):
        label, _, written = one.removesuffix(" = …").lstrip("*").partition(": ")
        kinds = {kind for text in written.split(" | ") for kind in _SEVERAL.get(text, (text,))}
        parameters.append(Parameter(label, frozenset(kind for kind in (*TYPES, "list") if kind in kinds), written))
        required += "…" not in one and "*" not in one
    kind = None if result == "the same" else list_of(TYPES["str"]) if result == "list[str]" else TYPES[result]
    return Function(
        name, _CALLS[name], tuple(parameters), kind, required, "*" in listed, name == "coalesce", None, "; ".join(doc),
        (example, value),
    )  # fmt: skip


FUNCTIONS.update((made.name, made) for made in map(_defined, _TABLE.strip().splitlines()))
