"""The pure functions of expressions: their signatures, and what they do with values of Python."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime, timedelta
from typing import Any, Final, NamedTuple, get_args

from exop.model.expressions.tree import TYPES, Kind, common, kind_of, list_of
from exop.model.expressions.values import calculate, checked, less, real
from exop.model.types.description import ANY, Type, type_of

#: The maximum number of characters of a text that `replace` makes longer.
LARGEST_TEXT: Final = 1_000_000
_KINDS: Final[frozenset[Kind]] = frozenset(get_args(Kind))
#: The names of several kinds, in signatures.
_SEVERAL: Final[dict[str, tuple[Kind, ...]]] = {
    "number": ("int", "float", "Decimal"),
    "value": ("any",),
    "ordered": ("bool", "int", "float", "Decimal", "str", "datetime", "date", "timedelta"),
}


class Parameter(NamedTuple):
    """A parameter of a function: its name, the kinds of values it takes, and how it is written in messages."""

    name: str
    kinds: frozenset[Kind]
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
        inline: The text of an expression of Python that does the same for the first kind of each parameter.
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
    inline: str = ""
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

    def expected(self, place: int) -> str:
        """The kind of an argument for which `inline` is written."""
        return self.parameter(place).written.partition(" ")[0]

    def safe(self) -> Callable[..., Any]:
        """Return the function for any values: NULL gives NULL, and arguments of other kinds fail."""
        if self.lazy:
            return self.call
        return checked(self.name, self.call, tuple(one.kinds for one in self.parameters))

    def result_type(self, arguments: list[Type]) -> Type | None:
        """Return the type of the result for arguments of these types; `None` if they do not go together."""
        if self.name == "round":
            return arguments[0] if len(arguments) > 1 else TYPES["int"]
        return self.result or common(arguments)


def _accepted(kind: Type) -> frozenset[Kind]:
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


def _define(
    signature: str, call: Callable[..., Any], doc: str, *example: str, inline: str = "", lazy: bool = False
) -> None:
    """Add a function, given its signature in the form of messages."""
    name, _, rest = signature.partition("(")
    listed, _, result = rest.partition(") -> ")
    parameters, required = [], 0
    for one in listed.split(", "):
        label, _, kinds = one.removesuffix(" = …").lstrip("*").partition(": ")
        accepted = frozenset(k for text in kinds.split(" | ") for k in _SEVERAL.get(text, (text,)) if k in _KINDS)  # type: ignore[misc]
        parameters.append(Parameter(label, accepted, kinds))
        required += "…" not in one and "*" not in one
    results = {"the same": None, "list[str]": list_of(TYPES["str"])}
    kind = results[result] if result in results else TYPES[result]
    made = Function(name, call, tuple(parameters), kind, required, "*" in listed, lazy, inline, None, doc)
    FUNCTIONS[name] = Function(**{**vars(made), "example": (example[0], example[1])})


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
    return datetime.strptime(text, form) if form else datetime.fromisoformat(text)  # noqa: DTZ007 (as it is written)


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


def _text(x: Any) -> str:
    return x.isoformat() if isinstance(x, (date, datetime)) else str(x)


def _same_size(x: Any, size: Any) -> Any:
    return calculate("*", calculate("//", x, size), size)


def _coalesced(*values: Any) -> Any:
    return next((one for one in values if one is not None), None)


def _greater(a: Any, b: Any) -> Any:
    return less(b, a)


def _numbers() -> None:
    _define("abs(x: float | int | Decimal) -> the same", abs, "The absolute value.", "abs(-2)", "2", inline="abs({})")
    _define(
        "round(x: number, digits: int = …) -> the same", _rounded,
        "The nearest number with so many digits after the point; the nearest integer without them. A half goes to the even one.",
        "round(2.5)", "2", inline="round({})",
    )  # fmt: skip
    _define("floor(x: number) -> int", math.floor, "The greatest integer that is not greater.", "floor(-1.5)", "-2", inline="{}.__floor__()")
    _define("ceil(x: number) -> int", math.ceil, "The least integer that is not less.", "ceil(-1.5)", "-1", inline="{}.__ceil__()")
    _define("min(x: ordered, *more: ordered) -> the same", lambda *x: _extreme(less, x), "The least one.", "min(3, 1.5)", "1.5", inline="{0} if {0} <= {1} or {1} != {1} else {1}")
    _define(
        "max(x: ordered, *more: ordered) -> the same", lambda *x: _extreme(_greater, x), "The greatest one.", "max(3, 1.5)", "3.0", inline="{1} if {0} <= {1} or {1} != {1} else {0}"
    )
    _define(
        "bucket(x: number, size: number) -> the same", _same_size,
        "The beginning of the interval of this size that has the number.", "bucket(125, 60)", "120", inline="{0} // {1} * {1}",
    )  # fmt: skip
    _define("int(x: number | str) -> int", _whole, "An integer: a fraction is cut off, a text is read.", "int('42')", "42", inline="int({})")
    _define("float(x: number | str) -> float", float, "A float.", "float('1.5')", "1.5", inline="float({})")


def _texts() -> None:
    _define("str(x: value) -> str", _text, "The value as text.", "str(1.5)", "'1.5'")
    _define("lower(text: str) -> str", str.lower, "In small letters.", "lower('ABC')", "'abc'", inline="{}.lower()")
    _define("upper(text: str) -> str", str.upper, "In capital letters.", "upper('ß')", "'SS'", inline="{}.upper()")
    _define(
        "strip(text: str) -> str", str.strip, "Without white space at both ends.", "strip(' a ')", "'a'", inline="{}.strip()"
    )
    _define("len(x: str | bytes | list) -> int", len, "The number of characters or elements.", "len('für')", "3", inline="len({})")
    _define(
        "contains(text: str, part: str) -> bool", str.__contains__, "Whether it has the part.",
        "contains('abc', 'b')", "True", inline="{1} in {0}",
    )  # fmt: skip
    _define(
        "starts(text: str, part: str) -> bool", str.startswith, "Whether it begins with the part.",
        "starts('abc', 'ab')", "True", inline="{}.startswith({})",
    )  # fmt: skip
    _define(
        "ends(text: str, part: str) -> bool", str.endswith, "Whether it ends with the part.",
        "ends('abc', 'ab')", "False", inline="{}.endswith({})",
    )  # fmt: skip
    _define(
        "find(text: str, part: str) -> int", str.find, "The position of the part, from 0; -1 without it.",
        "find('abc', 'c')", "2", inline="{}.find({})",
    )  # fmt: skip
    _define(
        "replace(text: str, old: str, new: str) -> str", _replaced, "With each *old* replaced by *new*.",
        "replace('a-b', '-', '+')", "'a+b'",
    )  # fmt: skip
    _define(
        "split(text: str, at: str) -> list[str]", str.split, "The parts between the separators.",
        "split('a,b', ',')", "['a', 'b']",
    )  # fmt: skip
    _define(
        "concat(text: str, *more: str) -> str", lambda *texts: "".join(texts), "The texts, one behind the other.",
        "concat('a', 'b')", "'ab'",
    )  # fmt: skip


def _times() -> None:
    _define(
        "date(x: str | datetime | date) -> date", _day, "The day of a time, or of a text such as `2024-02-29`.",
        "date('2024-02-29')", "datetime.date(2024, 2, 29)",
    )  # fmt: skip
    _define(
        "parse_time(text: str, format: str = …) -> datetime", _moment,
        "The time that a text has in ISO 8601, or in a format of `strptime`.",
        "parse_time('2024-02-29T12:30')", "datetime.datetime(2024, 2, 29, 12, 30)",
    )  # fmt: skip
    _define(
        "format_time(x: datetime | date, format: str) -> str", _formatted, "The time in a format of `strftime`.",
        "format_time(date('2024-02-29'), '%d.%m.')", "'29.02.'",
    )  # fmt: skip
    for name, of, doc, value in (
        ("year", "datetime | date", "The year.", "2024"),
        ("month", "datetime | date", "The month, from 1.", "2"),
        ("day", "datetime | date", "The day of the month, from 1.", "29"),
        ("hour", "datetime", "The hour that the clock of its zone shows.", "12"),
        ("minute", "datetime", "The minute.", "30"),
        ("second", "datetime", "The second.", "0"),
    ):
        _define(f"{name}(x: {of}) -> int", lambda x, name=name: getattr(x, name), doc, f"{name}(parse_time('2024-02-29T12:30'))", value, inline=f"{{}}.{name}")  # fmt: skip
    _define(
        "weekday(x: datetime | date) -> int", lambda x: x.weekday(), "The day of the week: 0 is Monday.",
        "weekday(date('2024-02-29'))", "3", inline="{}.weekday()",
    )  # fmt: skip
    _define(
        "timestamp(x: datetime) -> float", _since_1970, "The seconds since 1970; a time without a zone counts as UTC.",
        "timestamp(parse_time('1970-01-02T00:00'))", "86400.0",
    )  # fmt: skip
    _define(
        "seconds(x: timedelta) -> float", timedelta.total_seconds, "The length of a time span in seconds.",
        "seconds(date('2024-03-01') - date('2024-02-29'))", "86400.0",
    )  # fmt: skip
    _define(
        "duration(seconds: number) -> timedelta", lambda s: timedelta(seconds=float(s)), "The time span of so many seconds.",
        "date('2024-02-29') + duration(86400)", "datetime.date(2024, 3, 1)",
    )  # fmt: skip


_numbers()
_texts()
_define(
    "coalesce(x: value, *more: value) -> the same", _coalesced, "The first one that is not NULL; the others are not computed.",
    "coalesce(None, 1)", "1", lazy=True,
)  # fmt: skip
_times()
