"""Moves of partitions between the members of a group: planned, checked, and made in the cut with the keys' state."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any, Final

from exop.errors import PlanError
from exop.model.meshes.checks import shared_ports
from exop.model.meshes.diff import Difference
from exop.model.meshes.mesh import Mesh, Node
from exop.model.meshes.nodes import KindLike
from exop.model.meshes.partitions import keyed_fields, partition_of, ranges, ranges_text
from exop.model.slets.handover import keeps_own_state
from exop.model.slets.memento import Memento
from exop.model.types.description import type_of
from exop.model.types.evolution import changes as type_changes
from exop.model.values.classes import package_of
from exop.runtime.component import Component
from exop.safe_repr import safe_repr
from exop.wiring.changes.channels import Undo

#: Seconds to inspect one key, and to move it.
PER_KEY: Final = 0.7e-6


@dataclass(frozen=True)
class Move:
    """The partitions that the members of a group own before and after a change."""

    group: str
    partitions: int
    before: Mapping[str, range]
    after: Mapping[str, range]

    def __str__(self) -> str:
        return f"move partitions of the group {self.group}: {ranges_text(self.before)} → {ranges_text(self.after)}"


def moves(before: Mesh, after: Mesh, changes: Difference, kinds: Mapping[str, type[KindLike]]) -> tuple[Move, ...]:
    """Return the moves of a change; *kinds* have the partitions of the channels."""
    for old, new in changes.changed:
        if old.group != new.group:
            cure = f"add a slet to the group {new.group or 'NAME'!r} under another name, and remove {new.name}"
            raise PlanError(f"{new.name} cannot leave its group ({old.group or 'none'}) while it runs; {cure}")
    nodes = (*changes.added, *changes.removed, *(node for pair in changes.changed for node in pair))
    groups = dict.fromkeys(node.group for node in nodes if node.group is not None)
    return tuple(filter(None, (_move(before, after, group, kinds) for group in groups)))


def _move(before: Mesh, after: Mesh, group: str, kinds: Mapping[str, type[KindLike]]) -> Move | None:
    was, now = ({node.name: node for node in mesh.nodes.values() if node.group == group} for mesh in (before, after))
    if not was or not now:
        return None
    first = ((mesh, next(iter(members.values()))) for mesh, members in ((before, was), (after, now)))
    keys, others = (shared_ports(mesh, node, kinds) for mesh, node in first)
    numbers = ({partitions for _, partitions in found.values()} for found in (keys, others))
    other = any(others.get(port, one) != one for port, one in keys.items()) or len({*map(frozenset, numbers)}) > 1
    if (was.keys() == now.keys() and not other) or not others:  # members that share nothing are refused as such
        return None
    gone = [node for name, node in was.items() if name not in now]
    for node in (*now.values(), *gone):
        _check_state(group, node)
        if other and node.slet.state is not None:
            raise PlanError(
                f"the group {group!r} would share other partitions, and {node.name} keeps a state for the keys of "
                f"its present ones; give the slets that share the new ones a group of their own"
            )
    for source, target in product((*now.values(), *gone), now.values()):
        _check_compatible(group, source, target)
    (_, partitions), *_ = others.values()
    return Move(group, partitions, ranges(was, partitions), ranges(now, partitions))


def _check_state(group: str, node: Node) -> None:
    """Refuse a member whose state does not belong to keys."""
    rest: list[str] = []
    if (kind := node.slet.memento) is not None:
        rest = [f"{kind.__qualname__}.{name}" for name in type_of(kind).fields if name not in keyed_fields(kind)]
    elif keeps_own_state(node):
        rest = ["the state of its engine"]
    if rest:
        raise PlanError(
            f"partitions of the group {group!r} would move, and {node.name} has state that belongs to no key "
            f"({', '.join(rest)}); keep all of its state in fields `NAME: Keyed[K, V]`, or deploy the group anew"
        )


def _check_compatible(group: str, source: Node, target: Node) -> None:
    """Refuse to move the state of one member to another one that cannot take it."""
    old, new = source.slet.memento, target.slet.memento
    if old is None or old is new:
        return
    problem = f"{target.slet.name} keeps none"
    if new is not None:
        unfit = [str(one) for one in type_changes(type_of(old), type_of(new)) if not one.compatible]
        missing = [f"it has no field {name!r}" for name in type_of(old).fields if name not in type_of(new).fields]
        versions = package_of(old.__module__) != package_of(new.__module__)
        problem = next(iter([*["it is of another version of the bundle"] * versions, *missing, *unfit]), "")
    if problem:
        raise PlanError(
            f"partitions of the group {group!r} would move, and {target.name} cannot take the state "
            f"({old.__qualname__}) of {source.name}: {problem}; let all members be of one slet first"
        )


def move_keys(move: Move, before: Mapping[str, Component], after: Mapping[str, Component], undo: list[Undo]) -> None:
    """Move the state of keys to their new owners, while nothing is in flight in front of any member."""
    owners = [name for name, part in move.after.items() for _ in part]
    contents = {name: dict(_keyed(after[name].state)) for name in move.after}
    found: list[tuple[str, str, Any, Any, str]] = []
    for name, owned in move.before.items():
        component = after[name] if name in move.after else before[name]
        component.flush()  # its buffered output for these keys leaves before that of their new owners
        for field, content in _keyed(component.state):
            for key, value in content.items():
                if (owner := owners[_owned(move, name, owned, field, key)]) != name:
                    found.append((name, field, key, value, owner))
    for content in (content for fields in contents.values() for content in fields.values()):
        undo += [partial(content.update, dict(content)), content.clear]  # undone in reverse: cleared first
    for name, field, key, value, owner in found:
        if name in contents:
            del contents[name][field][key]
        contents[owner][field][key] = value


def check_pause(moved: Iterable[Move], components: Mapping[str, Component], pause: float) -> None:
    """Raise `PlanError` if moving the state of all keys would stop the stream for longer than *pause* seconds."""
    members = [(move, components[name]) for move in moved for name in move.before if name in components]
    if (keys := sum(len(content) for _, member in members for _, content in _keyed(member.state))) * PER_KEY > pause:
        raise PlanError(
            f"the change stops the stream for about {keys * PER_KEY:.2g} s: the members of the group "
            f"{members[0][0].group!r} keep {keys} keys, each of which is looked at; nothing has happened; allow it "
            f"(apply(stall=True), --allow-stall), or a longer pause (apply(pause=…), --pause)"
        )


def _keyed(state: Memento | None) -> Iterator[tuple[str, dict[Any, Any]]]:
    """Yield the fields of a memento that hold the state of keys, with their contents."""
    for field in keyed_fields(type(state)) if state is not None else ():
        if not isinstance(content := getattr(state, field), dict):
            raise PlanError(
                f"{type(state).__qualname__}.{field} is {safe_repr(content, 80)}: a `Keyed` field holds a `dict`"
            )
        yield field, content


def _owned(move: Move, name: str, owned: range, field: str, key: Any) -> int:
    """Return the partition of a key; refuse a key that its member does not own."""
    try:
        partition = partition_of(key, move.partitions)
    except TypeError as problem:
        raise PlanError(f"{name}: {field} of its memento cannot be split: {problem}") from problem
    if partition not in owned:
        raise PlanError(
            f"{name}: {field} of its memento has the key {safe_repr(key, 80)}, which is none of its partitions "
            f"({owned[0]}-{owned[-1]}, and not {partition}): the keys of a `Keyed` field are the values of the field "
            f"by which the channel of the group {move.group!r} is partitioned"
            if owned
            else f"{name}: {field} of its memento has the key {safe_repr(key, 80)}, and {name} owns no partition"
        )
    return partition
