"""The bound for the nesting of values: the same for all that is stored, sent, or written into a file.

Encoders and decoders recurse, many of them in C, where a value that is nested deeply enough ends the process. Nothing
that is nested more deeply than this bound is therefore written, and nothing of it is decoded.
"""

from __future__ import annotations

import dataclasses
import io
import json
import re
from collections import deque
from collections.abc import Iterable, Mapping
from functools import cache
from itertools import accumulate
from types import SimpleNamespace
from typing import Any, Final

from exop.shown import shown

#: Levels of collections and dataclasses, one in the other.
DEPTH: Final = 100
#: Levels that the platform's own tables add around the values of slets: in a checkpoint, in a topology.
AROUND: Final = 10

_PLAIN: Final = frozenset((type(None), bool, int, float, str, bytes))
#: The bytes that begin a list or a table in msgpack. Text, numbers and bytes hold them too: their count is a bound.
_HEADERS: Final = bytes((*range(0x80, 0xA0), *range(0xDC, 0xE0)))
#: Levels of JSON that one level of a memento takes at the most: a tag, its list, and the table in it.
_PER_LEVEL: Final = 4
_COUNTED: Final = 4096
_COLLECTIONS: Final = (Mapping, list, tuple, set, frozenset, deque)
#: Parts that are looked at one by one.
_FEW: Final = 500
_READ: Final = 2**16
_STRINGS: Final = re.compile(r'"(?:[^"\\]|\\.)*"?', re.DOTALL)
_BRACKETS: Final = re.compile(r"[^][{}]+")


class TooDeep(ValueError):
    """A value is nested too deeply."""

    def __init__(self, levels: int = DEPTH) -> None:
        super().__init__(f"it is nested more than {levels} levels deep")


def deep_place(value: Any, levels: int = DEPTH) -> str | None:
    """The place in *value* that is nested more deeply than *levels*, as `head[1].next[1]…`; `None` if there is none.

    A value that is neither a plain number nor text, such as a moment or an array, counts as one level.
    """
    # A place is a chain of steps, and becomes text only where it is asked for.
    open_: list[tuple[Any, Any, int]] = [(value, None, 0)]
    while open_:
        one, place, above = open_.pop()
        if type(one) in _PLAIN:
            continue
        if above >= levels:
            return _text(place)
        open_ += [(part, (place, step), above + 1) for step, part in parts_of(one)]
    return None


def is_shallow(value: Any, levels: int = DEPTH) -> bool:
    """Whether a value of few parts is nested at most *levels* deep; `False` also where it has many parts."""
    open_: list[tuple[Any, int]] = [(value, 0)]
    for _ in range(_FEW):
        if not open_:
            return True
        one, above = open_.pop()
        if type(one) in _PLAIN:
            continue
        if above >= levels or (isinstance(one, _COLLECTIONS) and len(one) > _FEW):
            return False
        open_ += [(part, above + 1) for _, part in parts_of(one)]
    return False


def parts_of(value: Any) -> Iterable[tuple[Any, Any]]:
    """List the parts of a value, each with the step that leads there; a plain value has none."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return [(f".{one.name}", getattr(value, one.name, None)) for one in dataclasses.fields(value)]
    if isinstance(value, Mapping):
        steps = [f".{key}" if type(key) is str and key.isidentifier() else f"[{shown(key, 20)}]" for key in value]
        keys = [(step, key) for step, key in zip(steps, value, strict=True) if type(key) not in _PLAIN]
        return [*zip(steps, value.values(), strict=True), *keys]
    if isinstance(value, _COLLECTIONS):
        names = getattr(value, "_fields", None)
        return [(f".{names[n]}" if names else f"[{n}]", one) for n, one in enumerate(value)]
    return ()


def _text(place: Any, most: int = 80) -> str:
    steps: list[str] = []
    while place is not None:
        place, step = place
        steps.append(step)
    text = "".join(reversed(steps)).lstrip(".")
    return text if len(text) <= most else f"{text[:most]}…"


def check_nesting(data: bytes, levels: int = DEPTH) -> None:
    """Refuse msgpack that is nested more deeply than *levels*, or no msgpack; nothing is unpacked and nothing recurses.

    Raises:
        TooDeep: it is nested more deeply.
        Exception: what msgpack raises for bytes that are cut off or damaged.
    """
    if len(data) <= levels:
        return
    if len(data) <= _COUNTED and len(data) - len(data.translate(None, _HEADERS)) <= levels:
        return
    import msgpack

    # msgpack's own bound is a larger one: levels around the data take up the difference. The data is taken in parts,
    # because it would be copied.
    around, parts = [b"\x91" * (_own_bound() - levels)], io.BytesIO(data)
    passing = _unpacker(SimpleNamespace(read=lambda size: around.pop() if around else parts.read(size)))
    try:
        passing.skip()
    except msgpack.StackError:
        raise TooDeep(levels) from None


@cache
def _own_bound() -> int:
    """The levels that msgpack itself skips; the number differs between its releases."""
    import msgpack

    bound = 2 * (DEPTH + AROUND)
    while True:
        passing = _unpacker()
        passing.feed(b"\x91" * (bound + 1) + b"\xc0")
        try:
            passing.skip()
        except msgpack.StackError:
            return bound
        bound += 1


def _unpacker(file: Any = None) -> Any:
    import msgpack

    # The longest list and table that there can be: the length is looked at by who decodes.
    return msgpack.Unpacker(file, read_size=_READ, max_buffer_size=0, max_array_len=2**32 - 1, max_map_len=2**32 - 1)


def read_json(data: bytes, **options: Any) -> Any:
    """Read JSON in UTF-8.

    Raises:
        ValueError: it is no JSON, or nested so deeply that no memento is (`TooDeep`).
    """
    text = data.decode("utf-8-sig")
    brackets = _BRACKETS.sub("", _STRINGS.sub("", text))
    if max(accumulate(1 if one in "[{" else -1 for one in brackets), default=0) > _PER_LEVEL * DEPTH:
        raise TooDeep
    return json.loads(text, **options)


def read_toml(text: str, levels: int = DEPTH + AROUND) -> dict[str, Any]:
    """Read TOML.

    Raises:
        ValueError: it is no TOML, or nested too deeply (`TooDeep`).
    """
    import tomllib

    try:
        found = tomllib.loads(text)
    except RecursionError:
        raise TooDeep(levels) from None
    if deep_place(found, levels) is not None:
        raise TooDeep(levels)
    return found
