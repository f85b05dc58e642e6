"""`latch`: remembers the last item per key, and gives what it remembers to those who connect later."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, ClassVar

from exop.runtime.channel import Channel, Outlet, PullMode
from exop.runtime.convert import to_items
from exop.runtime.entry import Entry, fan_out


def key_reader(fields: str | Sequence[str] | None) -> Callable[[Any], Any]:
    """A function that reads the key from an item: one field, several (a tuple), or none (one key for all)."""
    if not fields:
        return lambda item: None
    if isinstance(fields, str):
        return lambda item: _field(item, fields)
    names = tuple(fields)
    return lambda item: tuple(_field(item, name) for name in names)


def _field(item: Any, name: str) -> Any:
    if isinstance(item, Mapping):
        return item[name]
    return item[int(name)] if name.isdigit() else getattr(item, name)


class LatchChannel(Channel):
    """Passes every item on and keeps the last one per `key` (a field, several, or none: one for all).

    A port that connects later first receives what is kept (`replay=True`); a pull reads it.
    Extended interface: `get(key)`, `items()`.

    Attributes:
        overwritten: Items that another one with the same key has replaced.
    """

    kind: ClassVar[str] = "latch"
    pull_mode: ClassVar[PullMode] = "read"
    refuses_whole: ClassVar[bool] = True

    def __init__(self, name: str, *, key: str | list[str] | None = None, replay: bool = True) -> None:
        super().__init__(name)
        self._key = key_reader(key)
        self._replay = replay
        self.overwritten = 0
        self._kept: dict[Any, Any] = {}
        self._lock = threading.RLock()

    def entry(self, outlets: Sequence[Outlet]) -> Entry:
        """Store, then hand on."""
        deliver = fan_out([outlet.entry for outlet in outlets])
        entry = self._storing(deliver)
        entry.probe = self._storing(deliver.probe)
        return entry

    def kept_for(self, port: str) -> list[Any]:
        """What a port that connects later is given first: the last item of every key."""
        return self.items() if self._replay else []

    def get(self, key: Any = None, default: Any = None) -> Any:
        """The last item with *key*."""
        return self._kept.get(key, default)

    def items(self) -> list[Any]:
        """The last item of every key."""
        with self._lock:
            return list(self._kept.values())

    def read(self, port: str) -> list[Any]:
        """What a pull sees: the last item of every key."""
        return self.items()

    def metrics(self) -> dict[str, int | float | str]:
        """How many keys are kept, how many items have come, and how many of them were overwritten."""
        keys = len(self._kept)
        return {"keys": keys, "taken": keys + self.overwritten, "overwritten": self.overwritten}

    def capture(self) -> Mapping[str, Any]:
        """The kept items, and the counts."""
        return {"items": self.items(), "overwritten": self.overwritten}

    def restore(self, held: Mapping[str, Any]) -> None:
        """Keep these again."""
        self._store(held["items"])
        self.overwritten = held.get("overwritten", 0)

    def exchange(self, replace: Callable[[Any], Any]) -> None:
        """Put what *replace* gives in the place of every kept item."""
        with self._lock:
            items = [replace(item) for item in self._kept.values()]
            self._kept.clear()
            self._store(items)

    def _storing(self, deliver: Entry) -> Entry:
        """A way in that stores what passes before it hands it on."""
        store = self._store

        def push(item: Any) -> None:
            store((item,))
            deliver.push(item)

        def push_batch(batch: Any) -> None:
            store(to_items(batch))
            deliver.push_batch(batch)

        return Entry(push, push_batch, deliver.control)

    def _store(self, items: Collection[Any]) -> None:
        keyed = {self._key(item): item for item in items}  # first: one without a key leaves everything as it was
        with self._lock:
            before = len(self._kept)
            self._kept |= keyed
            self.overwritten += len(items) - (len(self._kept) - before)
