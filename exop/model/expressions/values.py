"""The meaning of the operations of expressions for Python values.

These functions take any values: NULL (`None`) gives NULL, numbers of NumPy count as those of Python, and what does not
go together raises. The compiled forms are shortcuts for the common types, and call these functions for all others.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, Final

from exop.model.expressions.kinds import NUMERIC, SCALARS, Kind, kind_of_value, result_kind

#: The greatest integer; as in columns, smaller ones down to -HIGHEST - 1 are possible, and all others fail.
HIGHEST: Final = 2**63 - 1

#: The integers that have a float each.
EXACT: Final = 2**53

_NATIVE: Final[dict[str, Callable[[Any, Any], Any]]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
    "//": operator.floordiv,
    "%": operator.mod,
}


_NUMBERS: Final = frozenset((int, float))


def plain(value: Any) -> Any:
    """Return a value as one of Python itself: scalars of NumPy and moments of pandas are converted."""
    if type(value) in SCALARS or (module := type(value).__module__) == "builtins":
        return value
    if module == "numpy" and getattr(value, "shape", None) == ():
        if value.dtype.kind in "mM":  # in nanoseconds, `item()` would be a number
            return value.astype(f"{value.dtype.kind}8[us]").item()
        return value.item()
    if module.startswith("pandas.") and hasattr(value, "isoformat"):
        converted = getattr(value, "to_pydatetime", None) or getattr(value, "to_pytimedelta", None)
        return None if converted is None or value != value else converted()
    return value


def bounded(value: Any) -> Any:
    """Return a number; fail if it is an integer that has no 64 bits' space."""
    if isinstance(value, int) and not -HIGHEST - 1 <= value <= HIGHEST:
        raise OverflowError("the result is an integer beyond 64 bits")
    return value


def real(value: Any) -> Any:
    """Return an integer as a float, with which it has to share a column; fail beyond 2**53, where floats have gaps."""
    if isinstance(value, int):
        if not -EXACT <= value <= EXACT:
            raise OverflowError(f"{value} is an integer beyond 2**53, and would have to become a float")
        return float(value)
    return value


def calculate(sign: str, a: Any, b: Any) -> Any:
    """Return the result of an arithmetic operation."""
    if type(a) in _NUMBERS and type(b) in _NUMBERS:
        return bounded(_NATIVE[sign](a, b))
    if (a := plain(a)) is None or (b := plain(b)) is None:
        return None
    kinds = kind_of_value(a), kind_of_value(b)
    if kinds[0] in NUMERIC and kinds[1] in NUMERIC:
        return bounded(_NATIVE[sign](a, b))
    if result_kind(sign, *kinds) is None or "any" in kinds:
        raise TypeError(f"{type(a).__name__} {sign} {type(b).__name__} is not possible")
    if kinds == ("datetime", "datetime"):
        a, b = instants(a, b)
    elif "datetime" in kinds:
        return _moved(sign, *((a, b) if kinds[0] == "datetime" else (b, a)))
    return _NATIVE[sign](a, b)


def _moved(sign: str, moment: datetime, distance: timedelta) -> datetime:
    """Move an instant: Python itself would move the time that a clock shows, over the hour that is left out too."""
    if moment.tzinfo is None:
        return _NATIVE[sign](moment, distance)  # type: ignore[no-any-return]
    return _NATIVE[sign](moment.astimezone(UTC), distance).astimezone(moment.tzinfo)  # type: ignore[no-any-return]


def instants(a: datetime, b: datetime) -> tuple[datetime, datetime]:
    """Return two times such that their order and distance are those of the instants, whatever their zones are."""
    if (a.tzinfo is None) != (b.tzinfo is None):
        raise TypeError("a time with a zone and a time without one do not go together")
    return (a, b) if a.tzinfo is None else (a.astimezone(UTC), b.astimezone(UTC))


def _pair(a: Any, b: Any) -> tuple[Any, Any]:
    a, b = plain(a), plain(b)
    return instants(a, b) if isinstance(a, datetime) and isinstance(b, datetime) else (a, b)


