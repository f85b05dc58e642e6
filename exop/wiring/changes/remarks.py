"""Remarks on a mesh or plan: queues that would be inserted, items or state that are lost, steps that take long."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from types import CodeType, FunctionType

from exop.model.meshes.checks import check, check_durable
from exop.model.meshes.mesh import Mesh
from exop.model.slets.slet import Slet
from exop.model.slets.spec import SletSpec
from exop.runtime.channels.base import Channel
from exop.runtime.channels.queue import Buffered
from exop.runtime.component import Component
from exop.runtime.component_manager import make_channel
from exop.runtime.deployment import Deployment
from exop.runtime.lifecycle import State, opens
from exop.runtime.supervision.budget import Opened
from exop.safe_repr import shown
from exop.wiring.changes.channels import check_channels, lacking
from exop.wiring.changes.plan import Plan, Step
from exop.wiring.graph.execution_plan import plan_execution
from exop.wiring.graph.wiring_graph import WiringGraph, edge_queue

#: An opening that computes for so many seconds is worth a warning.
NOTICED = 0.1
PULLS = "its consumer pulls"


def notes(
    deployment: Deployment, kinds: Mapping[str, type[Channel]], opened: Mapping[str, Opened]
) -> Callable[[Plan], Iterator[str]]:
    """Return a function that gives the remarks on a plan before it is carried out: of the mesh that runs now."""
    components, inserted = deployment.components, deployment.inserted

    def remarks(plan: Plan) -> Iterator[str]:
        graph = made(plan.after, kinds) if plan.changes.reconnects or plan.changes.channels_changed else WiringGraph()
        for place, reason in _queues(graph).items():
            if place not in inserted:
                yield f"insert a queue at {place}: {reason}"
        yield from map("warning: {}".format, lacking(graph))
        yield from _drained(plan, deployment, kinds)
        for step in plan.steps:
            component = components.get(step.node)
            if component is not None:
                yield from _of_old(step, component)
            if step.before is not None and step.after is not None and step.before.slet != step.after.slet:
                dropped = (update for update in step.before.pending if update not in step.after.pending)
                why = f"{step.after.slet.name} has no such port, field or setting"
                yield from (f"{step.node}: the pending {update} is dropped: {why}" for update in dropped)
            if step.verb in ("add", "replace"):
                yield from _of_given(step)
                yield from _of_new(step, opened)

    return remarks


def _drained(plan: Plan, deployment: Deployment, kinds: Mapping[str, type[Channel]]) -> Iterator[str]:
    """Note the queues that are drained before their removal, and those that no port reads any more."""
    for spec in plan.changes.channels_removed:
        if kinds[spec.kind].buffered:
            yield f"drain the queue {spec.name} first, while what pushes into it waits"
    before = [*plan.changes.removed, *(old for old, _ in plan.changes.changed)]
    for name in dict.fromkeys(channel for node in before for channel in node.inputs().values()):
        readers = [node.name for node, _ in plan.before.consumers(name)]
        if name in plan.after.channels and not plan.after.consumers(name):
            if kinds[plan.after.channels[name].kind].buffered:
                yield _of_backlog(name, readers, deployment)
            yield f"no port reads {name} then: its items are dropped"


def _of_backlog(name: str, readers: list[str], deployment: Deployment) -> str:
    """Describe the treatment of the items in a queue whose last readers leave."""
    if all(deployment.components[reader].blocked for reader in readers):
        depth = deployment.channels[name].metrics().get("depth", 0)
        return f"{', '.join(readers)} can take nothing: what waits in {name} ({depth} items now) goes with it"
    return f"drain the queue {name} first, while what pushes into it waits"


def _of_old(step: Step, component: Component) -> Iterator[str]:
    kept = component.trouble.kept
    spec = component.spec
    if step.verb == "remove":
        if kept is not None and kept.port:
            yield f"{step.node} is suspended on the item {shown(kept.item, 200)}, which goes with it"
        if spec.state is not None:
            yield f"the state of {step.node} ({spec.state[1].__qualname__}) goes with it"
    if step.verb == "replace" and spec.iterated and not spec.inputs and spec.state is None:
        yield f"{step.node} keeps no position in a memento: its successor begins where it likes"
    quiet = spec.inputs and getattr(spec.factory, "quiesce", None) is Slet.quiesce
    if step.verb in ("replace", "remove") and spec.own_driver and quiet:
        yield f"{step.node} has no quiesce(): what it was given and has not put out is lost"
    if step.verb in ("replace", "remove") and spec.own_driver and component.status is State.FAILED:
        goes_on = component.tie is not None and step.verb == "replace"
        becomes = "goes to its successor" if goes_on else "is lost"
        yield f"{step.node} is broken: what it was given and has not put out {becomes}"


def _of_given(step: Step) -> Iterator[str]:
    if step.after is None or step.after.memento is None:
        return
    if step.after.slet.inputs:
        yield f"what {step.node} has done to its state since the one that is given was taken is not in it"
    else:
        yield f"{step.node} goes on at the position that is given: what lies between comes again, or is left out"


def _of_new(step: Step, opened: Mapping[str, Opened]) -> Iterator[str]:
    """Note the slets that open beside the running stream: waiting costs it nothing, computing shares its CPU."""
    spec = step.after.slet if step.after is not None else None
    if spec is None or not opens(spec):
        return
    last, imports = opened.get(spec.identity), imports_to_open(spec)
    text, takes = f"{step.node} opens beside the running stream", list[str]()
    if last is not None:
        text += f", which took {last.seconds:.2g} s the last time"
        takes += [f"{last.computing:.2g} s of that it computed"] if last.computing >= NOTICED else []
    elif getattr(spec.factory, "heavy_opening", False):
        takes.append("it says of itself that this is heavy")
    takes += [f"it imports {', '.join(imports)}"] if imports else []
    if takes:
        yield f"warning: {text}: {' and '.join(takes)}, sharing the interpreter with the streams of this platform"
    elif last is not None:
        yield f"{text} and cost the stream nothing"
    else:
        yield f"{text}: time that it waits costs the stream nothing, time that it computes or imports is shared with it"


def imports_to_open(spec: SletSpec) -> list[str]:
    """List the modules not imported yet that `__enter__`, and what it calls in its own class and module, import."""
    found: dict[str, None] = {}
    todo, seen = [getattr(spec.factory, "__enter__", None)], set[CodeType]()
    while todo:
        function = todo.pop()
        if not isinstance(function, FunctionType) or function.__code__ in seen:
            continue
        seen.add(function.__code__)
        for code in _nested(function.__code__):
            found |= dict.fromkeys(_imported(code, function.__globals__.get("__package__") or ""))
            todo += [getattr(spec.factory, name, None) for name in code.co_names]
            near = [function.__globals__.get(name) for name in code.co_names]
            todo += [one for one in near if getattr(one, "__module__", None) == function.__module__]
    return [name for name in found if name not in sys.modules]


def _nested(code: CodeType) -> Iterator[CodeType]:
    """The code of a function and of those that it defines."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _nested(constant)


