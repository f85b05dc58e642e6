"""Conditional updates at run time: triggers test items for the pending updates, and a log records the applied ones.

The driver that pushes the item changes the settings itself, between two items. None has to wait.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from exop.model.items import EndOfStream, Punctuation
from exop.model.meshes.conditional_updates import PUNCTUATION, Place, applied, next_condition, still_pending, without
from exop.model.meshes.diff import difference
from exop.model.meshes.entries import touched
from exop.model.meshes.mesh import Mesh
from exop.model.meshes.nodes import ConditionalUpdate
from exop.model.slets.ports import PortType
from exop.runtime.channels.base import Channel, channel_settings
from exop.runtime.channels.wire import Undecoded
from exop.runtime.component import Component
from exop.runtime.dataflow.batches import cut, opened, to_items, weight
from exop.runtime.dataflow.entry import Entry, Push, Unwind
from exop.safe_repr import RAISED, error_text

if TYPE_CHECKING:
    from exop.runtime.deployment import Deployment

#: The number of applied updates that are stored; a mesh from before the first of them is outdated.
KEPT = 1000


@dataclass(frozen=True)
class AppliedUpdate:
    """An update that took effect, or was dropped because an error prevented that, and the mesh revision after it."""

    section: Literal["nodes", "channels"]
    name: str
    update: ConditionalUpdate
    dropped: bool = False
    revision: int = 0

    def to_place(self, place: Place) -> Place:
        """Return the node or channel as it is after the update."""
        return (without if self.dropped else applied)(place, self.update)

    def place(self, mesh: Mesh) -> Any:
        """Return the node or channel in a mesh, `None` if it is not there."""
        return getattr(mesh, self.section).get(self.name)

    def to_mesh(self, mesh: Mesh) -> Mesh:
        """Return the mesh as it is after the update."""
        edits: dict[str, Any] = {self.section: {self.name: self.to_place(self.place(mesh))}}
        return mesh.edited(**edits)


def updates_since(revision: int, mesh: Mesh, applied: Collection[AppliedUpdate]) -> list[AppliedUpdate] | None:
    """Return the updates *applied* since a revision; `None` if the mesh has had other changes since."""
    found = [one for one in applied if one.revision > revision]
    return found if len(found) == mesh.revision - revision else None


class UpdateLog:
    """Records the conditional updates that take effect in a deployment; called by drivers.

    Attributes:
        applied: The updates that took effect, the latest last.
        pending: The pending updates of each component and channel, possibly including removed ones.
        stored: The mesh to store: with the updates pending that have taken effect since the last checkpoint, since a
            restart begins there, and they take effect again at the same items.
        news: Events to log; `on_news` is called for new ones, so that no driver waits for a log.
    """

    def __init__(self, deployment: Deployment) -> None:
        self.applied: deque[AppliedUpdate] = deque(maxlen=KEPT)
        self.pending: dict[Component | Channel, PendingUpdates] = {}
        self.stored = deployment.mesh
        self.news: deque[tuple[str, dict[str, Any]]] = deque()
        self.on_news: Callable[[], object] = bool
        self.deployment = deployment
        self._turn = threading.Lock()

    def places(self, *, pending: bool) -> tuple[list[str], list[str]]:
        """Return the tracked nodes and channels: those with pending updates, or those without any left."""
        found: dict[str, list[str]] = {"nodes": [], "channels": []}
        for place, updates in list(self.pending.items()):
            if not updates.in_mesh:
                self.pending.pop(place, None)
            elif bool(updates.place.pending) is pending:
                found[updates.section].append(updates.place.name)
        return found["nodes"], found["channels"]

    def record(self, one: AppliedUpdate) -> None:
        """Record an update that took effect in the mesh."""
        deployment, name, text = self.deployment, one.name, str(one.update)
        with self._turn:  # drivers of several nodes may call this at the same time
            place = one.place(deployment.mesh)
            if place is None or one.update not in place.pending:  # not an error that should end the driver
                self.report("a conditional update took effect that is not in the mesh", place=name, update=text)
                return
            one = replace(one, revision=deployment.mesh.revision + 1)
            self.applied.append(one)
            after = one.to_mesh(deployment.mesh).at(one.revision)
            deployment.trace(after, difference(deployment.mesh, after))
            deployment.mesh = after
            if after.durable is None:
                self.stored = after
        outcome = "could not take effect" if one.dropped else "took effect"
        self.report(f"a conditional update {outcome}", place=name, update=text)

    def to_store(self, after: Mesh) -> Mesh:
        """Return the mesh to store when the mesh is edited into *after*, while no update can take effect."""
        if after.durable is None:
            return after
        edits: dict[str, Any] = {}
        for section in ("nodes", "channels"):
            old, now, new = (getattr(mesh, section) for mesh in (self.stored, self.deployment.mesh, after))
            names = [name for name in touched(old, now) if name in old and name in new]
            edits[section] = {name: still_pending(old[name], now[name], new[name]) for name in names}
        return after.edited(**edits)

    def as_in(self, updates: PendingUpdates, since: int) -> deque[AppliedUpdate]:
        """Return the applied updates, those since a revision with the outcome in a follower that has *updates*."""
        found = deque(self.applied, maxlen=KEPT)
        for at, one in enumerate(self.applied):
            for other in updates.applied if one.revision > since else ():
                if (one.name, one.update) == (other.name, other.update):
                    found[at] = replace(other, revision=one.revision)
        return found

    def report(self, event: str, **facts: Any) -> None:
        """Add an event to the news."""
        self.news.append((event, {"application": self.deployment.name, **facts}))
        self.on_news()

    def since(self, revision: int) -> tuple[Mesh, list[AppliedUpdate] | None]:
        """Return the mesh, and the updates applied since a revision; `None` if there were other changes since."""
        with self._turn:
            mesh = self.deployment.mesh
            return mesh, updates_since(revision, mesh, self.applied)


class Trigger:
    """Tests the payloads on their way into `inner`, the *compiled* entry of a port or channel, for the next update.

    Attributes:
        entry: The entry in front of `inner`.
        test: The condition of the next update, if it concerns the items of this place.
        time_test: The condition of the next update, if it concerns the time.
        fields: The fields that the condition reads; `None` for the whole item.
    """

    def __init__(self, updates: PendingUpdates, key: str, compiled: Callable[[], Entry], carried: PortType) -> None:
        self.key, self.compiled, self.inner = key, compiled, compiled()
        self.test: Callable[[Any], Any] | None = None
        self.time_test: Callable[[Any], Any] | None = None
        self.fields: tuple[str, ...] | None = None
        self._updates = updates
        self.carried = carried
        self.entry, self.entry.probe = self._made(lambda: self.inner), self._made(lambda: self.inner.probe)
        self.entry.show = lambda mark: self.inner.show(mark)  # noqa: PLW0108 (of the entry at that time)
        self.entry.pass_on = lambda mark: self.inner.pass_on(mark)  # noqa: PLW0108 (the same)

    def _made(self, inner: Callable[[], Entry]) -> Entry:
        def push(item: Any) -> None:
            if self.test is not None:
                self._look(item)
            inner().push(item)

        def push_batch(batch: Any) -> None:
            self._push_batch(batch, lambda part: inner().push_batch(part))

        return Entry(push, push_batch, self._control, endpoint=self.inner.endpoint)

    def _look(self, item: Any) -> None:
        while self.test is not None and self._updates.holds(self.test, item):
            self._updates.apply_next()

    def _push_batch(self, batch: Any, send: Push) -> None:
        if self.test is None:
            send(batch)
            return
        try:
            batch, rows = self._opened(batch)
        except Exception as error:  # noqa: BLE001 (whatever it is, the policy of the port decides about the batch)
            self._updates.raised(error)
            send(batch)
            return
        begin = 0
        for at, row in enumerate(rows):
            if self.test is None:
                break
            if not self._updates.holds(self.test, row):
                continue
            if at > begin:  # the rows before this one are processed with the old settings
                try:
                    send(cut(batch, begin, at))
                except Unwind as unwound:
                    unwound.then(self.entry, "push_batch", [cut(batch, at, len(rows))])
                    raise
                begin = at
            self._updates.apply_next()
            self._look(row)
        send(cut(batch, begin, len(rows)) if begin else batch)

    def _opened(self, batch: Any) -> tuple[Any, list[Any]]:
        """Return the batch to send, and its rows in the form in which the condition reads them."""
        if isinstance(batch, Undecoded):
            batch = self._updates.decoded(batch, self.key)
        batch = opened(batch) if self.carried.form == "columns" else to_items(batch, self.carried.item)
        if isinstance(batch, list):
            return batch, batch
        if self.fields is not None and set(self.fields) <= set(batch.schema.names):
            return batch, batch.select(list(self.fields)).to_pylist() if self.fields else [{}] * weight(batch)
        return batch, batch.to_pylist()

    def _control(self, mark: Punctuation | EndOfStream) -> None:
        if isinstance(mark, Punctuation):
            while self.time_test is not None and self._updates.holds(self.time_test, mark.time):
                self._updates.apply_next()
        self.inner.control(mark)


class PendingUpdates:
    """The pending updates of one component or channel: they take effect in order, and triggers test for the first.

    Args:
        log: Records the updates that take effect.

    Attributes:
        section: The section of the mesh to which the node or channel belongs.
        applied: Those that have taken effect here, or were dropped.
        problem: The last exception of a condition; an item for which a condition raises does not fulfil it.
        errors: The number of these exceptions.
    """

    def __init__(self, owner: Component | Channel, log: UpdateLog) -> None:
        self.section: Literal["nodes", "channels"] = "channels" if isinstance(owner, Channel) else "nodes"
        self._owner, self._log = owner, log
        self.applied: list[AppliedUpdate] = []
        self.problem: str | None = None
        self.errors = 0
        self._triggers: dict[str, Trigger] = {}

    @property
    def place(self) -> Any:
        """The current node or channel of the mesh, with the updates that have not taken effect yet."""
        return self._owner.asked if isinstance(self._owner, Channel) else self._owner.node

    @property
    def in_mesh(self) -> bool:
        """Whether the component or channel is the one in the mesh; a follower gets the same items, but is not."""
        deployment = self._log.deployment
        owners: Mapping[str, Any] = deployment.components if self.section == "nodes" else deployment.channels
        return owners.get(self.place.name) is self._owner

    def trigger(self, key: str, carried: PortType, compiled: Callable[[], Entry]) -> Entry:
        """Insert a trigger before the entry that conditions call *key*; it is *compiled* now, and after each update."""
        trigger = self._triggers[key] = Trigger(self, key, compiled, carried)
        self._arm()
        return trigger.entry

    def _arm(self) -> None:
        """Make the triggers test for the first pending update, if there is one."""
        for key, trigger in self._triggers.items():
            trigger.test = trigger.time_test = None
            if not self.place.pending:
                continue
            condition = next_condition(self.place, trigger.carried)
            test = condition.item_function(self.place.settings)
            if condition.subject == PUNCTUATION:
                trigger.time_test = test
            elif condition.subject == key or self.section == "channels":  # a channel has one trigger for all names
                trigger.test, trigger.fields = test, condition.fields

    def holds(self, test: Callable[[Any], Any], item: Any) -> bool:
        """Whether the condition holds for an item: NULL does not."""
        try:
            return bool(test(item))
        except BaseException as error:  # noqa: BLE001 (no error of an item's property may lose the item)
            self.raised(error)
            return False

    def decoded(self, batch: Undecoded, key: str) -> Any:
        """Return what an inbox could not decode, as the port *key* does; raise `WiringError` if no port takes it."""
        # Imported lazily: only connectors need msgspec.
        from exop.runtime.channels.frame_body import read_again

        owner = self._owner
        return batch if isinstance(owner, Channel) else read_again(batch, owner.node, key, owner.application)

    def raised(self, error: BaseException) -> None:
        """Count an error of the condition, or of reading the items for it; the first one is reported."""
        self.errors += 1
        self.problem = error_text(error)
        if self.errors == 1:
            facts = {"when": self.place.pending[0].when, "problem": self.problem}
            self._log.report("a condition raised", place=self.place.name, **facts)

    def apply_next(self) -> None:
        """Apply and record the first update, compile the entries again, and test for the next update."""
        owner, before, update, dropped = self._owner, self.place, self.place.pending[0], False
        try:
            after = applied(before, update)
            if isinstance(owner, Channel):
                owner.reconfigure(channel_settings(type(owner), after), close=update.close_windows)
            else:
                owner.configure(after)
        except RAISED as error:  # no error of a slet or a channel kind may lose the item
            dropped, after = True, without(before, update)
            event = f"a {'slet' if self.section == 'nodes' else 'channel'} refused its settings"
            self._log.report(event, place=before.name, update=str(update), problem=error_text(error))
            if isinstance(owner, Component):
                with suppress(*RAISED):
                    owner.configure(after)
        if isinstance(owner, Channel):
            owner.asked = after
        else:
            owner.node = after
        one = AppliedUpdate(self.section, before.name, update, dropped)
        self.applied.append(one)
        if self.in_mesh:
            self._log.record(one)
        self.problem, self.errors = None, 0
        self._arm()
        for trigger in self._triggers.values():
            trigger.inner = trigger.compiled()
        if isinstance(owner, Component):
            owner.announce()
