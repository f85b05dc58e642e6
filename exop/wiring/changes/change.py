"""A change of a running application in steps, among them the cut, which chooses one of the execution plans.

    new ─ prepare ─ prepared ─ stage ─ staged ─ cut ─ held ─ commit ─ committed
      └────────────────┴─────────────────┴─────────────┴─ abort ─ aborted

Everything that can take long or fail happens before the commit. Each step records its undo; a failure undoes all steps
in reverse, and the old mesh runs on. A failure after the commit (an old slet that does not close) is logged.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial, wraps
from itertools import chain
from typing import TYPE_CHECKING, Any

from exop.errors import NotNow, PlanError
from exop.logs import logger
from exop.model.values.classes import renewed_packages
from exop.runtime.channels.base import RETRACTED, Channel
from exop.runtime.channels.queue import Buffered, Waiting
from exop.runtime.component import Component
from exop.runtime.dataflow.entry import Call, InFlight, Method, placeholder
from exop.runtime.deployment import HOLDING, Deployment
from exop.runtime.drivers.source import SourceDriver, ThreadDriver
from exop.runtime.drivers.worker import Worker
from exop.runtime.durable.failpoints import failpoint
from exop.runtime.lifecycle import Event, State
from exop.runtime.pause import Pause
from exop.runtime.supervision.budget import UserCall
from exop.runtime.supervision.interpreter import collect_young, yield_gil
from exop.runtime.supervision.interrupts import check_interrupt
from exop.safe_repr import error_text
from exop.wiring.changes.channels import Undo, restoring, settle_channels, turned, undo_all
from exop.wiring.changes.conditional_updates import caught_up, remembered, settle_updates
from exop.wiring.changes.drain import Drain, check_ends, hand_over_input, move_contents, peek_unsent, unprocessed
from exop.wiring.changes.partitions import move_keys
from exop.wiring.changes.plan import Plan, Step
from exop.wiring.changes.successors import Successors, discard, retire
from exop.wiring.controller import WiringController
from exop.wiring.graph import ids
from exop.wiring.graph.binding import with_ends
from exop.wiring.graph.region import Region
from exop.wiring.shadow.follower import Followers

if TYPE_CHECKING:
    from exop.wiring.changes.arrivals import Arrival


class Phase(StrEnum):
    """The phases of a change, in their order; the last one is that of a change that was undone."""

    NEW = "new"
    PREPARED = "prepared"
    STAGED = "staged"
    HELD = "held"
    COMMITTED = "committed"
    ABORTED = "aborted"


def _leads(start: Phase, end: Phase) -> Callable[[Callable[[Change], None]], Callable[[Change], None]]:
    """Let a method lead from one phase to another: it runs once, and everything is undone if it fails."""
    return lambda method: wraps(method)(lambda self: self._take(start, partial(method, self), end))


@dataclass(eq=False)
class Change:
    """One plan that is carried out on one deployment; used once. Any thread may call each step, also repeatedly.

    A step that fails raises `PlanError`, and everything is as it was. `target` is the mesh that runs after the commit,
    known exactly from the cut on; `error` is the reason why the change was aborted.

    A node that moves to another host is removed by the change there, and added by another change here, or vice versa.

    Attributes:
        departing: The removed nodes that go on at another host.
        arriving: The added nodes that come from another host.
        adopted: Whether another host becomes the home of the application, where some nodes begin anew.
        leaves: Whether the items that wait at an endpoint go to another host, with a node or channel.
        handed_over: The channels from other hosts whose contents are delivered in another way. All are set before the
            first step.
        continued: The ports whose stream goes on, even if they, or their channels, come from other hosts.
        coming: The channels to which items come from other hosts, or whose producers do.
        retracted: As in `Transfer`.
        before_cut: Called when the drivers are parked, before anything is changed.
        parks_all: Whether the cut parks all drivers of the application; set before the first step.
        in_checkpoint: Whether a checkpoint of the cut is made with the change: a restart begins with it.
        removed: The channels that it removes, from the cut on.
        successors: The slets and channels that it adds; `old`, by node, are the slets that it replaces or removes.
    """

    deployment: Deployment
    wiring: WiringController
    plan: Plan
    followers: Followers = field(default_factory=Followers)
    phase: Phase = Phase.NEW
    error: BaseException | None = None
    departing: Collection[str] = ()
    arriving: Collection[str] = ()
    adopted: bool = False
    leaves: Callable[[str], bool] = lambda endpoint: False
    handed_over: Collection[str] = ()
    continued: Collection[str] = ()
    coming: Collection[str] = ()
    retracted: Mapping[str, Collection[str]] = field(default_factory=dict)
    before_cut: list[Callable[[], object]] = field(default_factory=list)
    parks_all: bool = False
    in_checkpoint: bool = False
    removed: dict[str, Channel] = field(default_factory=dict)
    _landed: list[InFlight] = field(default_factory=list)
    _arrivals: dict[str, Arrival] = field(default_factory=dict)
    _turn: threading.RLock = field(default_factory=threading.RLock)
    _undo: list[Undo] = field(default_factory=list)
    _undo_cut: list[Undo] = field(default_factory=list)
    _muted: list[Component] = field(default_factory=list)
    _closing: list[tuple[Component, UserCall[None] | None]] | None = None

    def __post_init__(self) -> None:
        self.name, self.target, self.timeout = self.deployment.name, self.plan.after, self.plan.patience
        ready = {node: one.component for node, one in self.followers.ready.items()}
        self.successors = Successors(self.deployment, self.wiring.manager, self.plan, self._undo, ready)
        leaving = (step.node for step in self.plan.steps if step.verb in ("replace", "remove"))
        self.old = {node: self.deployment.components[node] for node in leaving}
        configured = [self.deployment.components[step.node] for step in self.plan.steps if step.verb == "configure"]
        # Generator functions begin anew, from their memento, to get new settings.
        anew = [one.driver for one in configured if one.spec.iterated and not one.spec.is_class]
        self._restarted = [driver for driver in anew if isinstance(driver, SourceDriver)]
        outside = [one.driver for one in self.old.values() if isinstance(one.driver, SourceDriver)]
        self.pause = Pause(self.deployment, self.timeout, drivers=(), outside=[*outside, *self._restarted])

    @property
    def made(self) -> bool:
        """Whether the new mesh runs."""
        return self.phase is Phase.COMMITTED

    @_leads(Phase.NEW, Phase.PREPARED)
    def prepare(self) -> None:
        """Make and open the successors while the old slets work; this may take minutes."""
        yield_gil()  # planning came before
        check_interrupt()
        self.successors.arriving, self.successors.departing = self.arriving, self.departing
        self.successors.create()
        self.successors.open()
        for one in self.old.values():
            if one.tie is not None and not one.tie.caught_up(self.timeout):
                raise NotNow(
                    f"{one.node.name} is ahead of its producers since the platform has recovered, and they have not "
                    f"caught up within {self.timeout:g} s; repair the slets before it that stand still, and try again"
                )
        yield_gil()

    @_leads(Phase.PREPARED, Phase.STAGED)
    def stage(self) -> None:
        """Connect the successors, and empty the queues that go; the stream waits only upstream of these."""
        for component in self.old.values():
            component.settle(self.timeout)
        self.successors.create_channels()
        self._region = region = self._connect()
        yield_gil()
        pause = self.pause.begin()
        drivers = dict.fromkeys(region.drivers(self.deployment))
        nodes, channels = self.deployment.update_log.places(pending=True)
        if nodes or channels:  # conditional updates would alter the mesh, too
            updated = self.wiring.region(self.deployment, None, nodes, channels)
            drivers |= dict.fromkeys(updated.drivers(self.deployment))
        if self.parks_all:
            drivers |= dict.fromkeys(self.deployment.drivers())
        pause.drivers = sorted(drivers, key=lambda driver: driver.rank)
        ends = (step.node for step in self.plan.steps if step.verb in ("suspend", "remove"))
        pause.cutting = frozenset(ends) - {*self.departing}
        self._undo.append(partial(setattr, self.deployment, "leaving", []))
        self.deployment.leaving = [self.deployment.channels[one.name] for one in self.plan.changes.channels_removed]
        self._drain = Drain(pause, self.old.values(), region, self._undo, self.handed_over, self.departing)
        self._drain.stage()
        for component in self.old.values():
            self.successors.inherit(pause, component)

    def arrive(self, node: str, arrival: Arrival) -> None:
        """Let an added node continue with what has come from another host; before the cut, when the old slet rests."""
        with self._turn:
            component = self.successors.made[node]
            arrival.adopt(component, f"the memento of {self.name}.{node}, which comes from another host", self.timeout)
            self._arrivals[node] = arrival

    def land(self, posted: Iterable[InFlight], taken: Iterable[tuple[Buffered, list[Waiting]]]) -> None:
        """Deliver once, after the cut, what comes from other hosts: items posted at the commit, entries in queues."""
        with self._turn:
            self._landed += posted
            for queue, entries in taken:
                self._undo_cut += [partial(queue.put_first, queue.capture()["entries"]), queue.clear]
                if queue.name in self.deployment.inserted:  # what waits there was taken from the channel before
                    queue.restore({"entries": entries})
                else:
                    queue.put_first(entries)
            for node, arrival in self._arrivals.items():
                arrival.connect(self.successors.made[node])

    @_leads(Phase.STAGED, Phase.HELD)
    def cut(self) -> None:
        """Park the drivers, hand over and bind; the drivers stay parked when this returns."""
        self._close_drivers()
        self.pause.wait_parked()
        self._cut()

    @_leads(Phase.HELD, Phase.COMMITTED)
    def commit(self) -> None:
        """Let all drivers go on in the new mesh; only a defect can fail here, unless the change was aborted before."""
        self._go_on()

    @_leads(Phase.STAGED, Phase.COMMITTED)
    def make(self) -> None:
        """Cut and commit in the driver that parks last: the shortest pause; but slets close and open without a lock."""
        self._close_drivers()
        if any(self.successors.exchanged):
            self.pause.wait_parked()
            self._cut()
            self._go_on()
        else:
            self.pause.run(self._cut, self._go_on)

    def abort(self, error: BaseException | None = None) -> None:
        """Undo everything in reverse: the old mesh runs on. Failures of the undoing are noted on *error*."""
        with self._turn:
            if self.made:
                raise PlanError(f"the change of {self.name} is committed; to go back, make another change")
            if self.phase is not Phase.ABORTED:
                self._undo_all(error or PlanError(f"the change of {self.name} was aborted"))

    def _take(self, start: Phase, action: Callable[[], None], end: Phase) -> None:
        with self._turn:
            if self.phase is Phase.ABORTED:
                raise PlanError(f"the change of {self.name} was aborted: {self.error}") from self.error
            if [*Phase].index(self.phase) >= [*Phase].index(end):
                return
            if self.phase is not start:
                raise PlanError(f"the change of {self.name} is {self.phase}; this step requires that it is {start}")
            try:
                action()
            except BaseException as error:
                if not self.made:
                    self._undo_all(error)
                raise
            finally:
                if self.made:
                    self.pause.end()
            self.phase = end

    def _undo_all(self, error: BaseException) -> None:
        self.phase, self.error = Phase.ABORTED, error
        undo_all(self._undo_cut, error)  # before anything moves again
        self.pause.end()
        undo_all(self._undo, error)
        self._unmute()

    def _close_drivers(self) -> None:
        """Close all drivers; followers process their last items, and park, too."""
        collect_young()
        self.pause.close()
        for one in self.followers.ready.values():
            one.come_to_rest(self.pause)

    def _connect(self) -> Region:
        """Set `connected-to` of the ports, and return the region of the application to bind."""
        changes, connect = self.plan.changes, self.wiring.manager.connect
        placed: dict[str, tuple[Component, Mapping[str, str]] | None] = {}
        for step in self.plan.steps:
            current = self.deployment.components.get(step.node)
            target = self.successors.made.get(step.node, current)
            if step.verb == "remove":  # like those of a predecessor, its ports are unregistered when it is closed
                placed[step.node] = None
            elif step.verb in ("replace", "add", "rewire") and step.after is not None and target is not None:
                ports = step.before.ports if step.before is not None and target is current else {}
                placed[step.node] = target, step.after.ports
                self._undo.append(partial(connect, target, {**dict.fromkeys(step.after.ports), **ports}))
                connect(target, {**dict.fromkeys(ports), **step.after.ports})
        new, gone = self.successors.channels, [spec.name for spec in changes.channels_removed]
        graph = self.wiring.current(self.deployment).graph.patched(placed, new.values(), gone)
        channels = {*gone, *new, *(channel.name for _, channel in changes.channels_changed)}
        renewed = [new for old, new in changes.changed if renewed_packages(old.slet.factory, new.slet.factory)]
        for node in (*renewed, *changes.retyped):  # no producer pushes into a channel whose contents the cut moves
            channels.update(node.inputs().values())
        channels.update(*(rebuild.channels for rebuild in self.successors.rebuilds.values()))
        return self.wiring.region(self.deployment, graph, {step.node for step in self.plan.steps}, channels)

    def _cut(self) -> None:
        """Hand over and bind while the drivers are parked; items stay where they wait."""
        region, undo, drivers = self._region, self._undo_cut, self.pause.drivers
        try:
            self._drain.check_inlets(self.leaves)
            self._drain.check_engine_ports(self.successors.made)
            for look in self.before_cut:
                look()
            self.successors.states |= {node: one.take_over(undo) for node, one in self.followers.ready.items()}
            back, there = region.undone, self.deployment.channels
            bind_back = [there[name].bound_back() for name in back.channels if name in there]
            move_contents(self.deployment, self.plan, drivers, undo)
            self._swap(back, bind_back)
            since = self.plan.before.revision
            _, mesh = caught_up(self.plan.after, since, self.deployment.update_log)  # with the updates since then
            mesh = settle_updates(self.deployment, self.followers.ready.values(), since, mesh, undo)
            settle_channels(self.deployment, mesh, self.plan.changes, undo)
            check_ends(region, self.continued, adopted=self.adopted)
            failpoint("rebind-before")
            self._complete = self.wiring.bind(self.deployment, region, self.continued, self.coming)
            failpoint("rebind-after")
            self.successors.exchange(self.old, undo)
        except BaseException as error:
            undo_all(undo, error)  # before anything moves again
            raise
        self.target = mesh.at(self.deployment.mesh.revision + bool(self.plan))  # the same, if a slet is reopened
        self.stored = self.deployment.update_log.to_store(self.target)

    def _go_on(self) -> None:
        """Commit: assign the items that wait to their drivers, and release the old slets; only a defect fails."""
        self.phase = Phase.COMMITTED
        self.deployment.mesh, self.deployment.update_log.stored = self.target, self.stored  # first: a defect may follow
        if self.plan and not self.in_checkpoint:
            self.deployment.await_checkpoint()
        with self.deployment.decided(self.pause.drivers):
            self._undo_cut.clear()
            self._undo.clear()
            self.deployment.inlets.drop(self.leaves)
            began = [one.driver for one in self.successors.made.values() if one.driver is not None]
            come = self._from_other_hosts()
            self._complete({*self.pause.drivers, *began})
            self._forward_unsent()
            # An endpoint may have become part of a stream on this host that came to it over other hosts before.
            again = self.deployment.drivers() if self.parks_all else ()
            self.deployment.inlets.post_in_order(self.wiring.current(self.deployment).depth, come, again)
            self.deployment.leaving = []

    def _from_other_hosts(self) -> list[InFlight]:
        """The items to post that have come from other hosts: those at outputs are later than those of connectors."""
        arrived = [(one, self.successors.made[node]) for node, one in self._arrivals.items()]
        taken, sent = ([one.work(component, side) for one, component in arrived] for side in ("inputs", "outputs"))
        graph = self.wiring.current(self.deployment).graph
        outboxes = (name for name, relays in self.retracted.items() if not relays)
        joined = (one for one in outboxes if not all(edge.component.has_ended for edge in graph.producers[one]))
        marks = [InFlight(placeholder(f"channel {name}"), "control", RETRACTED) for name in joined]
        return with_ends(self.deployment, graph, self.coming, chain(*taken, self._landed, marks, *sent))

    def in_flight(self) -> list[tuple[str, Method, Any]]:
        """Return the items that will wait at endpoints after the commit, as a checkpoint stores them; after the cut."""
        inlets, depth = self.deployment.inlets, self.wiring.current(self.deployment).depth
        found: dict[Any, list[tuple[str, Method, Any]]] = {}

        def add(work: Iterable[InFlight]) -> set[Any]:
            """Add items in the order of each driver; return the drivers."""
            places = [(end, one) for one in work if not isinstance(one, Call) for end in inlets.destinations(one)]
            for endpoint, one in places:
                found.setdefault(inlets.runner(endpoint), []).append((endpoint, one.method, one.payload))
            return {inlets.runner(endpoint) for endpoint, _ in places}

        made, stay = self.successors.made, {node: one for node, one in self.old.items() if node not in self.departing}
        taking = made.keys() - self.followers.ready  # followers have had all input
        left = [*chain(*(unprocessed(old, made[node]) for node, old in stay.items() if node in taking))]
        add(chain(*(work for _, first, work in left if first)))
        add(one for _, one in inlets.waiting() if not self.leaves(one.entry.endpoint))
        add(chain(*(peek_unsent(old, made.get(node)) for node, old in stay.items())))
        add(chain(*(work for _, first, work in left if not first)))
        come = add(self._from_other_hosts())
        for runner in found if self.parks_all else come:  # as `Inlets.post_in_order` inserts them
            found[runner].sort(key=lambda work: depth(work[0]), reverse=True)
        return [*chain(*found.values())]

    def _swap(self, back: Region, bind_back: list[Callable[[], None]]) -> None:
        """Put the successors in place, with their states; give the other components their new settings."""
        deployment, undo = self.deployment, self._undo_cut
        components, queues = deployment.components, deployment.inserted
        steps: dict[str, list[Step]] = {}
        for step in self.plan.steps:
            steps.setdefault(step.node, []).append(step)
        undo += [one.expect for one in self.old.values()]  # at last: successors have shared the merges
        undo += [*bind_back, partial(self.wiring.bind, deployment, back)]
        undo += [partial(one.serve, one.queues) for one in self.pause.drivers if isinstance(one, Worker)]
        # The binding discards those that were new.
        undo.append(lambda: setattr(deployment, "inserted", {**deployment.inserted, **queues}))
        undo += restoring(deployment, "channels", "workers", "merges", "lineage")
        undo += [partial(setattr, deployment, "leaving", []), partial(deployment.place, components, steps)]
        now = {name: one for name, one in components.items() if name in self.plan.after.nodes}
        for name in filter(self.plan.after.nodes.__contains__, steps):
            if (made := self.successors.made.get(name)) is not None:
                made.muted = True
                self._muted.append(made)
                now[name] = self.successors.succeed(steps[name][0], components.get(name))
                if name in self.followers.keep:
                    self.followers.kept[name] = self.followers.keep[name](components.get(name), made, undo)
            else:
                self._alter(now[name], steps[name])
        for move in self.plan.moves:
            move_keys(move, components, now, undo)
        deployment.place(now, steps)
        if (gone := self.plan.changes.channels_removed) or self.successors.channels:
            channels = deployment.channels | self.successors.channels
            self.removed, deployment.channels = {one.name: channels.pop(one.name) for one in gone}, channels
        left = {spec.name for spec in gone} - deployment.channels.keys()
        left |= turned(self.plan.before, self.plan.after, self.plan.changes)
        deployment.merges = {name: one for name, one in deployment.merges.items() if name not in left}
        for name, merge in deployment.merges.items():
            if name in self.retracted or merge.unheard:
                undo.append(partial(merge.restore, merge.capture()))
                # What comes by a connector that begins anew is behind the retraction.
                merge.unheard -= {f"{spec.name}.out" for spec in self.plan.changes.channels}
            if name in self.retracted:
                merge.retract(self.retracted[name])
        deployment.trace(self.plan.after, self.plan.changes, self.arriving)

    def _alter(self, component: Component, steps: list[Step]) -> None:
        """Give a component that stays its new settings; it retries the item that it was suspended on."""
        component.muted = True
        self._muted.append(component)
        self._undo_cut += remembered(component)
        if (after := steps[0].after) is not None:
            component.configure(after)
        for step in steps:
            if step.verb == "suspend" and component.allows(Event.SUSPEND):
                component.on(Event.SUSPEND)
            elif step.verb == "resume" or (step.verb in ("configure", "adjust") and component.status is State.FAILED):
                component.resume()

    def _unmute(self) -> None:
        """Announce the states of all muted components: one may have ended, even if nothing was changed."""
        for component in self._muted:
            component.announce()

    def _forward_unsent(self) -> None:
        """Post the unsent output of the old slets to the endpoints to which their ports are connected afterwards."""
        inlets, made = self.deployment.inlets, self.successors.made
        for channel in (spec.name for _, spec in self.plan.changes.channels_changed if spec.close_windows):
            there = placeholder(ids.channel_endpoint(channel))
            inlets.post([Call(there, "push", None, call=self.deployment.channels[channel].send_closed)])
        for restarted in self._restarted:
            restarted.restart_iteration()
        for node, component in self.old.items():
            stays, departs = self.followers.keeps(node), node in self.departing
            retire(component, made.get(node), inlets, stays=stays, departs=departs)
        for node, component in self.old.items():
            if node in made and node not in self.followers.ready:  # they have had all of it
                hand_over_input(component, made[node], inlets, self.wiring.current(self.deployment))
        for one in self.followers.ready.values():  # the punctuations that neither slet has sent
            to = one.component.to
            inlets.post(InFlight(to[port], "control", mark) for port, mark in one.unsent() if port in to)
        for component in self.old.values():
            self.deployment.let_go(component)

    def finish(self) -> None:
        """Stop the old slets and start the new ones; does nothing unless the change is committed."""
        with self._turn, self.deployment.decided():
            if not self.made or self._closing is not None:
                return
            yield_gil()
            for name in {*self.successors.channels, *(new.name for _, new in self.plan.changes.channels_changed)}:
                self.deployment.channels[name].attach()
            for component in self.old.values():
                if isinstance(component.driver, ThreadDriver) and not component.driver.join(self.timeout):
                    _report(component, f"its thread has not left within {self.timeout:g} s")
            for component in self.successors.made.values():
                component.begin()
            self.deployment.settle_workers(self.timeout)
            self._unmute()
            leaving = [one for node, one in self.old.items() if not self.followers.keeps(node)]
            self._closing = [(one, one.begin_exit()) for one in leaving]
            self.close(HOLDING, give_up=False)  # the quick ones
            for channel in self.removed.values():
                self.wiring.manager.destroy_channel(self.deployment.name, channel)
            self.deployment.check_finished()
            self.deployment.nudge()

    def close(self, seconds: float | None = None, *, give_up: bool = True) -> None:
        """Close the old slets within the time-out; other changes of the application may be made."""
        if self._closing is None:
            return
        until = time.monotonic() + (self.timeout if seconds is None else seconds)
        waiting, self._closing = self._closing, []
        for component, call in waiting:
            if not (call is None or call.wait(max(0.0, until - time.monotonic())) or give_up):
                self._closing.append((component, call))
                continue
            try:
                discard(self.deployment, self.wiring.manager, component, call)
            except Exception as error:  # noqa: BLE001 (whatever a slet does when it closes: the change is made)
                _report(component, error_text(error))


def _report(component: Component, problem: str) -> None:
    logger("exop.wiring").error("the change is made, but the old slet does not close", node=component.id, error=problem)