def equal(a: Any, b: Any) -> bool | None:
    """Return whether two values are equal: NaN is equal to itself."""
    a, b = _pair(a, b)
    return None if a is None or b is None else bool(a == b) or bool(a != a and b != b)


def less(a: Any, b: Any) -> bool | None:
    """Return whether *a* is less than *b*: NaN is greater than all numbers."""
    if type(a) in _NUMBERS and type(b) in _NUMBERS:
        return bool((a < b or b != b) and a == a)
    a, b = _pair(a, b)
    if a is None or b is None:
        return None
    found = bool(a < b)
    return (found or bool(b != b)) and bool(a == a)


def compare(sign: str, a: Any, b: Any) -> bool | None:
    """Return the result of a comparison."""
    if a is None or b is None:
        return None
    if sign in ("==", "!="):
        found = equal(a, b)
        return found if found is None or sign == "==" else not found
    found = less(a, b) if sign in ("<", ">=") else less(b, a)
    return found if found is None or sign in ("<", ">") else not found


def truth(value: Any) -> bool | None:
    """Return a Boolean, or NULL; fail for any other value."""
    if (value := plain(value)) is None or isinstance(value, bool):
        return value
    raise TypeError(f"a Boolean is expected, not {type(value).__name__}; compare it with something")


def opposite(value: Any) -> bool | None:
    """Return `not value`."""
    return None if (found := truth(value)) is None else not found


def is_null(value: Any) -> bool:
    """Return whether a value is NULL."""
    return value is None


def contained(x: Any, among: Any) -> bool | None:
    """Return whether *among* has *x*: as a part of a text, a key of a mapping, or an element of a list."""
    x = plain(x)
    if among is None or (x is None and isinstance(among, (str, Mapping))):
        return None
    if isinstance(among, (str, Mapping)):
        return x in among
    found = [equal(x, one) for one in among]
    return True if True in found else None if None in found else False


def field_of(value: Any, name: str) -> Any:
    """Return a field of a value whose type is not known: of a mapping (a row) by key, of a tuple by number."""
    if value is None:
        return None
    if type(value) is dict or (hasattr(value, "__getitem__") and isinstance(value, Mapping)):
        return value[name]
    return value[int(name)] if name.isdigit() else getattr(value, name)


def element(value: Any, index: Any) -> Any:
    """Return an element of a list, a character of a text, or an entry of a mapping."""
    index = plain(index)
    return None if value is None or index is None else value[index]


def part(value: Any, *bounds: Any) -> Any:
    """Return a part of a list or text; a bound that is absent is `...`."""
    given = [plain(one) for one in bounds]
    if value is None or None in given:
        return None
    return value[slice(*[None if one is ... else one for one in given])]


def listed(*elements: Any) -> list[Any]:
    """Return a list of values."""
    return [*elements]


#: The operations by their signs.
CALCULATIONS: Final = {sign: partial(calculate, sign) for sign in _NATIVE}
COMPARISONS: Final = {sign: partial(compare, sign) for sign in ("<", "<=", "==", "!=", ">", ">=")}


def checked(name: str, call: Callable[..., Any], kinds: tuple[frozenset[str], ...]) -> Callable[..., Any]:
    """Return a function that gives NULL for NULL, and checks the kinds of its arguments; the last one may repeat."""

    def checked_call(*given: Any) -> Any:
        if None in [*map(type_kind, given)]:
            given = tuple(map(plain, given))
        for place, one in enumerate(given):
            if one is None:
                return None
            wanted = kinds[place] if place < len(kinds) else kinds[-1]
            if "any" not in wanted and kind_of_value(one) not in wanted:
                expected = " or ".join(sorted(wanted))
                raise TypeError(f"{name}: argument {place + 1} is {type(one).__name__}, not {expected}")
        return bounded(call(*given))

    def type_kind(value: Any) -> Kind | None:
        return SCALARS.get(type(value))

    return checked_call
