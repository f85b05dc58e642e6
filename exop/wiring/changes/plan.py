"""A plan: the steps of a change of a running application, node by node, before anything has happened."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Final, Literal, TypeAlias

from exop.errors import PlanError
from exop.model.meshes.checks import sinks_that_refuse
from exop.model.meshes.diff import Difference, SettingChange, armed_text, channel_text, difference, setting_changes
from exop.model.meshes.mesh import Mesh, Node
from exop.model.meshes.shadow import Replaced, Shadow, as_shadow, check_keep
from exop.model.slets.handover import HandOver, field_changes, hand_over, keeps_own_state
from exop.model.slets.slet import Slet
from exop.model.slets.spec import SletSpec
from exop.pictures.notebook import as_text, picture_of
from exop.runtime.channels.base import Channel
from exop.runtime.component import Component
from exop.runtime.deployment import Deployment
from exop.runtime.lifecycle import State, imports_to_open, opens
from exop.runtime.pause import PATIENCE, check_seconds
from exop.runtime.supervision.budget import Opened
from exop.runtime.supervision.interrupts import uninterrupted
from exop.safe_repr import safe_repr
from exop.wiring.changes.channels import inserted_queues, lacking, unopened_graph
from exop.wiring.changes.partitions import Move, moves
from exop.wiring.graph.wiring_graph import WiringGraph

#: Seconds for which the hand-over of a state may stop the stream, by default.
PAUSE: Final = 0.05

#: The classes of channels, by kind.
Kinds: TypeAlias = Mapping[str, type[Channel]]
Verb = Literal[
    "add", "remove", "replace", "configure", "arm", "cancel", "suspend", "resume", "rewire", "move", "adjust"
]

#: The actions of each verb, in order.
STEPS: dict[Verb, str] = {
    "add": "open → pause → bind → release → start",
    "remove": "pause → drain → unbind → release → close",
    "replace": "open → pause → drain → memento → bind → release → close the old",
    "configure": "pause → configure → bind → release",
    "arm": "pause → bind, with a look at each item as long as settings are pending → release",
    "cancel": "pause → bind → release",
    "suspend": "pause → hold items → release",
    "resume": "pause → let items in → release",
    "rewire": "pause → bind → release",
    "move": "open there → pause → drain → hand over → bind → release → close here",
    "adjust": "pause → note the policy → release",
}
#: The actions of a trial before the change.
TRIAL = "copy the state → compare outputs, errors, times → equal: take over; else: close, the old stays"
#: The actions of verbs for slets of which only one can be open.
EXCLUSIVE: dict[Verb, str] = {
    "replace": "pause → drain → memento → bind → close the old → open → release",
    "move": "pause → drain → hand over → bind → close here → open there → release",
}


@dataclass(frozen=True)
class Step:
    """The change of one node: the verb, the node before and after, a text, and the hand-over of its state."""

    verb: Verb
    node: str
    text: str
    before: Node | None = None
    after: Node | None = None
    state: HandOver | None = None

    def __str__(self) -> str:
        carried = f"; {self.state.text}" if self.state else ""
        changed = [] if self.verb == "configure" else [f"\n    {one}" for one in (*self.settings, *self.fields)]
        return f"{self.verb} {self.node}: {self.text}{carried}{''.join(changed)}\n    {self.does}"

    @property
    def settings(self) -> tuple[SettingChange, ...]:
        """The settings that change, and why."""
        if self.before is not None and self.after is not None and self.verb in ("replace", "configure", "adjust"):
            return setting_changes(self.before, self.after)
        return ()

    @property
    def fields(self) -> tuple[str, ...]:
        """The fields of ports and of the memento that change."""
        if self.verb != "replace" or self.before is None or self.after is None:
            return ()
        return tuple(field_changes(self.before, self.after))

    @property
    def does(self) -> str:
        """The actions, in order."""
        if self.after is not None and self.after.rebuild is not None:
            return "open → replay → pause → drain → replay the last bit → bind → release → close the old"
        return EXCLUSIVE.get(self.verb, STEPS[self.verb]) if self.exclusive else STEPS[self.verb]

    @property
    def exclusive(self) -> bool:
        """Whether the old slet and the new one cannot both be open; one that keeps its own state stays open."""
        if (self.before is not None and keeps_own_state(self.before)) or (self.state is not None and self.state.inside):
            return False
        return any(node is not None and node.slet.exclusive for node in (self.before, self.after))


@dataclass(frozen=True)
class Plan:
    """A planned change of an application. Print the plan, or make the change by `apply()`.

    `remarks` computes the notes when the plan is shown, which may take longer than planning. `took` contains the
    seconds that the hand-over of a state took on a copy, by node, if the hand-over was tried.
    """

    before: Mesh
    after: Mesh
    steps: tuple[Step, ...]
    changes: Difference
    moves: tuple[Move, ...] = ()
    remarks: Callable[[Plan], tuple[str, ...]] = field(default=lambda _: (), repr=False, compare=False)
    took: dict[str, float] = field(default_factory=dict, repr=False, compare=False)
    timeout: float | None = None
    pause: float = PAUSE
    stall: bool = False
    shadow: Shadow | None = None
    keep: float | None = None
    carry_out: Callable[[Plan], Mesh] | None = field(default=None, repr=False, compare=False)

    @property
    def summary(self) -> list[str]:
        """The steps and the changes of channels, for the history."""
        channels = (channel_text(old, new) for old, new in self.changes.channels_changed)
        return [*(f"{step.verb} {step.node}" for step in self.steps), *channels]

    def __str__(self) -> str:
        if not self:
            return f"{self.after.name}: revision {self.before.revision}: nothing to do"
        head = f"{self.after.name}: revision {self.before.revision} → {self.before.revision + 1}"
        channels = [
            *(f"add the channel {channel.name} ({channel.kind})" for channel in self.changes.channels_added),
            *(f"remove the channel {channel.name}" for channel in self.changes.channels_removed),
            *(channel_text(old, new) for old, new in self.changes.channels_changed),
        ]
        lines = [*map(str, (*self.steps, *self.moves)), *channels, *self.notes]
        return "\n".join([head, *(f"  {line}" for line in lines)])

    def __repr__(self) -> str:
        steps = ", ".join(f"{step.verb} {step.node}" for step in self.steps)
        none = "no node changes" if self else "nothing to do"
        return f"<Plan {self.after.name} rev {self.before.revision}: {steps or none}>"

    def _repr_html_(self) -> str:
        return picture_of(self.after, {step.node for step in self.steps}) + as_text(str(self))

    def __bool__(self) -> bool:
        """Whether there is anything to do."""
        return bool(self.changes) or self.before.durable != self.after.durable

    @cached_property
    def notes(self) -> tuple[str, ...]:
        """Remarks beyond the steps: queues that are inserted, items or state that are lost, steps that take long."""
        return *self.remarks(self), *self._followers()

    def _followers(self) -> Iterator[str]:
        """Describe the trials before the change, and the predecessors that it keeps."""
        shadow = self.shadow
        for step in self.succeeded:
            if shadow is not None:
                yield f"shadow {step.node}: beside the old one, on the same items, for {shadow}"
                yield f"    {TRIAL}"
                for name, value in shadow.diverted(step.node).items():
                    yield f"    with {name}={value!r} meanwhile; then a new one takes over, with the state as above"
            if self.keep is not None:
                node = f"{self.after.name}.{step.node}"
                yield f"keep the predecessor of {step.node} as a standby for {self.keep:g} s (exop rollback {node})"

    def exchanged(self, departing: Collection[str] = (), arriving: Collection[str] = ()) -> tuple[set[str], set[str]]:
        """Return the nodes whose old slets close in the cut, and those whose new slets open then, in the cut, too."""
        own = [step for step in self.steps if step.verb in ("add", "remove", "replace") and step.exclusive]
        gone, come = ({step.node for step in own if step.verb != verb} for verb in ("add", "remove"))
        return (gone if come else gone & {*departing}), (come if gone else come & {*arriving})

    def noting(self, notes: Sequence[str]) -> Plan:
        """Return the plan with further notes before the existing notes."""
        return replace(self, remarks=lambda plan: (*notes, *self.remarks(plan)))

    @property
    def replacements(self) -> list[Step]:
        """The steps that replace the slet of a node."""
        return [step for step in self.steps if step.verb == "replace"]

    @property
    def succeeded(self) -> list[Step]:
        """One step for each node whose slet is replaced, or moves to another host."""
        return [*{step.node: step for step in self.steps if step.verb in ("move", "replace")}.values()]

    @property
    def patience(self) -> float:
        """The seconds to wait for drivers and for user code."""
        return PATIENCE if self.timeout is None else self.timeout

    @property
    def opens(self) -> bool:
        """Whether the change calls code of slets that are created, opened or resumed, which may take long."""
        fresh = [step.after for step in self.steps if step.verb in ("add", "replace") and step.after is not None]
        made = (hasattr(node.slet.factory, "__post_init__") or node.rebuild is not None for node in fresh)
        return any(made) or any(opens(node.slet) for node in fresh)

    def proven(self, shadow: Shadow | None = None, keep: float | None = None) -> Plan:
        """Return the same plan with a trial before the change, and with old slets that run as standbys after it.

        Raise `PlanError` if a new slet cannot run beside the mesh.
        """
        replaced: Replaced = [(one.before, one.after) for one in self.succeeded if one.before and one.after]
        if shadow is not None:
            as_shadow(shadow).check(self.after, replaced)
        if keep is not None:
            check_keep(self.after, replaced, keep)
            if self.moves:
                group = self.moves[0].group
                raise PlanError(f"partitions of the group {group!r} move: keep a predecessor in a change of its own")
        return replace(self, shadow=shadow, keep=keep)

    def bounded(self, timeout: float | None = None, pause: float | None = None, *, stall: bool = False) -> Plan:
        """Return the same plan with other time limits, which are those of `apply`."""
        check_seconds("apply", timeout)
        check_seconds("apply", pause, setting="pause")
        timeout, pause = (self.timeout if timeout is None else timeout), (self.pause if pause is None else pause)
        return replace(self, timeout=timeout, pause=pause, stall=self.stall or stall)

    @uninterrupted
    def apply(
        self,
        *,
        shadow: Shadow | None = None,
        keep: float | None = None,
        timeout: float | None = None,
        pause: float | None = None,
        stall: bool = False,
    ) -> Mesh:
        """Make the change, and return the new mesh.

        Args:
            shadow: The conditions of a trial, in which the new slets run beside the old slets and take over only if the
                results are equal.
            keep: The seconds for which the old slets run as standbys; `platform.rollback` switches a node back to its
                old slet.
            timeout: The seconds within which the drivers must reach their safe points, 10 by default; otherwise the
                change is undone. The same time applies to each slet for opening, for handing over its state and for
                closing.
            pause: The seconds for which the hand-over of a state may stop the stream, 0.05 by default. The hand-over is
                first tried on a copy while the stream runs. If it takes longer, the new slet catches up beside the old
                slet; if catching up is impossible, the change is refused, and the error gives the time.
            stall: Whether the hand-over of a state may stop the stream for any time if the new slet cannot catch up.

        Raises:
            SettingError: *timeout* or *pause* is not a number of seconds; the application is not changed.
            StaleMesh: the application was changed after the plan was made.
            ShadowFailed: the trial of a new slet failed; the old slets continue.
            PlanError: the change failed and was undone.
        """
        if self.carry_out is None:
            raise PlanError("this plan belongs to no platform; make it with platform.plan(mesh)")
        shadow, keep = self.shadow if shadow is None else shadow, self.keep if keep is None else keep
        return self.carry_out(self.bounded(timeout, pause, stall=stall).proven(shadow, keep))


def make_plan(before: Mesh, after: Mesh, kinds: Kinds | None = None) -> Plan:
    """Compare two meshes of one application and return the plan that leads from one to the other.

    The channel *kinds* have the numbers of partitions, of which the plan has the moves, and tell what a pull is.
    """
    changes = difference(before, after)
    if others := ", ".join(old.name for old, new in changes.channels_changed if old.kind != new.kind):
        raise PlanError(f"{others} cannot change their kind while they run; add a new channel and rewire to it")
    if (before.durable is None) != (after.durable is None):  # an engine is tied to checkpoints when it is opened
        running = [name for name, node in before.nodes.items() if node.slet.tie and after.nodes.get(name) == node]
        if running:
            raise PlanError(
                f"{', '.join(running)} drives itself, and cannot become durable, or stop being so, while it runs; "
                f"remove the application and deploy it anew"
            )
    steps = [
        *(Step("add", node.name, node.slet.identity, after=node) for node in changes.added),
        *(Step("remove", node.name, node.slet.identity, before=node) for node in changes.removed),
    ]
    for old, new in changes.changed:
        if old.host != new.host:
            steps.append(Step("move", new.name, f"{old.host or 'home'} → {new.host or 'home'}", old, new))
        steps += _steps(old, new)
        _check_fed(before, old, new, kinds or {})
    return Plan(before, after, tuple(steps), changes, () if kinds is None else moves(before, after, changes, kinds))


def _steps(old: Node, new: Node) -> list[Step]:
    """Return the steps of one changed node: a replacement does everything at once."""
    if old.slet != new.slet or new.lose_state or new.memento is not None or new.rebuild is not None:
        _check_stop(old, new)
        same = f"{new.slet.identity} with {'an empty' if new.lose_state and new.memento is None else 'another'} state"
        text = same if old.slet == new.slet else f"{old.slet.identity} → {new.slet.identity}"
        if old.suspended != new.suspended:
            text += ", suspended" if new.suspended else ", resumed"
        if [one for one in old.pending if one in new.pending] != [*new.pending]:
            text += f", {armed_text(old, new)}"
        return [Step("replace", new.name, text, old, new, hand_over(old, new))]
    steps, ports = [], _other_ports(old, new)
    reopens = getattr(new.slet.factory, "reopens", False)
    if ports or dict(old.settings) != dict(new.settings) or (reopens and old.policy != new.policy):
        if ports or reopens:  # an engine that has failed begins again
            return [Step("replace", new.name, f"by itself{ports}", old, new, hand_over(old, new))]
        if (spec := new.slet).iterated and not spec.is_class and not spec.inputs and spec.state is None:
            why = "keeps no position in a memento, so it would begin anew with its new settings"
            raise PlanError(f"{new.name}: {spec.name} {why}; give it a memento, or replace it")
        steps.append(Step("configure", new.name, ", ".join(map(str, setting_changes(old, new))), old, new))
    if old.pending != new.pending:
        if reopens and new.pending:
            raise PlanError(
                f"{new.name}: {new.slet.name} cannot take settings in place, so not at a point in the stream; "
                f"configure it without when= (--when), which opens another one beside it"
            )
        verb: Verb = "cancel" if {*map(str, new.pending)} < {*map(str, old.pending)} else "arm"
        steps.append(Step(verb, new.name, armed_text(old, new), old, new))
    if dict(old.ports) != dict(new.ports):
        pairs = [(port, old.ports.get(port), new.ports.get(port)) for port in {**new.ports, **old.ports}]
        moved = [f"{port}: {was} → {place or 'nothing'}" for port, was, place in pairs if was != place]
        steps.append(Step("rewire", new.name, ", ".join(moved), old, new))
    if old.suspended != new.suspended:
        steps.append(Step("suspend" if new.suspended else "resume", new.name, new.slet.identity, old, new))
    if steps or replace(old, host=new.host) == new:
        return steps
    return [Step("adjust", new.name, _adjusted(old, new), old, new)]


def _adjusted(old: Node, new: Node) -> str:
    """Describe what else differs: the settings that count as set, the types of the inputs, or the policy."""
    if old.given != new.given:
        return "what is set"
    if other := [port for port in {**old.taken, **new.taken} if old.taken.get(port) != new.taken.get(port)]:
        return ", ".join(f"{port} takes {new.taken.get(port, 'anything')}" for port in other)
    return f"on_error={new.policy}, timeout={new.patience or 'none'}, dead_letters={new.letters}"


def _other_ports(old: Node, new: Node) -> str:
    """Describe the ports that come, go, or get another type with the settings or inputs of the slet."""
    if not new.slet.specialises and not new.slet.families:
        return ""
    before, after = ({name: (one.direction, one.type.form) for name, one in of.slet.ports.items()} for of in (old, new))
    come = ", ".join(name for name in after if name not in before)
    gone = ", ".join(name for name in before if name not in after)
    other = ", ".join(name for name in after if name in before and before[name] != after[name])
    parts = (come and f"with the port {come}", gone and f"without {gone}", other and f"in another form: {other}")
    return "".join(f", {part}" for part in parts if part)


def _check_fed(before: Mesh, old: Node, new: Node, kinds: Kinds) -> None:
    """Refuse to read the content of a channel instead of receiving each of its items, or vice versa."""
    for name in {*old.inputs().values()} & {*new.inputs().values()}:
        was, now = (
            {node.slet.ports[port].pulled for port, to in node.inputs().items() if to == name} for node in (old, new)
        )
        if (kind := before.channels[name].kind) in kinds and kinds[kind].pull_mode == "read" and was.isdisjoint(now):
            ways = ["receives each item", "reads the content at times of its own"]
            gets = [ways[found == {True}] for found in (was, now)]
            cure = "an input that pulls it" if True in was else "an input to which items are pushed"
            raise PlanError(
                f"{new.name} cannot go on with its input {name!r} ({kind}): {old.slet.name} {gets[0]}, and "
                f"{new.slet.name} {gets[1]}, so items would be lost or come twice; take a slet with {cure}, or remove "
                f"{new.name} and add the slet under another name"
            )


def _check_stop(old: Node, new: Node) -> None:
    """Refuse a source that drives itself and cannot stop: it is not known where its successor would begin."""
    spec = old.slet
    stops = getattr(spec.factory, "quiesce", None) is not Slet.quiesce
    if spec.own_driver and not spec.inputs and spec.state is not None and not (stops or new.lose_state):
        raise PlanError(
            f"{old.name}: {spec.name} pushes from threads of its own and has no quiesce(), so where its successor "
            f"would begin is not known; define quiesce(), or replace it with lose_state=True (--lose-state)"
        )


def remarks_on(deployment: Deployment, kinds: Kinds, opened: Mapping[str, Opened]) -> Callable[[Plan], Iterator[str]]:
    """Return a function that describes losses, queues and slow steps of a plan; *opened* is by identity of slets."""
    components, inserted = deployment.components, deployment.inserted

    def remarks(plan: Plan) -> Iterator[str]:
        connects = plan.changes.reconnects or plan.changes.channels_changed
        graph = unopened_graph(plan.after, kinds) if connects else WiringGraph()
        for queue, reason in inserted_queues(graph).items():
            if queue not in inserted:
                yield f"insert a queue at {queue}: {reason}"
        yield from map("warning: {}".format, lacking(graph))
        yield from sinks_that_refuse(plan.after, plan.before)
        yield from _drained(plan, deployment, kinds)
        late = plan.exchanged()[1]
        for step in plan.steps:
            if step.node in components:
                yield from _of_predecessor(step, components[step.node])
                yield from lost_state(plan, step)
            if step.after is not None and step.verb in ("add", "replace"):
                yield from _of_successor(step, step.after, opened.get(step.after.slet.identity), late=step.node in late)

    return remarks


def _drained(plan: Plan, deployment: Deployment, kinds: Kinds) -> Iterator[str]:
    """Describe the queues that are drained before their removal, and those that no port reads any more."""
    for spec in plan.changes.channels_removed:
        if kinds[spec.kind].buffered:
            yield f"drain the queue {spec.name} first, while its producers wait"
    before = [*plan.changes.removed, *(old for old, _ in plan.changes.changed)]
    for name in dict.fromkeys(channel for node in before for channel in node.inputs().values()):
        if name not in plan.after.channels or plan.after.consumers(name):
            continue
        readers = [node.name for node, _ in plan.before.consumers(name)]
        if kinds[plan.after.channels[name].kind].buffered:
            if all(deployment.components[reader].blocked for reader in readers):
                depth = deployment.channels[name].metrics().get("depth", 0)
                yield f"{', '.join(readers)} cannot take items: those that wait in {name} ({depth} now) are lost"
            else:
                yield f"drain the queue {name} first, while its producers wait"
        yield f"no port reads {name} then: its items are dropped"


def lost_state(plan: Plan, step: Step) -> Iterator[str]:
    """Describe the state of a node that is removed, unless the others of its group get it."""
    kept = step.before.slet.memento if step.before is not None and step.verb == "remove" else None
    if kept is not None and not any(step.node in move.before for move in plan.moves):
        yield f"the state of {step.node} ({kept.__qualname__}) is lost"


def _of_predecessor(step: Step, component: Component) -> Iterator[str]:
    """Describe what a change takes from a component that is removed or replaced."""
    spec, kept = component.spec, component.trouble.kept
    if step.verb == "remove" and kept is not None and kept.port:
        yield f"{step.node} is suspended on the item {safe_repr(kept.item, 200)}, which is lost"
    if step.verb == "replace" and spec.iterated and not spec.inputs and spec.state is None:
        yield f"{step.node} keeps no position in a memento: its successor decides where to begin"
    if step.verb in ("replace", "remove") and spec.own_driver:
        if spec.inputs and getattr(spec.factory, "quiesce", None) is Slet.quiesce:
            yield f"{step.node} has no quiesce(): input that it has not processed is lost"
        if component.status is State.FAILED:
            becomes = "goes to its successor" if component.tie is not None and step.verb == "replace" else "is lost"
            yield f"{step.node} has failed: input that it has not processed {becomes}"


def _of_successor(step: Step, node: Node, last: Opened | None, *, late: bool) -> Iterator[str]:
    """Describe what a component that is added, or replaces another one, does not take over, and its opening."""
    if step.before is not None and step.before.slet != node.slet:
        dropped = (update for update in step.before.pending if update not in node.pending)
        why = f"{node.slet.name} has no such port, field or setting"
        yield from (f"{node.name}: the pending {update} is dropped: {why}" for update in dropped)
        for slet in (step.before.slet, node.slet):
            if (differences := getattr(slet.factory, "differences", None)) is not None:
                yield from differences(step.before, node)
    if node.memento is not None and node.slet.inputs:
        yield f"the given memento of {node.name} lacks all changes of its state since it was taken"
    elif node.memento is not None:
        yield f"{node.name} goes on at the given position: the items in between come again, or are left out"
    if node.memento is not None and step.before is not None:
        yield f"no history keeps the replaced state of {node.name}: `exop memento export` does, if it is given before"
    if late:
        took = "" if last is None else f" ({last.seconds:.2g} s the last time)"
        yield f"{node.name} opens when the old slet is closed, as only one can be open: the stream pauses for it{took}"
    elif opens(node.slet):
        yield _of_opening(node.name, node.slet, last)


def _of_opening(node: str, spec: SletSpec, last: Opened | None) -> str:
    """Describe a slet that opens beside the running stream: waiting costs it nothing, computing shares its CPU."""
    imports, takes = imports_to_open(spec), list[str]()
    text = f"{node} opens beside the running stream"
    if last is not None:
        text += f", which took {last.seconds:.2g} s the last time"
        takes += [f"{last.computing:.2g} s of that it computed"] if last.computing >= 0.1 else []
    elif getattr(spec.factory, "heavy_opening", False):
        takes.append("it declares a heavy opening")
    takes += [f"it imports {', '.join(imports)}"] if imports else []
    if takes:
        return f"warning: {text}: {' and '.join(takes)}, sharing the interpreter with the streams of this platform"
    if last is not None:
        return f"{text} and cost the stream nothing"
    return f"{text}: time that it waits costs the stream nothing, time that it computes or imports is shared with it"
