"""Where items enter something: three bound callables, compiled once and called without any look-up."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from exop.model.items import EndOfStream, Punctuation
from exop.runtime.convert import to_items

if TYPE_CHECKING:
    from exop.runtime.fuse import Link

Push = Callable[[Any], None]
Control = Callable[[Punctuation | EndOfStream], None]


class Entry:
    """The way into a slet's port or a channel: for one item, for several, for control items.

    `probe` is the same way with instruments on it; a driver takes it for the few items that are measured. `link` is
    there when the way leads into a slet that can be fused with the one before it.
    """

    __slots__ = ("control", "link", "probe", "push", "push_batch")

    def __init__(
        self, push: Push, push_batch: Push, control: Control, probe: Entry | None = None, link: Link | None = None
    ) -> None:
        self.push = push
        self.push_batch = push_batch
        self.control = control
        self.probe: Entry = probe or self
        self.link = link


def _discard(_: Any) -> None:
    """An output that nobody reads: what leaves there is dropped."""


NOWHERE = Entry(_discard, _discard, _discard)


def fan_out(targets: Sequence[Entry], *, probing: bool = True) -> Entry:
    """One way into several targets, each of which gets everything, in their order."""
    if not targets:
        return NOWHERE
    if len(targets) == 1:
        return targets[0]
    probe = fan_out([target.probe for target in targets], probing=False) if probing else None
    if len(targets) == 2:
        return _both(targets[0], targets[1], probe)
    pushes = tuple(target.push for target in targets)
    batches = tuple(target.push_batch for target in targets)
    controls = tuple(target.control for target in targets)

    def push(item: Any) -> None:
        for each in pushes:
            each(item)

    def push_batch(batch: Any) -> None:
        for each in batches:
            each(batch)

    def control(mark: Punctuation | EndOfStream) -> None:
        for each in controls:
            each(mark)

    return Entry(push, push_batch, control, probe)


def _both(one: Entry, other: Entry, probe: Entry | None) -> Entry:
    """Two targets are so common that they have a loop-free form."""
    push_one, push_other = one.push, other.push
    batch_one, batch_other = one.push_batch, other.push_batch

    def push(item: Any) -> None:
        push_one(item)
        push_other(item)

    def push_batch(batch: Any) -> None:
        batch_one(batch)
        batch_other(batch)

    def control(mark: Punctuation | EndOfStream) -> None:
        one.control(mark)
        other.control(mark)

    return Entry(push, push_batch, control, probe)


def item_by_item(push: Push) -> Push:
    """A batch entry for something that takes single items only."""

    def push_batch(batch: Any) -> None:
        for item in to_items(batch):
            push(item)

    return push_batch
