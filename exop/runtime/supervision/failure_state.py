"""The state of a slet's failures: the item on which it is suspended, its dead letters, the item that hangs."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal

from exop.errors import NoSuchItem, NotStorable, StoredStateError
from exop.logs import logger
from exop.model.items import DeadLetter
from exop.model.slets.spec import DEAD
from exop.model.types.assignable import misfit
from exop.model.types.description import type_of
from exop.runtime.dataflow.entry import Unwind
from exop.runtime.drivers.base import current_driver
from exop.runtime.lifecycle import State
from exop.safe_repr import described, shown, traceback_of

if TYPE_CHECKING:
    from exop.runtime.component import Component

#: The form of a file of a failed item.
FORMAT: Final = 1
#: A memento that takes more bytes is not kept with every dead letter.
LARGEST: Final = 65536

#: The note on a memento next to a failed item.
FOUND, LEFT, NONE = "as the call found it", "as the failed call left it", "the slet has none"


@dataclass(frozen=True)
class FailedItem:
    """An item for which a slet raised, with everything needed to try it again somewhere else.

    Attributes:
        kind: The slet is suspended on it (`kept`), or it was set aside (`dead letter`).
        slet: The identity of the slet.
        code: The module and name of its function or class; `None` where no other process could find it by that.
        port: The input port; empty for a slet that is iterated.
        item: The item itself; of a slet that pulls, the items that it had pulled last, by port.
        memento: Its state, as it is stored; `None` if it is not known.
        told: Whether the memento is as the call found it (`atomic`) or left it, or why there is none.
        error: The class and text of the exception.
        traceback: As Python prints it.
        at: When, in seconds since the epoch.
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
        return {**found, "item": shown(self.item), "memento": self.told}

    def to_bytes(self) -> bytes:
        """Return the content of a file for `exop.testing.replay`, or raise `NotStorable`."""
        # Imported lazily: only writing needs msgpack.
        from exop.model.values.encoding import encode

        found = self.as_data()
        found["settings"] = encode(found["settings"])
        try:
            found["item"] = encode(found["item"])
        except NotStorable as strange:
            raise NotStorable(**{**strange.facts, "place": f"the item of {self.place}"}) from strange
        return encode({"exop failed item": FORMAT, **found})

    def as_data(self) -> dict[str, Any]:
        """Return the fields as plain data; settings that cannot be stored are text."""
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

        Classes of the item are looked up among the modules that are loaded; they are filled, and nothing is called.
        """
        from exop.model.values.class_names import Declared
        from exop.model.values.decoding import decode

        refused = partial(StoredStateError, what="the failed item")
        cure = "write it anew with `exop item export APP.NODE FILE`"
        try:
            found = decode(data, declared=Declared())
        except StoredStateError as damage:
            raise refused(problem=damage.problem, cure=cure) from None
        form = found.pop("exop failed item", None) if isinstance(found, dict) else None
        if form is None:
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
            if (where := misfit(getattr(failed, name), one.type, name)) is not None:
                raise refused(problem=where, cure=cure)
        return failed

    @property
    def place(self) -> str:
        """The place of the failure: application and node."""
        return f"{self.application}.{self.node}"


@dataclass
class Kept:
    """The item on which a slet is suspended, and the error; for a slet that pulls, the last items by port."""

    port: str
    item: Any
    error: BaseException

    @property
    def text(self) -> str:
        """The traceback, as Python prints it, without that of an earlier try of the item."""
        return traceback_of(self.error, without=Unwind)


class DeadLetters(list[FailedItem]):
    """The newest items of one node that were set aside, in order; `dropped` older ones are beyond the bound."""

    def __init__(self) -> None:
        super().__init__()
        self.dropped = 0
        #: The memento is too large to be kept with every item.
        self.heavy = False

    def add(self, letter: FailedItem, most: int) -> None:
        """Add one; beyond *most* the oldest is dropped."""
        self.append(letter)
        while len(self) > most:
            self.pop(0)
            self.dropped += 1

    def capture(self) -> dict[str, Any]:
        """Return all of them as plain data for `restore`."""
        return {"letters": [one.as_data() for one in list(self)], "dropped": self.dropped}

    def restore(self, held: Mapping[str, Any]) -> None:
        """Take back the data of `capture`."""
        self.extend(FailedItem(**one) for one in held["letters"])
        self.dropped += held["dropped"]


@dataclass(frozen=True)
class Hang:
    """An item that takes longer than its slet's time-out; it is one of *items* that the driver has handled."""

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
    """The failed items of one component: the one on which it is suspended, those set aside, and the one that hangs."""

    kept: Kept | None = None
    dead: DeadLetters = field(default_factory=DeadLetters)
    hang: Hang | None = None
    #: There was such an item.
    hung: bool = False
    #: How often it was iterated in vain since it had yielded `sent` items.
    tries: int = 0
    sent: int = -1


