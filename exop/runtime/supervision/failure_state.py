"""Failed items as values: the item on which a slet is suspended, dead letters, the item that hangs."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, Literal

from exop.errors import NotStorable, StoredStateError
from exop.model.types.assignable import value_mismatch
from exop.model.types.description import type_of
from exop.runtime.channels.wire import Undecoded
from exop.runtime.dataflow.entry import Unwind
from exop.safe_repr import safe_repr, traceback_of

#: The form of a file of a failed item.
FORMAT: Final = 1
#: Bytes of the items in dead letters that were not decoded.
UNDECODED: Final = 32 * 2**20
#: The note on a failed item whose slet has no memento.
NONE: Final = "the slet has none"


@dataclass(frozen=True)
class FailedItem:
    """An item for which a slet raised an exception, with all data that are needed to process it elsewhere.

    Attributes:
        kind: `kept` if the slet is suspended on the item, or `dead letter`.
        slet: The identity of the slet.
        code: The module and name of the slet's function or class; `None` if another process could not import it.
        port: The input port; empty for a slet that is iterated.
        item: The item; for a slet that pulls, the items of its last pulls, by port.
        memento: The memento in stored form; `None` if the memento is unknown.
        told: Whether the memento is the one before the call (`atomic`) or after the call, or the reason why there is no
            memento.
        error: The class and text of the exception.
        traceback: The traceback as printed by Python.
        at: The time of the failure, in seconds since the epoch.
    """

    kind: Literal["kept", "dead letter"] = "kept"
    application: str = ""
    node: str = ""
    slet: str = ""
    code: str | None = None
    port: str = ""
    item: Any = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    memento: bytes | None = field(default=None, repr=False)
    told: str = NONE
    error: str = ""
    traceback: str = field(default="", repr=False)
    at: float = 0.0

    def summary(self) -> dict[str, Any]:
        """Return the summary for the status, as plain data."""
        found = {name: getattr(self, name) for name in ("kind", "port", "error", "traceback", "at")}
        return {**found, "item": safe_repr(self.item), "memento": self.told}

    def to_bytes(self) -> bytes:
        """Return the content of a file for `exop.testing.replay`, or raise `NotStorable`."""
        # Imported lazily: only writing needs msgpack.
        from exop.model.values.encoding import encode

        if isinstance(self.item, NotStored):
            cure = f"use the traceback of `exop item list {self.place}`"
            raise NotStorable(value=self.item.shown, problem="a restart has lost it", cure=cure, place=self.place)
        found = self.as_data()
        found["settings"] = encode(found["settings"])
        found["item"] = encode(found["item"], place=f"the item of {self.place}")
        return encode({"exop failed item": FORMAT, **found})

    def as_data(self) -> dict[str, Any]:
        """Return the fields as plain data; settings that cannot be stored become strings."""
        from exop.model.values.encoding import encode

        settings = dict(self.settings)
        for name, value in settings.items():
            try:
                encode(value)
            except NotStorable:
                settings[name] = str(value)
        return {**vars(self), "settings": settings}

    @staticmethod
    def from_bytes(data: bytes) -> FailedItem:
        """Read the content of a file, which may come from an untrusted source, or raise `StoredStateError`.

        Classes of the item are looked up in loaded modules, and their fields are filled without any call.
        """
        from exop.model.values.classes import Declared
        from exop.model.values.encoding import decode

        refused = partial(StoredStateError, what="the failed item")
        cure = "write it anew with `exop item export APP.NODE FILE`"
        try:
            found = decode(data, declared=Declared())
        except StoredStateError as damage:
            raise refused(problem=damage.problem, cure=cure) from None
        if (form := found.pop("exop failed item", None) if isinstance(found, dict) else None) is None:
            raise refused(problem="it is no file of a failed item", cure=cure)
        if form != FORMAT:
            problem = f"it is written in the form {form}, this release reads {FORMAT}"
            raise refused(problem=problem, cure="use the release that wrote it")
        try:
            found |= {name: decode(found[name], declared=Declared(Any)) for name in ("item", "settings")}
            failed = FailedItem(**found)
        except StoredStateError as damage:
            raise refused(problem=damage.problem, cure=damage.cure) from None
        except (KeyError, TypeError) as damage:
            raise refused(problem=f"its parts do not fit ({damage})", cure=cure) from None
        for name, one in type_of(FailedItem).fields.items():
            if (where := value_mismatch(getattr(failed, name), one.type, name)) is not None:
                raise refused(problem=where, cure=cure)
        return failed

    @property
    def place(self) -> str:
        """The place of the failure: application and node."""
        return f"{self.application}.{self.node}"


@dataclass(frozen=True)
class NotStored:
    """Represents, after a restart, the item of a dead letter that could not be stored; *shown* is its text."""

    shown: str


@dataclass
class KeptItem:
    """The item on which a slet is suspended, the error and its text then; of one that pulls, its last items."""

    port: str
    item: Any
    error: BaseException
    text: str = ""

    def __post_init__(self) -> None:
        self.text = self.text or traceback_of(self.error, without=Unwind)


class DeadLetters(list[FailedItem]):
    """The newest dead letters of one node, in order; `dropped` is the number of older ones beyond the limit."""

    dropped = 0

    @property
    def undecoded(self) -> int:
        """The bytes of the items that were not decoded, of which a peer may send any."""
        return sum(len(one.item.body) for one in list(self) if isinstance(one.item, Undecoded))

    def add(self, letter: FailedItem, most: int) -> None:
        """Add a dead letter; if there are more than *most*, or too many bytes that a peer has sent, drop the oldest."""
        self.append(letter)
        while len(self) > most or (isinstance(letter.item, Undecoded) and self.undecoded > UNDECODED):
            self.pop(0)
            self.dropped += 1

    def capture(self) -> dict[str, Any]:
        """Return all dead letters as plain data, for `restore`."""
        return {"letters": [one.as_data() for one in list(self)], "dropped": self.dropped}

    @staticmethod
    def storable(held: Mapping[str, Any]) -> dict[str, Any]:
        """Return the result of `capture` with a `NotStored` in place of each item that cannot be stored."""
        from exop.model.values.encoding import encode

        letters = [dict(one) for one in held["letters"]]
        for one in letters:
            try:
                encode(one["item"])
            except NotStorable:
                one["item"] = NotStored(safe_repr(one["item"]))
        return {**held, "letters": letters}

    def restore(self, held: Mapping[str, Any]) -> None:
        """Restore the dead letters from the data of `capture`."""
        self.extend(FailedItem(**one) for one in held["letters"])
        self.dropped += held["dropped"]


@dataclass(frozen=True)
class Hang:
    """An item that exceeds its slet's timeout; *items* is the number of items that its driver has processed."""

    driver: str
    items: int
    since: float
    stack: str
    clock: Callable[[], float] = field(default=time.monotonic, repr=False, compare=False)

    @property
    def seconds(self) -> float:
        """The time since then."""
        return self.clock() - self.since


@dataclass
class Trouble:
    """The failures of one component: the item on which it is suspended, dead letters, the item that hangs."""

    kept: KeptItem | None = None
    dead: DeadLetters = field(default_factory=DeadLetters)
    hang: Hang | None = None
    #: The number of failed iterations since the slet had yielded `sent` items.
    tries: int = 0
    sent: int = -1
