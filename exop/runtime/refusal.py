"""Items that a channel cannot take: without a key, or for a log on a full disk. The failure is the sender's.

Nothing in the way behind a channel raises, since every slet has a policy of its own. So what comes out of a channel as
an exception is the channel's, and is dealt with by the policy of the slet that has pushed the item.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from exop.errors import ComponentFailed
from exop.runtime.channel import Channel
from exop.runtime.component import Component
from exop.runtime.convert import to_items, weight
from exop.runtime.drivers.base import Halted, current_driver
from exop.runtime.entry import NOWHERE, Entry, in_turn
from exop.runtime.trouble import Kept, set_aside
from exop.runtime.unwind import Unwind, Way, Work
from exop.shown import add_note, described, shown

#: A component, and the name of the output port by which it pushes.
Producer = tuple[Component, str]
#: A slet behind the channel that was pushed to by hand; a driver that goes back to its safe point, or leaves.
_PASSING = (ComponentFailed, Unwind, Halted)


def careful(channel: Channel, entry: Entry, place: str, producers: Sequence[Producer]) -> Entry:
    """The way into a channel that keeps something, at *place*; an item that it does not take fails at its producer."""
    if not producers:
        return entry
    made = _careful(channel, entry, place, producers)
    made.probe = _careful(channel, entry.probe, place, producers) if entry.probe is not entry else made
    return made


def _careful(channel: Channel, entry: Entry, place: str, producers: Sequence[Producer]) -> Entry:
    def guarded(way: Way) -> Callable[[Any], None]:
        take = getattr(entry, way)

        def push(payload: Any) -> None:
            try:
                take(payload)
            except _PASSING:
                raise
            except BaseException as error:  # noqa: BLE001 (whatever a channel, or a property of an item, raises)
                _refused(channel, producers, Work(stand_in, way, payload), error)

        return push

    def push_batch(batch: Any) -> None:
        try:
            take_batch(batch)
        except _PASSING:
            raise
        except BaseException as error:  # noqa: BLE001 (likewise)
            if not channel.refuses_whole:
                _refused(channel, producers, Work(stand_in, "push_batch", batch), error)
            else:  # nothing of the batch was taken: only those items fail that cannot be
                in_turn(made, to_items(batch))

    # Whatever is compiled there by the time when the item is tried again.
    stand_in = Entry(NOWHERE.push, NOWHERE.push_batch, NOWHERE.control, place=place)
    take_batch = entry.push_batch
    made = Entry(guarded("push"), push_batch, guarded("control"))
    return made


def _refused(channel: Channel, producers: Sequence[Producer], work: Work, error: BaseException) -> None:
    """Deal with what a channel has not taken, by the policy of the slet that has sent it."""
    driver = current_driver()
    component, port = next((one for one in producers if one[0].runner is driver), producers[0])
    component.metrics.failed(error)
    add_note(
        error,
        f"in the channel {channel.name!r} ({channel.kind}), behind {component.node.name}.{port}, "
        f"for the item {shown(work.payload)}",
    )
    policy = component.node.policy
    if policy == "skip":
        component.metrics.skipped += weight(work.payload) if work.way == "push_batch" else 1
    elif policy == "dead-letter":
        for item in to_items(work.payload) if work.way == "push_batch" else [work.payload]:
            set_aside(component, port, item, error)
    else:
        if driver is None:  # pushed by hand, outside of any driver: the caller gets the error
            where = f"pushing into the channel {channel.name!r}"
            raise ComponentFailed(node=component.node.name, phase=where, problem=described(error)) from error
        kept = Kept(port, work.payload, error)
        component.failed(error, kept)
        where = f"{component.node.name} is suspended: the channel {channel.name!r} does not take its item"
        raise Unwind(where, lambda: component.trouble.kept is not kept, work)
