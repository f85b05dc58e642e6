"""Entries, the points at which items enter: three bound callables, compiled once and called without any look-up."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from exop.model.items import EndOfStream, Punctuation
from exop.runtime.convert import Shared
from exop.runtime.unwind import Unwind, Way

if TYPE_CHECKING:
    from exop.runtime.fuse import Link
    from exop.runtime.metrics import Tally

Push = Callable[[Any], None]
Control = Callable[[Punctuation | EndOfStream], None]
#: A factory of the callables of an entry, by attribute name: a `Push`, for the probe an `Entry`, or a `Link`.
Late = Mapping[str, Callable[[], Any]]


#: Puts a payload where it waits, by the way it would be pushed.
Store = Callable[[Way, Any], None]

#: Stands for "no item".
NOTHING: Final = object()


class Entry:
    """The way into a slet's port or a channel: for one item, for several, for control items.

    `place` names where it leads (`node.port`, a channel), whatever is compiled there at the time. `show` and `pass_on`
    are the two halves of `control` where a slet sees control items: the slet is shown it, and it goes on.
    `probe` is the same way with instruments on it; a driver takes it for the few items that are measured. `link` is
    there when the way leads into a slet that can be fused with the one before it. `uncounted` is `push` for a caller
    whose own count leads into `tally`.

    Three more serve work that is left unfinished, never the running stream: `targets` are all entries of a fan-out,
    `store` puts a payload into a queue without waiting for room, and `behind` leads on when the place itself is gone.
    """

    __slots__ = (
        "behind",
        "control",
        "link",
        "pass_on",
        "place",
        "probe",
        "push",
        "push_batch",
        "show",
        "store",
        "tally",
        "targets",
        "uncounted",
    )

    def __init__(
        self,
        push: Push,
        push_batch: Push,
        control: Control,
        *,
        place: str = "",
        probe: Entry | None = None,
        uncounted: Push | None = None,
        store: Store | None = None,
        behind: Sequence[Entry] = (),
    ) -> None:
        self.push = push
        self.uncounted: Push = uncounted or push
        self.push_batch = push_batch
        self.control = control
        self.show = control
        self.pass_on = control
        self.place = place
        self.probe: Entry = probe or self
        self.link: Link | None = None
        self.tally: Tally | None = None
        self.store = store
        self.targets: Sequence[Entry] = ()
        self.behind = behind

    def stand_at(self, place: str) -> None:
        """Name the place where the entry, and its probe, lead."""
        self.place = self.probe.place = place


class LateEntry(Entry):
    """An entry whose ways are made when they are first read.

    Of the slets in a chain only the first is entered from outside, hardly ever by a batch, and every so often with
    instruments; a change, which holds the stream up, need not compile the other ways.

    Args:
        control: The way of control items.
        late: What makes `push`, `uncounted`, `push_batch`, `link` and `probe`; without a link the entry is not fused
            with the one before it, without a probe it is its own.
        tally: Where the items are counted, if a caller may count them itself.
    """

    __slots__ = ("_late",)

    def __init__(self, control: Control, late: Late, tally: Tally | None = None) -> None:
        self.control = self.show = self.pass_on = control
        self.place = ""
        self.tally = tally
        self.store = None
        self.targets = self.behind = ()
        self._late = late
        if "link" not in late:
            self.link = None
        if "probe" not in late:
            self.probe = self

    def __getattr__(self, name: str) -> Any:
        """A way that was not made yet: no other attribute is missing."""
        make = self._late.get(name)
        if make is None and name != "uncounted":
            raise AttributeError(name=name, obj=self)
        made = make() if make is not None else self.push
        if isinstance(made, Entry):
            made.place = made.place or self.place
        setattr(self, name, made)
        return made

    def stand_at(self, place: str) -> None:
        """Name the place; a probe that is made later gets it then."""
        self.place = place
        if "probe" not in self._late:
            self.probe.place = place


def _discard(_: Any) -> None:
    """Drop the items of an output that is not connected."""


NOWHERE = Entry(_discard, _discard, _discard, store=lambda way, payload: None)


def fan_out(targets: Sequence[Entry], *, probing: bool = True) -> Entry:
    """One way into several targets, each of which gets everything, in their order."""
    if not targets:
        return NOWHERE
    if len(targets) == 1:
        return targets[0]

    def push_batch() -> Push:
        to_all = _to_all(targets, "push_batch")

        def push_shared(batch: Any) -> None:
            with Shared(batch):
                to_all(batch)

        return push_shared

    late: dict[str, Callable[[], Any]] = {"push": lambda: _to_all(targets, "push"), "push_batch": push_batch}
    if probing:
        late["probe"] = lambda: fan_out([target.probe for target in targets], probing=False)
    entry = LateEntry(_to_all(targets, "control"), late)
    entry.targets = targets
    return entry


def _to_all(targets: Sequence[Entry], way: Way) -> Callable[[Any], None]:
    """Hand a payload to every target by one of their callables."""
    calls = tuple(getattr(target, way) for target in targets)

    def to_all(payload: Any) -> None:
        done = 0
        try:
            for call in calls:
                done += 1
                call(payload)
        except Unwind as unwound:
            for target in targets[done:]:
                unwound.then(target, way, [payload])
            raise

    if len(calls) != 2:
        return to_all
    first, second = calls

    def to_both(payload: Any) -> None:
        try:
            first(payload)
        except Unwind as unwound:
            unwound.then(targets[1], way, [payload])
            raise
        second(payload)

    return to_both


def in_turn(entry: Entry, payloads: Iterable[Any]) -> None:
    """Push several payloads one after the other; those that are left when the driver unwinds are kept."""
    rest, push = iter(payloads), entry.push
    try:
        for payload in rest:
            push(payload)
    except Unwind as unwound:
        unwound.then(entry, "push", rest)
        raise


def control_all(entries: Iterable[Entry], mark: Punctuation | EndOfStream) -> None:
    """Hand a control item to several entries; those that are left when the driver unwinds get it later."""
    rest = iter(entries)
    try:
        for entry in rest:
            entry.control(mark)
    except Unwind as unwound:
        for entry in rest:
            unwound.then(entry, "control", [mark])
        raise
