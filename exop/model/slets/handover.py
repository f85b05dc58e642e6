"""The hand-over of state from a predecessor to its successor; planned before anything changes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from exop.errors import ExopError, MementoError, NotStorable, PlanError
from exop.model.meshes.mesh import Node
from exop.model.slets.memento import Memento, upgraded
from exop.model.slets.slet import Slet, spec_of
from exop.model.types.description import type_of
from exop.model.types.evolution import changes
from exop.model.values.classes import Mover, NoVersion, name_of, renewed_packages, same_class


@dataclass(frozen=True)
class HandOver:
    """The way of handing over a state: a text for the plan, and a function from the old memento to the new one.

    The function is called while the stream is stopped; it does not modify the old memento.

    Attributes:
        inside: The successor itself takes over state that is inside its predecessor.
        calls: The user's code that the function calls, which may take long.
    """

    text: str
    take: Callable[[Memento | None], Memento | None]
    inside: bool = False
    calls: str | None = None


def hand_over(before: Node, after: Node) -> HandOver:
    """Plan how *after* takes over the state of *before*.

    A state given in the mesh is used as it is. With `lose_state` the successor starts with an empty state, also if it
    could take over the old one, which the text then says. Otherwise, in this order: by reference if both have the same
    class; through `upgrade` (a class method of the new class that takes the old memento), on a copy; field by field if
    the new class has the name and all fields of the old one, and their types accept the old values. Between versions of
    a bundle, an unchanged class is handed over field by field even if it has an `upgrade`, which is for another class.
    Values of classes of bundles that *after* uses in another version, its own or imported ones, are converted to that.

    Raises:
        MementoError: the successor cannot take over the state, and `lose_state` is not set.
    """
    given = after.memento is not None or after.rebuild is not None
    way = _lost(before, after) if after.lose_state and not given else _way(before, after)
    packages, new = renewed_packages(before.slet.factory, after.slet.factory), after.slet.memento
    if not packages or new is None or (after.rebuild is not None and after.memento is None):
        return way
    fields = [one for kind in {new, before.slet.memento or new} for one in type_of(kind).fields.values()]
    if not any(mover.concerns(one.type) for mover in map(Mover, packages) for one in fields):
        return way

    def moved(memento: Memento | None) -> Memento | None:
        """Convert values of the old versions in the state that was taken to the new versions."""
        taken = way.take(memento)
        try:
            for package in packages:
                taken = Mover(package).move(taken) if isinstance(taken, new) else taken
            return taken
        except (NoVersion, RecursionError) as problem:
            raise _refused(before.name, type(memento), new, str(problem)) from problem

    return HandOver(way.text, moved, calls=way.calls or new.__name__)


def _lost(before: Node, after: Node) -> HandOver:
    old, new = before.slet.memento, after.slet.memento
    if old is None and not keeps_own_state(before):
        return _way(before, after)
    what = f"the state ({old.__name__})" if old else f"the state inside {before.slet.name}"
    try:
        possible = f", though it could be handed over: {_way(before, after).text}"
    except MementoError:
        possible = ""
    return HandOver(f"{what} is lost, as requested{possible}", lambda _: new() if new else None)


def _way(before: Node, after: Node) -> HandOver:
    old, new = before.slet.memento, after.slet.memento
    if after.memento is not None:
        given = after.memento.copied()
        return HandOver(f"the state ({type(given).__name__}) as it is given", lambda _: given)
    if after.rebuild is not None:
        return HandOver("the state rebuilt from the log that its input comes from", lambda _: None)
    if old is None and keeps_own_state(before):
        return _inside(before, after, new)
    if old is None:
        return HandOver("no state", lambda _: new() if new else None)
    if new is None:
        facts = {"node": before.name, "old": old.__name__, "new": after.slet.name, "cure": ""}
        raise MementoError(**facts, problem="it keeps no state")
    if problem := getattr(after.slet.factory, "restores", Slet.restores)(before, after):
        facts = {"node": before.name, "old": before.slet.name, "new": after.slet.name, "problem": problem}
        raise MementoError(**facts, cure="rebuild it from a log upstream (`exop replace --rebuild log`), or ")
    if new is old:
        return HandOver(f"the state ({old.__name__}) by reference", lambda memento: memento)
    upgrade = getattr(new, "upgrade", None)
    alike = same_class(old, new) and type_of(old).shape == type_of(new).shape
    if callable(upgrade) and not (alike and old.__memento_version__ == new.__memento_version__):
        name = f"{new.__name__}.upgrade"
        refuse = partial(_refused, before.name, old, new)
        # A copy: the old slet goes on with the old memento if the change fails.
        take = lambda memento: upgraded(new, None if memento is None else memento.copied(), refuse)  # noqa: E731
        return HandOver(f"the state through {name}", take, calls=name)
    if new.__qualname__ == old.__qualname__ and type_of(old).fields.keys() <= type_of(new).fields.keys():
        names = tuple(type_of(old).fields)
        for change in changes(type_of(old), type_of(new)):
            if not change.compatible:
                version = f"class {new.__name__}(Memento, version={old.__memento_version__ + 1})"
                raise _refused(before.name, old, new, f"{change}, so it is another version ({version})")
        return HandOver(
            f"the state ({old.__name__}) field by field",
            lambda memento: new(**{name: getattr(memento, name) for name in names}),
            calls=new.__name__ if hasattr(new, "__post_init__") else None,
        )
    same = new.__qualname__ == old.__qualname__
    gone = [f"{one}, and " for one in changes(type_of(old), type_of(new)) if same and one.after is None]
    raise _refused(before.name, old, new, f"{''.join(gone)}{new.__name__} has no upgrade({old.__name__})")


def _refused(node: str, old: type, new: type, problem: str) -> MementoError:
    the_new = "the new " * (new.__name__ == old.__name__)
    return MementoError(node=node, old=old.__name__, new=f"{the_new}{new.__name__}", problem=problem)


def field_changes(before: Node, after: Node) -> Iterator[str]:
    """List the changes in the fields of the ports and the memento if another slet replaces that of a node."""
    old, new = before.slet, after.slet
    for name, port in old.ports.items() if old != new else ():
        if name in new.ports and port.type.form == new.ports[name].type.form:
            for change in changes(port.type.items, new.ports[name].type.items):
                yield f"port {name}: {change}"
    if old.memento is not None and new.memento is not None:
        for change in changes(type_of(old.memento), type_of(new.memento)):
            yield f"memento {new.memento.__qualname__}: {change}"


def keeps_own_state(node: Node) -> bool:
    """Whether the slet keeps state outside of a memento, perhaps only with some settings."""
    found = getattr(node.slet.factory, "keeps_own_state", False)
    return bool(found(node.settings) if callable(found) else found)


def _inside(before: Node, after: Node, new: type[Memento] | None) -> HandOver:
    """The state inside an engine is taken over by an engine that supports it."""
    if problem := getattr(after.slet.factory, "inherits", Slet.inherits)(before, after):
        raise MementoError(node=before.name, old=before.slet.name, new=after.slet.name, problem=problem, cure="")
    text = f"the state inside {before.slet.name} is taken over by {after.slet.name}"
    return HandOver(text, lambda _: new() if new else None, inside=True)


def tried(way: HandOver, before: Node, after: Node, predecessor: Any) -> HandOver:
    """Let the slet of *after* try on a copy to take over the state inside *predecessor*; `MementoError` if it cannot.

    *predecessor* is the open slet of *before*, which runs; only it may know that it holds such a state.
    """
    given = after.memento is not None or after.rebuild is not None
    unknown = not (keeps_own_state(before) or given) and isinstance(predecessor, Slet) and predecessor.holds_own_state()
    if unknown and after.lose_state:
        return replace(way, text=f"the state inside {before.slet.name} is lost, as requested")
    if unknown:
        way = _inside(before, after, after.slet.memento)
    if not way.inside:
        return way
    try:
        found = getattr(after.slet.factory, "try_inherit", Slet.try_inherit)(predecessor, after)
    except ExopError as problem:
        old = spec_of(type(predecessor)).name
        raise MementoError(node=after.name, old=old, new=after.slet.name, problem=str(problem), cure="") from problem
    return replace(way, text=f"{way.text} ({found})") if found else way


def check_movable(before: Node, after: Node) -> None:
    """Raise `PlanError` if a node cannot continue on another host: a part of its state would stay behind.

    Raise `MementoError` if the slet there cannot take over the state.
    """
    spec = before.slet
    hand_over(before, after)
    name = before.name if before.name == spec.name else f"{before.name} ({spec.name})"
    to = f"{name} cannot move to {after.host or 'the home'}"
    try:
        if spec.memento is not None:
            name_of(spec.memento)
    except NotStorable as refusal:
        raise PlanError(f"{to}: {refusal}") from refusal
    if after.lose_state or after.memento is not None:
        if hasattr(spec.factory, "commit_checkpoint"):
            raise PlanError(f"{to} without the output that it holds; move it with its state, and replace it then")
        return
    problem = ""
    if (keeps_own_state(before) or spec.tie is not None) and not getattr(spec.factory, "packs", False):
        problem = "its engine keeps state that the platform cannot read"
    elif spec.state is None and (spec.iterated or spec.own_driver) and not spec.inputs:
        problem = "it keeps no position in a memento, so it would begin anew there"
    elif spec.own_driver and getattr(spec.factory, "quiesce", None) is Slet.quiesce:
        problem = "it pushes from threads of its own and has no quiesce(), so its position is not known"
    if problem:
        cure = f"give it a memento{' and quiesce()' if spec.own_driver else ''}, or move it with lose_state=True "
        raise PlanError(f"{to}: {problem}; {cure}(`exop move APP.{before.name} HOST --lose-state`)")
