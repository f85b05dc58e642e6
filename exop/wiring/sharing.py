"""Detection of slets that alter shared items, by comparing the items before and after every call; off by default.

The readers of a channel get the same object: a slet that alters it changes the items that the others see or have kept.
"""

from __future__ import annotations

import copy
import sys
import threading
from collections import OrderedDict, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from types import FunctionType
from typing import Any, Final
from weakref import WeakKeyDictionary

from exop.logs import logger
from exop.model.items import CONTROL, EndOfStream, Punctuation
from exop.model.types.description import SCALARS
from exop.model.values.columns import is_columns
from exop.runtime.dataflow.entry import Entry, Method, Push, in_front
from exop.safe_repr import class_of, safe_repr
from exop.wiring.graph.wiring_graph import Edge

#: Whether a class, or a base of it outside of the standard library, defines how its instances are copied.
_WRITTEN: Final = WeakKeyDictionary[type, bool]()
#: Types of immutable values.
PLAIN: Final = (SCALARS - {bytearray}) | {type(None), Punctuation, EndOfStream}


@dataclass
class _Known:
    """A shared item: its channel and readers, its values when last read, and the ports that process it now."""

    item: Any
    channel: str
    edges: Sequence[Edge]
    values: dict[str, object]
    inside: list[str] = field(default_factory=list)


class Sharing:
    """Finds alterations of shared items in the applications that are bound while it is in use."""

    def __init__(self) -> None:
        self._known: OrderedDict[int, _Known] = OrderedDict()
        self._found: dict[tuple[str, tuple[str, ...], str], str] = {}
        self._lock = threading.RLock()

    def found(self) -> list[str]:
        """Compare the known items once more, and return descriptions of the alterations, one per slet and channel."""
        with self._lock:
            for one in self._known.values():
                self._compare(one)
            return [*self._found.values()]

    def guard(self, edge: Edge, channel: str, kind: str, readers: Sequence[Edge], entry: Entry) -> Entry:
        """Return the entry into a port that compares every item before and after the call."""
        shares = len(readers) > 1 or kind in ("latch", "table", "log")  # these channels keep their items

        def around(inner: Entry, method: Method) -> Push:
            push = getattr(inner, method)

            def check(payload: Any) -> None:
                parts = _parts(payload)
                with self._lock:
                    for part in parts if shares else ():
                        if id(part) not in self._known:
                            self._known[id(part)] = _Known(part, channel, readers, values_of(part))
                    while len(self._known) > 10_000:
                        self._known.popitem(last=False)
                    known = [one for part in parts if (one := self._known.get(id(part))) is not None]
                    for one in known:
                        self._compare(one)
                        one.inside.append(edge.name)
                try:
                    push(payload)
                finally:
                    with self._lock:
                        for one in known:
                            self._compare(one, (edge.name,))
                            one.inside.remove(edge.name)

            return check

        guarded = in_front(entry, around, entry.control)
        guarded.show, guarded.pass_on = entry.show, entry.pass_on
        guarded.name_endpoint(entry.endpoint)
        return guarded

    def _compare(self, one: _Known, by: tuple[str, ...] = ()) -> None:
        """Note the innermost change, made by the port whose call has just ended, or by those that process the item."""
        if (now := values_of(one.item)) == one.values:
            return
        before, one.values = one.values, now
        place = max((place for place in {**before, **now} if before.get(place) != now.get(place)), key=len)
        change = f"{place or 'its value'} was {before.get(place, 'nothing')}, is {now.get(place, 'nothing')}"
        pulling = tuple(edge.name for edge in one.edges if edge.port.pulled)
        ports = by or tuple(one.inside) or pulling or (f"the producer of {one.channel}",)
        others = ", ".join(edge.name for edge in one.edges if edge.name not in ports)
        application = one.edges[0].component.application
        text = (
            f"{application}: {' or '.join(ports)} alters an item of the channel {one.channel!r}, which it shares with "
            f"{others or 'the items that the channel keeps'}: {change} in {safe_repr(one.item, 200)}; alter a copy "
            f"(copy.deepcopy, dataclasses.replace)"
        )
        if self._found.setdefault((application, ports, one.channel), text) is text:
            logger("exop.sharing").warning(text)


def independent(value: Any) -> Any:
    """Return the value itself if it is immutable (as a record batch is), or else a copy."""
    kind = type(value)
    plain = kind in PLAIN or (kind is tuple and all(type(part) in PLAIN for part in value))
    return value if plain or isinstance(value, CONTROL) or is_columns(value) else copy.deepcopy(value)


def copies_freely(value: Any) -> bool:
    """Return whether copying a value calls no method written for that outside of the standard library."""
    left, seen = [value], {0}
    while left:
        if id(one := left.pop()) in seen:
            continue
        seen.add(id(one))
        kind, parts = type(one), list[Any]()
        if isinstance(one, dict):
            parts = [*one, *one.values()]
        elif isinstance(one, (list, tuple, set, frozenset, deque)):
            parts = [*one]
        if kind not in PLAIN and kind.__module__ != "builtins":
            if (written := _WRITTEN.get(kind)) is None:
                names = ("__deepcopy__", "__reduce_ex__", "__reduce__", "__getstate__", "__setstate__")
                methods = (getattr(kind, name, None) for name in names)
                homes = {one.__module__.partition(".")[0] for one in methods if isinstance(one, FunctionType)}
                written = _WRITTEN[kind] = not homes <= sys.stdlib_module_names
            if written:
                return False
            parts += [getattr(one, name) for name in _attributes(one) if hasattr(one, name)]
        left += [part for part in parts if type(part) not in PLAIN]
    return True


def _parts(payload: Any) -> list[Any]:
    """Return the mutable parts of a payload: an item, or those of a batch or window and the list itself."""
    found = [payload, *payload] if isinstance(payload, (list, tuple)) else [payload]
    return [one for one in found if type(one) not in PLAIN and not isinstance(one, CONTROL) and not is_columns(one)]


def values_of(item: Any) -> dict[str, object]:
    """Return every value in an item by its path (`.field`, `[3]`, `['key']`): equal until one is altered."""
    values: dict[str, object] = {}
    left: list[tuple[str, Any]] = [("", item)]
    seen: set[int] = set()
    while left and len(values) < 10_000:
        place, value = left.pop()
        if type(value) in PLAIN:
            values[place] = repr(value)
        elif id(value) in seen or is_columns(value):
            values[place] = id(value)
        else:
            seen.add(id(value))
            parts = list(_within(value))
            shown = sorted(map(repr, value)) if isinstance(value, (set, frozenset)) else value
            values[place] = (class_of(value), len(parts)) if parts else repr(shown)
            left += [(f"{place}{name}", part) for name, part in parts]
    return values


def _within(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        yield from ((f"[{safe_repr(key, 80)}]", one) for key, one in value.items())
    elif hasattr(value, "tobytes"):  # an array
        yield "", value.tobytes()
    elif isinstance(value, (list, tuple)) or (hasattr(value, "popleft") and hasattr(value, "__iter__")):
        yield from ((f"[{number}]", one) for number, one in enumerate(value))
    yield from ((f".{name}", getattr(value, name)) for name in _attributes(value) if hasattr(value, name))


def _attributes(value: Any) -> list[str]:
    names = [*getattr(value, "__dict__", ())]
    for base in type(value).__mro__:
        slots = vars(base).get("__slots__", ())
        names += [slots] if isinstance(slots, str) else slots
    return names