def _imported(code: CodeType, package: str) -> Iterator[str]:
    """The modules that the import statements in *code* name, in full."""
    # Imported lazily: only plans that open a class need it.
    import dis
    from importlib.util import resolve_name

    steps = list(dis.get_instructions(code))
    for place, step in enumerate(steps):
        if step.opname == "IMPORT_NAME":
            level = steps[place - 2].argval
            name = "." * level + step.argval if isinstance(level, int) else step.argval
            if package or not name.startswith("."):
                yield resolve_name(name, package)


def preview(mesh: Mesh, kinds: Mapping[str, type[Channel]]) -> tuple[dict[str, str], list[str]]:
    """Check a mesh and return the queues that the wiring would insert, the reasons by place, and warnings."""
    check(mesh, kinds)
    check_durable(mesh, has_state=True)
    check_channels(mesh, kinds)
    graph = made(mesh, kinds)
    return _queues(graph), list(lacking(graph))


def made(mesh: Mesh, kinds: Mapping[str, type[Channel]]) -> WiringGraph:
    """Return the connections of a mesh that was checked; its components are made, but neither opened nor registered."""
    placed = {name: (Component(name, mesh.name, node, lambda _: None), node.ports) for name, node in mesh.nodes.items()}
    return WiringGraph().patched(placed, [make_channel(kinds, spec) for spec in mesh.channels.values()])


def _queues(graph: WiringGraph) -> dict[str, str]:
    """Return the queues that the wiring would insert: the reasons by place."""
    inserted = dict(plan_execution(graph).inserted)
    for name, edges in graph.consumers.items():
        channel = graph.channels[name]
        if channel.pull_mode == "take" and not (isinstance(channel, Buffered) and len(edges) == 1):
            for edge in edges:
                if edge.port.pulled:
                    inserted.setdefault(edge_queue(name, edge), PULLS)
    return inserted