def kept_item(component: Component) -> FailedItem | None:
    """Return the item on which a component is suspended; its memento cannot change meanwhile."""
    kept = component.trouble.kept
    if kept is None:
        return None
    return _failed_item(component, "kept", kept.port, kept.item, kept.error, _memento(component))


def failed_item(component: Component, dead_letter: int | None = None) -> FailedItem:
    """Return the kept item, or a dead letter by its number (1 is the oldest), or raise `NoSuchItem`."""
    kept, letters = kept_item(component), list(component.trouble.dead)
    if dead_letter is None:
        if kept is not None:
            return kept
        what, cure = "kept item", f"it has {len(letters)} dead letters" if letters else "nothing of it has failed"
    else:
        if 1 <= dead_letter <= len(letters):
            return letters[dead_letter - 1]
        what = f"dead letter {dead_letter}"
        cure = f"give a number from 1 to {len(letters)}" if letters else "none was set aside"
    raise NoSuchItem(node=component.name, what=what, cure=cure)


def set_aside(component: Component, port: str, item: Any, error: BaseException) -> None:
    """Put an item out as a dead letter; without a channel for it, keep it, with the memento of this moment.

    A dead letter that its channel has refused is kept, too: a letter of the letter would be refused as well.
    """
    if component.aside is not None and component.status is not State.ENDED and port != DEAD:
        place, trace = (component.application, component.node.name, port), traceback_of(error, without=Unwind)
        letter = DeadLetter(*place, item, described(error), trace, time.time())
        driver = current_driver()
        if driver in (None, component.runner):
            component.aside.push(letter)
        else:  # that of a queue behind the slet, whose channel has refused the item: the slet's own driver sends it
            driver.inlets.post([component.aside.given(letter)])
        return
    dead, most = component.trouble.dead, component.node.letters
    if len(dead) >= most and not dead.dropped:
        cure = "name a channel for them: dead_letters=channel"
        logger("exop.runtime").warning("dead letters are dropped", node=component.name, kept=most, cure=cure)
    if not most:
        dead.dropped += 1
        return
    memento = (None, _TOO_LARGE) if dead.heavy else _memento(component, LARGEST)
    dead.heavy = memento[1] == _TOO_LARGE
    dead.add(_failed_item(component, "dead letter", port, item, error, memento), most)


_TOO_LARGE = f"not kept: it is larger than {LARGEST // 1024} KB"


def _failed_item(
    component: Component,
    kind: Literal["kept", "dead letter"],
    port: str,
    item: Any,
    error: BaseException,
    memento: tuple[bytes | None, str],
) -> FailedItem:
    # Names are looked for by the codec, which most platforms never need.
    from exop.model.values.class_names import name_of

    spec = component.spec
    try:
        code: str | None = name_of(spec.factory)
    except (NotStorable, AttributeError):
        code = None
    trace, settings = traceback_of(error, without=Unwind), dict(component.node.settings)
    where = (component.application, component.node.name, spec.identity, code, port)
    return FailedItem(kind, *where, item, settings, *memento, described(error), trace, time.time())


def _memento(component: Component, most: int | None = None) -> tuple[bytes | None, str]:
    """Return the memento as it is stored, unless it is larger than *most* bytes, and its `told`."""
    if component.state is None:
        return None, NONE
    from exop.model.slets.stored_memento import pack

    try:
        packed = pack(component.state, component.name)
    except NotStorable as problem:
        return None, f"not kept: {problem}"
    if most is not None and len(packed) > most:
        return None, _TOO_LARGE
    return packed, FOUND if component.spec.atomic else LEFT
