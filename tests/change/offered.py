"""Random meshes whose slets stand in a plugin, so that the applications are durable and can be crashed."""

import dataclasses
import random
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

from exop import Memento, Slet, hookimpl, input_port, slet
from exop.model.slets.slet import spec_of
from exop.model.slets.spec import SletSpec
from tests.change.test_any_change import PULLED, Changes, Even, Odd, Unopened, reckoners, refusing
from tests.mesh import stations
from tests.mesh.owned import OWNED, owned
from tests.mesh.random_mesh import MIDDLES, SOURCES, RandomMesh
from tests.mesh.stations import Count, Notes

#: What has a thread of its own ties itself to checkpoints by an SPI, which has tests of its own.
NO_ENGINES: dict[str, Any] = {
    "sources": tuple(kind for kind in SOURCES if kind != "engine_source"),
    "middles": tuple(kind for kind in MIDDLES if kind != "engine"),
}
#: How many items a source has: most run for some changes.
LIMITS = (0, 30, 300, 300, 1000)
#: So many sinks may be added to one mesh by changes; the next ones are not.
WATCHERS = 12


def offered(kind: Any, name: str, **more: Any) -> SletSpec:
    """The slet under another name, by which a platform finds it again."""
    return dataclasses.replace(spec_of(kind), name=name, **more)


@dataclass
class Marks:
    """How much the stations and watchers of a mesh had noted when a checkpoint was taken."""

    given: dict[str, int] = field(default_factory=dict)
    taken: dict[str, int] = field(default_factory=dict)
    marks: dict[str, int] = field(default_factory=dict)
    seen: dict[tuple[str, str], int] = field(default_factory=dict)
    lots: dict[str, int] = field(default_factory=dict)
    steps: dict[str, int] = field(default_factory=dict)


class Held(Memento):
    """The items that a sink holds for the next checkpoint, and those of the last one until they are written."""

    number: int = 0
    rows: list[tuple[str, int]] = field(default_factory=list)
    sealed: list[tuple[str, int]] = field(default_factory=list)


@dataclass
class Written:
    """What such a sink has written: the items of each checkpoint, the last of which has this number."""

    lots: dict[int, list[tuple[str, int]]] = field(default_factory=dict)
    number: int = 0


def holding(seen: dict[str, list[int]], written: Written) -> Any:
    """A sink that writes the items of a checkpoint when that is committed, like the one of the how-to."""

    class Holding(Slet):
        held: Held

        @input_port
        def item(self, item: Any) -> None:
            seen[item["from"]].append(item["seq"])
            self.held.rows.append((item["from"], item["seq"]))

        def prepare_checkpoint(self, number: int) -> None:
            if number != self.held.number:
                self.put_out()
            self.held.sealed, self.held.rows, self.held.number = self.held.sealed + self.held.rows, [], number
            written.number = number

        def commit_checkpoint(self, number: int) -> None:
            self.put_out()

        def put_out(self) -> None:
            if self.held.sealed:
                written.lots[self.held.number] = self.held.sealed
                self.held.sealed = []

    return Holding


class OfferedMesh(RandomMesh):
    """A random mesh, two of each of its slets in a plugin."""

    def __init__(self, name: str, chance: random.Random) -> None:
        self.slets: dict[str, SletSpec] = {}
        self.seen: dict[str, dict[str, list[int]]] = {}
        self.written: dict[str, Written] = {}
        super().__init__(
            name, chance, limits=LIMITS, durable=3600.0, shared_windows=True, **NO_ENGINES
        )  # a checkpoint is taken when one is asked for
        for node in self.stations:
            self._offer_twins(node)
        for number in range(WATCHERS):
            self._offer_watcher(f"{name}-watcher{number}", holds=number % 4 != 3)
        self.passer = self._offer(_passer(), f"{name}-passer")
        for number, one in enumerate(reckoners()):
            self._offer(one, f"{name}-reckoner-{number}")

    def _station(self, kind: str, **more: Any) -> tuple[str, Any]:
        node, made = super()._station(kind, **more)
        return node, self._offer(made, f"{self.app.name}-{node}")

    def _offer(self, made: Any, name: str, **more: Any) -> SletSpec:
        found = self.slets[name] = offered(made, name, **more)
        return found

    def _offer_twins(self, node: str) -> None:
        if (kind := PULLED.get(self.kinds[node])) is not None:
            self._offer(getattr(stations, kind)(self.stations[node]), f"{self.app.name}-{node}-pulling")
        state, twins = spec_of(self.twin(node)).state, {str(number): self.twin for number in range(2)}
        if self.kinds[node] in OWNED:
            twins["owned"] = lambda node: owned(self.stations[node], self.kinds[node])
        for kind, twin in twins.items():
            name = f"{self.app.name}-{node}-{kind}"
            self._offer(twin(node), name)
            if state is not None:
                self._offer(twin(node), f"{name}-even", state=(state[0], Even))
                self._offer(twin(node), f"{name}-odd", state=(state[0], Odd))

    def _offer_watcher(self, name: str, *, holds: bool) -> None:
        seen: dict[str, list[int]] = defaultdict(list)

        @slet
        def watcher(item: Any) -> None:
            seen[item["from"]].append(item["seq"])

        self.seen[name] = seen
        if holds:
            self.written[name] = Written()
        self._offer(holding(seen, self.written[name]) if holds else watcher, name)

    @hookimpl
    def register_slets(self) -> list[SletSpec]:
        """All of them."""
        return [*self.slets.values()]

    def note_marks(self) -> Marks:
        """How much has been noted; nothing is in flight."""
        notes = self.notes
        return Marks(
            dict(notes.given),
            {place: len(found) for place, found in notes.taken.items()},
            {place: len(found) for place, found in notes.marks.items()},
            {(name, port): len(got) for name, seen in self.seen.items() for port, got in seen.items()},
            {name: one.number for name, one in self.written.items()},
            dict(notes.steps),
        )

    def forget_since(self, marks: Marks) -> None:
        """The machine has crashed: what came after the checkpoint has never been."""
        notes: Notes = self.notes
        notes.given.clear()
        notes.given.update(marks.given)
        notes.steps = dict(marks.steps)
        notes.inside.clear()
        for place, found in notes.taken.items():
            del found[marks.taken.get(place, 0) :]
        for place, found in notes.marks.items():
            del found[marks.marks.get(place, 0) :]
        for name, seen in self.seen.items():
            for port, got in seen.items():
                del got[marks.seen.get((name, port), 0) :]
        for name, one in self.written.items():
            one.lots = {number: lot for number, lot in one.lots.items() if number <= marks.lots.get(name, 0)}


