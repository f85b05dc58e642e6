"""The maximum nesting of values: the same for everything that is stored, sent or written to a file.

Encoders and decoders recurse, many of them in C, where deep nesting would crash the process. Values beyond the maximum
are therefore neither encoded nor decoded.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from itertools import accumulate
from typing import Any, Final

from exop.safe_repr import safe_repr

#: Nested levels of collections and dataclasses.
DEPTH: Final = 100
#: Levels that checkpoints and topology files add around the values of slets.
AROUND: Final = 10

#: Types without parts.
PLAIN: Final = frozenset((type(None), bool, int, float, str, bytes))
#: Maximum levels of JSON for one level of a memento: a tag, its list, and the table in it.
_PER_LEVEL: Final = 4
_COLLECTIONS: Final = (Mapping, list, tuple, set, frozenset, deque)
#: Maximum number of parts that are inspected.
_FEW: Final = 500
_STRINGS: Final = re.compile(r'"(?:[^"\\]|\\.)*"?', re.DOTALL)
_BRACKETS: Final = re.compile(r"[^][{}]+")


class TooDeep(ValueError):
    """A value is nested too deeply."""

    def __init__(self, levels: int = DEPTH) -> None:
        super().__init__(f"it is nested more than {levels} levels deep")


def deep_place(value: Any, levels: int = DEPTH) -> str | None:
    """Return the place in *value* that is nested more deeply than *levels*, as `head[1].next[1]…`, or `None`.

    Values without parts, such as moments and arrays, count as one level.
    """
    too_deep = (place for one, place, above in walk(value) if above >= levels and type(one) not in PLAIN)
    return next(map(_text, too_deep), None)


def is_shallow(value: Any, levels: int = DEPTH) -> bool:
    """Whether a value of few parts is nested at most *levels* deep; `False` if it has many parts."""
    for number, (one, _, above) in enumerate(walk(value)):
        many = number == _FEW or (isinstance(one, _COLLECTIONS) and len(one) > _FEW)
        if many or (above >= levels and type(one) not in PLAIN):
            return False
    return True


def walk(value: Any) -> Iterator[tuple[Any, Any, int]]:
    """Yield a value and all its parts, each with its place and the number of levels above it.

    A place is a linked list of steps; only one that is shown is converted to text.
    """
    open_: list[tuple[Any, Any, int]] = [(value, None, 0)]
    while open_:
        one, place, above = open_.pop()
        yield one, place, above
        if type(one) not in PLAIN:
            open_ += [(part, (place, step), above + 1) for step, part in _parts_of(one)]


def _parts_of(value: Any) -> Iterable[tuple[Any, Any]]:
    """List the parts of a value, each with the step that leads to it."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return [(f".{one.name}", getattr(value, one.name, None)) for one in dataclasses.fields(value)]
    if isinstance(value, Mapping):
        steps = [f".{key}" if type(key) is str and key.isidentifier() else f"[{safe_repr(key, 20)}]" for key in value]
        keys = [(step, key) for step, key in zip(steps, value, strict=True) if type(key) not in PLAIN]
        return [*zip(steps, value.values(), strict=True), *keys]
    if isinstance(value, _COLLECTIONS):
        names = getattr(value, "_fields", None)
        return [(f".{names[n]}" if names else f"[{n}]", one) for n, one in enumerate(value)]
    return ()


def _text(place: Any) -> str:
    text = ""
    while place is not None:
        place, step = place
        text = step + text
    text = text.lstrip(".")
    return text if len(text) <= 80 else f"{text[:80]}…"


def read_json(data: bytes, **options: Any) -> Any:
    """Parse JSON in UTF-8."""
    text = data.decode("utf-8-sig")
    brackets = _BRACKETS.sub("", _STRINGS.sub("", text))
    if max(accumulate(1 if one in "[{" else -1 for one in brackets), default=0) > _PER_LEVEL * DEPTH:
        raise TooDeep
    return json.loads(text, **options)


def read_toml(text: str, levels: int = DEPTH + AROUND) -> dict[str, Any]:
    """Parse TOML."""
    import tomllib

    try:
        found = tomllib.loads(text)
    except RecursionError:
        raise TooDeep(levels) from None
    if deep_place(found, levels) is not None:
        raise TooDeep(levels)
    return found
