"""Shadows: under which conditions a successor runs beside the old slet and takes over, and which slets can run so."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from exop.errors import PlanError, counted, entry
from exop.model.meshes.mesh import Mesh, Node
from exop.model.slets.spec import Role, is_number
from exop.model.types.assignable import value_mismatch
from exop.model.types.description import type_of

#: The nodes that get another slet, each before and after the change.
Replaced: TypeAlias = Sequence[tuple[Node, Node]]
#: Seconds to wait for the items of a shadow, by default.
WITHIN = 60.0
#: Differences of the time per call below this number of seconds are noise of the clock and of other threads.
NOISE = 50e-6
#: The longest time for which a timer can wait, in seconds.
LONGEST: Final = min(1e9, threading.TIMEOUT_MAX)


@dataclass(frozen=True)
class Shadow:
    """The conditions of a trial, in which the new slet runs beside the old one: `plan.apply(shadow=Shadow(…))`.

    Args:
        items: The number of items for which both slets must give equal results.
        seconds: The time for which both slets must give equal results; with `items`, the time within which the items
            must arrive (60 s by default).
        compare: A function that returns whether an output of the new slet (its second argument) is acceptable in place
            of that of the old slet (its first argument). The arguments are single items; rows of record batches are
            dictionaries. By default the items must be equal.
        slower: The maximum ratio between the times of the new and the old slet per item, in the median.
        divert: Settings of the new slet during the trial, which divert its effects outside of the mesh: `{"path":
            "trial.csv"}`, or `{"node.path": …}` if several slets are replaced.
        copy: Whether to copy mutable items for the new slet. `False` declares that no slet alters items that it has
            received or emitted.
        allow_no_output: Whether to accept the new slet if no output could be compared. A sink needs none.

    Raises:
        PlanError: neither `items` nor `seconds` is given, or a number is out of range.
    """

    items: int | None = None
    seconds: float | None = None
    compare: Callable[[Any, Any], bool] | None = None
    slower: float = 2.0
    divert: Mapping[str, Any] = field(default_factory=dict)
    copy: bool = True
    allow_no_output: bool = False

    def __post_init__(self) -> None:
        if self.items is None and self.seconds is None:
            raise PlanError("a shadow needs an end: say Shadow(items=1000), or Shadow(seconds=30)")
        for name, declared in type_of(Shadow).fields.items():
            if problem := value_mismatch(getattr(self, name), declared.type, name):
                raise PlanError(f"a shadow is not possible: {problem}")
        if (self.items is not None and self.items < 1) or not 0 < self.limit < float("inf") or not self.slower > 0:
            given = f"items={self.items}, seconds={self.seconds}, slower={self.slower}"
            raise PlanError(f"a shadow with {given} is not possible; give numbers above 0")

    @property
    def limit(self) -> float:
        """The maximum duration in seconds."""
        return WITHIN if self.seconds is None else self.seconds

    @classmethod
    def parse(cls, text: str, **more: Any) -> Shadow:
        """Read a shadow as written on the command line: `30s`, `1000items`, `1000items,30s`.

        Raises:
            PlanError: *text* has another form.
        """
        found: dict[str, Any] = {}
        for part in text.replace(" ", "").split(","):
            match = re.fullmatch(r"(\d+(?:\.\d+)?)(s|items?)", part)
            if match is None or (match[2] != "s" and "." in match[1]):
                raise PlanError(f"{text!r} is no shadow; write 30s, 1000items, or 1000items,30s")
            found["seconds" if match[2] == "s" else "items"] = float(match[1]) if match[2] == "s" else int(match[1])
        return cls(**found, **more)

    def __str__(self) -> str:
        return f"{self.limit:g} s" if self.items is None else f"{counted(self.items, 'item')}, within {self.limit:g} s"

    def diverted(self, node: str) -> dict[str, Any]:
        """Return the settings of the new slet of a node that are diverted during the trial."""
        prefix = f"{node}."
        own = {name.removeprefix(prefix): value for name, value in self.divert.items() if name.startswith(prefix)}
        return {name: value for name, value in self.divert.items() if "." not in name} | own

    def check(self, mesh: Mesh, replaced: Replaced) -> None:
        """Refuse a trial without any comparison, or with duplicate external effects; *mesh* is the new mesh."""
        if not replaced:
            problem = f"the plan for {mesh.name} replaces no slet and moves none: there is nothing to compare"
            raise PlanError(f"{problem}; leave the shadow out")
        known = {node.name: node for node, _ in replaced}
        for name in (name for name in self.divert if "." in name):
            entry("divert: the replaced nodes", "node", known, name.partition(".")[0])
        for old, new in replaced:
            _check_shares_items(mesh, (old, new), "its successor cannot run as its shadow; replace it without a shadow")
            if new.rebuild is not None:
                raise PlanError(
                    f"{new.name}: a state that is rebuilt from a log cannot be compared with one that is not; rebuild "
                    f"it without a shadow, and keep the predecessor instead (keep=SECONDS, --keep)"
                )
            if diverted := self.diverted(new.name):
                _check_diverted(old, new, diverted)
            else:
                mark = "" if new.slet.exclusive else ", or mark it effects=False if it has none"
                _check_effects(
                    new,
                    f", which would happen twice while both run; divert the effects of the successor "
                    f"(Shadow(divert={{'path': …}}), --divert path=…){mark}, or replace it without a shadow",
                )


def as_shadow(value: object) -> Shadow:
    """Return *value* if it is a shadow; raise `PlanError` otherwise."""
    if isinstance(value, Shadow):
        return value
    cure = f"Shadow.parse({value!r})" if isinstance(value, str) else "Shadow(items=1000), or Shadow(seconds=30)"
    raise PlanError(f"shadow={value!r} is no shadow; say shadow={cure}")


def check_keep(mesh: Mesh, replaced: Replaced, seconds: float) -> None:
    """Raise `PlanError` if a predecessor cannot run on as a standby of its successor; *mesh* is the one to come."""
    if not (is_number(seconds) and 0 < seconds <= LONGEST):
        raise PlanError(
            f"a predecessor cannot be kept for {seconds!r}; give a number of seconds above 0, at most {LONGEST:g}"
        )
    if not replaced:
        raise PlanError(f"the plan for {mesh.name} replaces no slet and moves none: there is no predecessor to keep")
    for old, new in replaced:
        cure = "its predecessor cannot run on as a standby; to go back later, replace it back"
        _check_shares_items(mesh, (old, new), cure)
        one = new if new.slet.exclusive else old  # to which the old one has to give way
        _check_effects(one, ", and would go on doing so as a standby; to go back later, replace it back")


def check_catching_up(mesh: Mesh, old: Node, new: Node) -> None:
    """Raise `PlanError` if a successor cannot run beside its predecessor until it has caught up with it."""
    cure = "its successor cannot catch up beside it"
    _check_shares_items(mesh, (old, new), cure)
    for node in (old, new):
        if node.slet.own_driver:
            raise PlanError(f"{node.name}: {node.slet.name} drives itself; {cure}")
    _check_effects(new, f"; {cure}")


def _check_diverted(old: Node, new: Node, diverted: Mapping[str, Any]) -> None:
    """Refuse to divert a setting to the value that it has already."""
    spec = new.slet
    for name in diverted:
        entry(f"divert: {spec.name}", "setting", spec.settings, name)
    given = spec.configured(new.name, {**new.settings, **diverted})
    same = [name for name in diverted if name in new.settings and given[name] == new.settings[name]]
    if same or all(name in old.settings and given[name] == old.settings[name] for name in diverted):
        values = ", ".join(f"{name}={given[name]!r}" for name in same or diverted)
        cure = "give another value, or leave it out"
        raise PlanError(f"{new.name}: divert={{{values}}} diverts nothing, since that is the value already; {cure}")


def _check_shares_items(mesh: Mesh, pair: tuple[Node, Node], cure: str) -> None:
    """Refuse slets that cannot work on the same items."""
    for node in pair:
        spec, pulled = node.slet, ", ".join(port.name for port in node.slet.inputs if port.pulled)
        if mesh.durable is not None and spec.tie is not None:
            raise PlanError(f"{node.name}: {spec.name} is tied to the checkpoints of its application; {cure}")
        if spec.role is Role.ALPHA:
            raise PlanError(f"{node.name}: {spec.name} is a source, which gets no items that two could share; {cure}")
        if pulled:
            raise PlanError(
                f"{node.name}: {spec.name} pulls ({pulled}): two of it would share out the items of a queue, and read "
                f"a table or a window at different moments; {cure}"
            )


def _check_effects(node: Node, cure: str) -> None:
    if node.slet.has_effects:
        why = " (it is a sink)" if node.slet.effects is None else ""
        why = " (it is exclusive: only one can be open)" if node.slet.exclusive else why
        raise PlanError(f"{node.name}: {node.slet.name} acts on something outside of the mesh{why}{cure}")