class OfferedChanges(Changes):
    """Edits such a mesh with what its plugin offers."""

    made: OfferedMesh

    def successor(self, mesh: Any, node: str) -> Any:
        """A twin with the same state, or one of another class."""
        now = mesh.nodes[node].slet.state
        name = f"{self.name}-{node}-{self.chance.randrange(2)}"
        if now is not None and (now[1] is not Count or self.chance.random() < 0.5):
            name += "-odd" if now[1] is Even else "-even"
            self.trace[-1] += " with an upgrade"
        return self.made.slets[name]

    def owning(self, node: str, state: Any) -> SletSpec:
        """One that owns something, with a state of the class that the node has now."""
        after = {Even: "-even", Odd: "-odd"}.get(state[1], "") if state is not None else ""
        return self.made.slets[f"{self.name}-{node}-owned{after}"]

    def passing(self) -> SletSpec:
        """What passes everything on."""
        return self.made.passer

    def reckoning(self, number: int) -> SletSpec:
        """One of the slets of the plugin that keep their items."""
        return self.made.slets[f"{self.name}-reckoner-{number:d}"]

    def pulling(self, node: str, pulls: bool) -> SletSpec:
        """A twin that pulls its items, or gets them pushed."""
        return self.made.slets[f"{self.name}-{node}-{'pulling' if pulls else self.chance.randrange(2)}"]

    def watching(self, name: str) -> SletSpec | None:
        """A sink of the plugin, each of which is used once."""
        unused = [one for one in self.made.seen if one not in self.used]
        if not unused:
            return None
        self.used.add(unused[0])
        self.watched[name] = self.made.seen[unused[0]]
        return self.made.slets[unused[0]]

    def exchange(self, mesh: Any, node: str) -> Any:
        """Replace a sink that was added by another one, which begins without its state."""
        present = [name for name in self.watched if name in mesh.nodes and name not in self.reckoned.values()]
        if not present:
            return self.watch(mesh, node)
        name = self.chance.choice(present)
        if (other := self.watching(f"{name} by {self.number}")) is None:
            return mesh
        self.trace[-1] += f" {name}"
        return mesh.replace(name, other, lose_state=True)

    def unwritten(self, mesh: Any = None) -> list[str]:
        """The sinks that hold output for checkpoints, are no longer in the mesh, and have not written what they got."""
        found = []
        for name, one in self.made.written.items():
            if mesh is None or not any(node.slet.name == name for node in mesh.nodes.values()):
                rows: dict[str, list[int]] = defaultdict(list)
                for number in sorted(one.lots):
                    for port, seq in one.lots[number]:
                        rows[port].append(seq)
                if rows != {port: got for port, got in self.made.seen[name].items() if got}:
                    found.append(f"{name} has written {dict(rows)} of {dict(self.made.seen[name])}")
        return found

    def recovered(self, mesh: Any) -> None:
        """The mesh is what it was at the last checkpoint."""
        self.inserted = [name for name in mesh.nodes if name.startswith("passer")]


def _passer() -> Any:
    """A function of its own for each mesh: a platform knows a slet by its function, too."""

    @slet
    def passer(item: Any) -> Any:
        return item

    return passer


def refused_slets() -> Any:
    """A plugin with the slets that no plan with them succeeds."""

    class Refused:
        @hookimpl
        def register_slets(self) -> list[Any]:
            """Those that cannot be opened, or take over no state."""
            return [refusing, Unopened]

    return Refused()
