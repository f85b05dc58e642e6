"""Reading plain values: numbers, truth values, text, moments and durations."""

from __future__ import annotations

import numbers
import operator
from collections.abc import Callable
from datetime import date, datetime, time, timedelta
from decimal import Decimal, InvalidOperation
from typing import Any, Final

_TRUE: Final = ("true", "yes", "on", "1")
_FALSE: Final = ("false", "no", "off", "0")


def _int(value: Any) -> int:
    if type(value) is int:
        return value
    try:
        return int(value) if isinstance(value, str) else operator.index(_no_truth(value, "int"))
    except (TypeError, ValueError):
        raise unfit("int", value) from None


def _float(value: Any) -> float:
    if isinstance(value, float):
        return value
    real = isinstance(_no_truth(value, "float"), (str, numbers.Real))
    try:
        return float(given(value, real, "float"))
    except ValueError:
        raise unfit("float", value) from None


def _bool(value: Any) -> bool:
    if isinstance(value, str) and value.lower() in _TRUE + _FALSE:
        return value.lower() in _TRUE
    return bool(given(value, isinstance(value, bool), "true or false"))


def _str(value: Any) -> str:
    return str(given(value, isinstance(value, str), "str")) if type(value) is not str else value


def _decimal(value: Any) -> Decimal:
    if isinstance(value, Decimal):
        return value
    try:
        return Decimal(str(given(_no_truth(value, "Decimal"), isinstance(value, (int, float, str)), "Decimal")))
    except InvalidOperation:
        raise unfit("Decimal", value) from None


def _duration(value: Any) -> timedelta:
    return value if isinstance(value, timedelta) else timedelta(seconds=_float(value))


def _moment(kind: type[datetime] | type[date] | type[time]) -> Callable[[Any], Any]:
    def read(value: Any) -> Any:
        if isinstance(value, kind) and not (kind is date and isinstance(value, datetime)):
            return value
        try:
            return kind.fromisoformat(given(value, isinstance(value, str), kind.__name__))
        except ValueError:
            raise unfit(f"{kind.__name__} as in {_EXAMPLES[kind]}", value) from None

    return read


_EXAMPLES: Final[dict[Any, str]] = {datetime: "2026-01-31T12:30:00", date: "2026-01-31", time: "12:30:00"}
#: How a plain type is read.
READERS: Final[dict[Any, Callable[[Any], Any]]] = {
    int: _int,
    float: _float,
    bool: _bool,
    str: _str,
    Decimal: _decimal,
    timedelta: _duration,
    datetime: _moment(datetime),
    date: _moment(date),
    time: _moment(time),
}


def _no_truth(value: Any, wanted: str) -> Any:
    return given(value, not isinstance(value, bool), wanted)


def given(value: Any, sound: bool, wanted: str) -> Any:
    """The value, if it is *sound*; otherwise the error says what was *wanted*."""
    if not sound:
        raise unfit(wanted, value)
    return value


def unfit(wanted: str, value: Any) -> ValueError:
    """The error of a value that is not what was *wanted*."""
    if value is None:
        return ValueError(f"expected {wanted}, got nothing (None)")
    return ValueError(f"expected {wanted}, got {shown(value)} ({type(value).__name__})")


def shown(value: Any, most: int = 80) -> str:
    """The value as Python writes it, shortened to *most* letters."""
    text = repr(value)
    return text if len(text) <= most else f"{text[:most]}…"
