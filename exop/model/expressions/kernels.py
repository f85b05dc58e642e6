"""The functions of `pyarrow.compute` that have the meaning of the operations and functions of expressions.

Casts of integers to floats fail beyond 2**53, as all that Arrow cannot compute; rows are then computed one by one.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

Kernel: TypeAlias = Callable[..., Any]
CALCULATE: Final[dict[str, Kernel]] = {
    "+": pc.add_checked, "-": pc.subtract_checked, "*": pc.multiply_checked, "/": pc.divide_checked,
}  # fmt: skip
COMPARE: Final[dict[str, Kernel]] = {
    "<": pc.less, "<=": pc.less_equal, "==": pc.equal, "!=": pc.not_equal, ">": pc.greater, ">=": pc.greater_equal,
}  # fmt: skip
#: Likewise with a number that is not NaN: NaN is greater than all others.
COMPARE_NUMBER: Final = COMPARE | {
    ">": lambda a, b: pc.invert(pc.less_equal(a, b)),
    ">=": lambda a, b: pc.invert(pc.less(a, b)),
}
#: Likewise any numbers: NaN is equal to itself, too.
COMPARE_FLOATS: Final[dict[str, Kernel]] = {
    ">": lambda a, b: pc.and_(pc.invert(pc.less_equal(a, b)), pc.equal(b, b)),
    ">=": lambda a, b: pc.or_(pc.greater_equal(a, b), pc.not_equal(a, a)),
    "<": lambda a, b: COMPARE_FLOATS[">"](b, a),
    "<=": lambda a, b: COMPARE_FLOATS[">="](b, a),
    "==": lambda a, b: pc.or_(pc.equal(a, b), pc.and_(pc.not_equal(a, a), pc.not_equal(b, b))),
    "!=": lambda a, b: pc.invert(COMPARE_FLOATS["=="](a, b)),
}
#: The characters that `str.strip` removes; Arrow would leave some of them.
_SPACE: Final = "".join(chr(one) for one in range(0x3001) if chr(one).isspace())


_CLOCK: Final = ("year", "month", "day", "hour", "minute", "second")


class NotByArrow(Exception):
    """Arrow does not compute this."""


def divided(sign: str, a: Any, b: Any) -> Any:
    """Floor division and modulo, by the algorithm of Python, which NumPy has."""
    import numpy as np

    if isinstance(a, pa.Scalar) and isinstance(b, pa.Scalar):
        raise NotByArrow
    left, right = map(_numbers, (a, b))
    whole = a.type == b.type == pa.int64()
    if not np.all(right) or (whole and sign == "//" and np.any(right == -1)):
        raise NotByArrow  # division by zero; and 64 bits may be exceeded
    divide: Any = np.floor_divide if sign == "//" else np.remainder
    with np.errstate(all="ignore"):
        found = pa.array(divide(left, right))
    for one in (a, b):
        if isinstance(one, pa.Array) and one.null_count:
            found = pc.if_else(pc.is_valid(one), found, pa.scalar(None, found.type))
    return found


def _numbers(column: Any) -> Any:
    """Numbers as those of NumPy, with 1 for NULL."""
    if isinstance(column, pa.Array):
        return (pc.fill_null(column, 1) if column.null_count else column).to_numpy()
    if (found := column.as_py()) is None:
        raise NotByArrow
    return found


def joined(*texts: Any) -> Any:
    """Return texts behind each other."""
    return pc.binary_join_element_wise(*texts, "")


# Functions


def _whole(call: Kernel, x: Any, *digits: Any) -> Any:
    """A float as an integer; NaN and infinite ones fail, as does what has more than 64 bits."""
    if digits:
        raise NotByArrow
    return x if x.type == pa.int64() else pc.cast(call(x), pa.int64())


def _extreme(sign: str, found: Any, *others: Any) -> Any:
    for one in others:
        first = COMPARE[sign] if found.type == one.type == pa.int64() else COMPARE_FLOATS[sign]
        found = pc.if_else(first(found, one), found, one)
    return found


def _cased(call: Kernel, text: Any) -> Any:
    """Small and capital letters: those beyond ASCII are the business of Python, which has the whole of Unicode."""
    if pc.all(pc.string_is_ascii(text)).as_py() is False:
        raise NotByArrow
    return call(text)


def _matched(call: Kernel, text: Any, part: Any) -> Any:
    if not isinstance(part, pa.Scalar) or not part.is_valid:
        raise NotByArrow
    return call(text, part.as_py())


def _of_time(call: Kernel, x: Any) -> Any:
    """A part of a time, as the clock of its zone shows it: Arrow does not know all zones in all years."""
    if pa.types.is_timestamp(x.type) and x.type.tz not in (None, "UTC"):
        raise NotByArrow
    return pc.cast(call(x), pa.int64())


def _seconds(x: Any) -> Any:
    return pc.divide(pc.cast(pc.cast(x, pa.int64()), pa.float64()), 1e6)


#: The kinds of arguments for which Arrow has functions, and these by their names in expressions.
KERNELS: Final[dict[str, tuple[frozenset[str], Kernel]]] = {
    name: (frozenset(kinds.split()), kernel)
    for kinds, kernels in {
        "int float": {
            "abs": pc.abs_checked,
            "round": partial(_whole, partial(pc.round, round_mode="half_to_even")),
            "floor": partial(_whole, pc.floor),
            "ceil": partial(_whole, pc.ceil),
            "int": partial(_whole, pc.trunc),
            "float": partial(pc.cast, target_type=pa.float64()),
            "min": partial(_extreme, "<="),
            "max": partial(_extreme, ">="),
            "bucket": lambda x, size: pc.multiply_checked(divided("//", x, size), size),
        },
        "str": {
            "lower": partial(_cased, pc.ascii_lower),
            "upper": partial(_cased, pc.ascii_upper),
            "strip": partial(pc.utf8_trim, characters=_SPACE),
            "len": lambda x: pc.cast(pc.utf8_length(x), pa.int64()),
            "contains": partial(_matched, pc.match_substring),
            "starts": partial(_matched, pc.starts_with),
            "ends": partial(_matched, pc.ends_with),
            "concat": joined,
        },
        "int str": {"str": partial(pc.cast, target_type=pa.string())},
        "date": {"date": lambda x: x},
        "datetime": {"timestamp": _seconds},
        "timedelta": {"seconds": _seconds},
        "date datetime": {
            "weekday": partial(_of_time, pc.day_of_week),
            **{one: partial(_of_time, getattr(pc, one)) for one in _CLOCK},
        },
    }.items()
    for name, kernel in kernels.items()
}
