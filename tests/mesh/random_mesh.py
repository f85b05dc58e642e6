"""Any mesh: sources, slets of all shapes, channels of all kinds, fan-in, fan-out, diamonds, cycles, sinks."""

import random
from typing import Any

from exop import Application
from exop.app import ChannelRef
from exop.model.meshes.mesh import Mesh
from exop.runtime.deployment import Deployment
from tests.mesh import stations
from tests.mesh.stations import Notes, Station

SOURCES = ("source", "mixed_source", "batch_source", "column_source", "engine_source")
MIDDLES = ("one", "optional", "many", "batches", "lots", "columns", "two", "engine", "puller")
SINKS = ("sink", "seeing", "pulling_sink")
KINDS = ("direct", "queue", "latch", "table", "log")
#: Half of the stations of these kinds take punctuations.
TIMED = ("many", "sink", "pulling_sink")


class RandomMesh:
    """A mesh that is made by the choices of a random generator, with the stations that stand in it."""

    def __init__(
        self,
        name: str,
        chance: random.Random,
        *,
        sources: tuple[str, ...] = SOURCES,
        middles: tuple[str, ...] = MIDDLES,
        limits: tuple[int, ...] = (0, 7, 30, 30, 300),
        durable: float | None = None,
        shared_windows: bool = False,
        waits: bool = False,
    ) -> None:
        self.app = Application(name)
        if durable is not None:
            self.app.durable(every=durable)
        self._sources, self._middles, self._limits = sources, middles, limits
        self._shared_windows = shared_windows
        self.notes = Notes()
        self.stations: dict[str, Station] = {}
        self.kinds: dict[str, str] = {}
        self.rewired: set[str] = set()  # the nodes that changes have connected to other channels
        self._chance = chance
        self._seed = chance.randrange(1 << 16)
        self._free: list[ChannelRef] = []
        self._used: list[ChannelRef] = []
        self._windows: set[str] = set()
        for _ in range(chance.randint(1, 3)):
            self._add_source()
        for _ in range(chance.randint(0, 5)):
            self._add_middle()
        if waits:
            self._add_diamond()
        if waits and "engine" in middles and chance.random() < 0.5:
            self._add_cycle(chance.choice(("engine", "late_engine")))
        elif chance.random() < 0.35:
            self._add_cycle()
        for channel in list(self._free):
            self._add_sink(channel)
        if self._used and chance.random() < 0.5:
            self._add_sink(chance.choice(self._used))
        self.mesh: Mesh = self.app.build()

    def twin(self, node: str) -> Any:
        """Another slet that does the same at the same station."""
        return getattr(stations, self.kinds[node])(self.stations[node])

    def _station(self, kind: str, **more: Any) -> tuple[str, Any]:
        chance = self._chance
        name = f"{kind}{len(self.stations)}"
        policy = chance.choice(("suspend", "suspend", "retry", "dead-letter", "skip"))
        rate = chance.choice((0, 0, 5, 20)) if not kind.startswith(("engine", "late", "pick", "pull")) else 0
        if kind.endswith("source"):
            policy = chance.choice(("suspend", "retry"))
        fails = 1 if policy in ("skip", "dead-letter") else chance.randint(1, 2)
        station = Station(name, self.notes, self._seed, policy, rate, fails, chance.randint(1, 3), **more)
        self.stations[name], self.kinds[name] = station, kind
        return name, getattr(stations, kind)(station)

    def _channel(self) -> ChannelRef | None:
        """A channel for an output: one of its own, a new one of some kind, or one that others push into too."""
        chance = self._chance
        choice = chance.random()
        if choice < 0.45:
            return None
        if choice < 0.65 and self._free:
            return chance.choice(self._free)
        kind = chance.choice(KINDS)
        settings: dict[str, Any] = {}
        if kind == "queue":
            settings["capacity"] = chance.choice((1, 2, 3, 100))
        if kind == "table":
            settings["key"] = ["from", "seq"]
        if kind == "latch":
            settings["key"] = "from"
        made = self.app.channel(f"{kind}-{len(self.app._mesh.channels)}", kind=kind, **settings)
        self._free.append(made)
        return made

    def _take(self) -> ChannelRef:
        """A channel to connect an input to: one without a reader, or one that has readers."""
        chance = self._chance
        if self._used and (not self._free or chance.random() < 0.3):
            return chance.choice(self._used)
        found = chance.choice(self._free)
        self._free.remove(found)
        self._used.append(found)
        return found

    def _ready(self) -> list[ChannelRef]:
        fed = {channel for node in self.app._mesh.nodes.values() for channel in node.outputs().values()}
        return [channel for channel in (*self._free, *self._used) if channel.name in fed]

    def _add(self, kind: str, ports: dict[str, Any], out: ChannelRef | None, **more: Any) -> str:
        name, slet = self._station(kind, **more)
        given = ports if out is None else {**ports, "out": out}
        self.app.add(name, slet, on_error=self.stations[name].policy, **given)
        for port in self.app._mesh.nodes[name].slet.outputs:
            found = self.app.output(name, port.name)
            if all(found.name != known.name for known in (*self._free, *self._used)):
                self._free.append(found)
        return name

    def _add_source(self) -> None:
        self._add(self._chance.choice(self._sources), {}, self._channel(), limit=self._chance.choice(self._limits))

    def _add_middle(self) -> None:
        if self._shared_windows and self._chance.random() < 0.3:
            self._add_shared_window()
            return
        kind = self._chance.choice(self._middles)
        if kind == "one" and self._chance.random() < 0.3:
            self._add_window()
            return
        names = ("left", "right") if kind == "two" else ("item",)
        ports = {port: self._take() for port in names}
        self._add(self._pushed(kind, ports), ports, self._channel())

    def _pushed(self, kind: str, ports: dict[str, ChannelRef]) -> str:
        """A slet that is pushed to instead of one that pulls, where a pull would read what the channel keeps."""
        keeps = any(self.app._mesh.channels[one.name].kind in ("latch", "table") for one in ports.values())
        return {"puller": "one", "pulling_sink": "sink"}.get(kind, kind) if keeps else kind

    def _add_window(self) -> None:
        """A window from which its slet evicts; its producer is a slet of its own, without other readers."""
        window = self.app.channel(f"window-{len(self.app._mesh.channels)}", kind="window", evict=True)
        ports = {"item": self._take()}
        self._used.append(window)  # so that it is not offered to others
        self._add("one", ports, window)
        self._used.remove(window)
        self._add("evicting", {"item": window}, self._channel())
        if self._shared_windows:
            self._add("evicting", {"item": window}, self._channel())

    def _add_shared_window(self) -> None:
        """A window of one item for each of two or three slets."""
        window = self.app.channel(f"window-{len(self.app._mesh.channels)}", kind="window", count=1)
        ports = {"item": self._take()}
        self._used.append(window)
        self._add("one", ports, window)
        self._used.remove(window)
        for _ in range(self._chance.randint(2, 3)):
            self._add("newest", {"item": window}, self._channel())

    def _add_diamond(self) -> None:
        """A slet that pulls from two small queues, which one driver fills, perhaps by way of other slets."""
        name = self._add("fork", {"item": self._take()}, self._queue())
        ports = {}
        for side, port in (("left", "out"), ("right", "more")):
            channel = self.app.output(name, port)
            self._free = [free for free in self._free if free.name != channel.name]
            if self._chance.random() < 0.5:
                kinds = ("one", "optional", "many", *(("engine", "late_engine") if "engine" in self._middles else ()))
                between = self._chance.choice(kinds)
                channel = self.app.output(self._add(between, {"item": channel}, self._queue()))
                self._free = [free for free in self._free if free.name != channel.name]
            ports[side] = channel
        self._add("picker", ports, self._channel())

    def _queue(self) -> ChannelRef:
        capacity = self._chance.choice((1, 2, 3, 100))
        return self.app.channel(f"narrow-{len(self.app._mesh.channels)}", kind="queue", capacity=capacity)

    def _add_cycle(self, engine: str = "") -> None:
        """A slet whose result goes back to it until it has gone round often enough, perhaps through an engine."""
        capacity = self._chance.choice((1, 2, 100))
        back = self.app.channel(f"back-{len(self.app._mesh.channels)}", kind="queue", capacity=capacity)
        name = self._add("two", {"left": self._take(), "right": back}, None)
        forth = self.app.output(name)
        if engine or self._chance.random() < 0.5:
            self._free.remove(forth)
            self._used.append(forth)
            other = self._add(engine or "one", {"item": forth}, self._cycle_channel())
            forth = self.app.output(other)
        if any(forth.name == free.name for free in self._free):
            self._free = [free for free in self._free if free.name != forth.name]
            self._used.append(forth)
        self._add("looper", {"item": forth}, back)

    def _cycle_channel(self) -> ChannelRef | None:
        if self._chance.random() < 0.5:
            return None
        return self.app.channel(f"in-cycle-{len(self.app._mesh.channels)}", kind="queue", capacity=1)

    def _add_sink(self, channel: ChannelRef) -> None:
        if channel in self._free:
            self._free.remove(channel)
            self._used.append(channel)
        ports = {"item": channel}
        self._add(self._pushed(self._chance.choice(SINKS), ports), ports, None)


def wrong_figures(made: RandomMesh, deployment: Deployment) -> list[str]:
    """The ports whose count is not what the stations have taken and given for good; nothing is in flight."""
    found = []
    for name in made.stations:
        counts = {f"{name}.{port}": items for (_, port), items in deployment.components[name].metrics.counts().items()}
        for place, items in counts.items():
            noted = made.notes.given[place] if place in made.notes.given else len(made.notes.taken[place])
            if items != noted:
                found.append(f"{place} has counted {items} items instead of {noted}")
    return found


def verdict(made: RandomMesh) -> list[str]:
    """The errors in the items that the stations have seen, once everything has ended."""
    notes, found = made.notes, list(made.notes.wrong)
    for channel in made.mesh.channels:
        for producer, out in made.mesh.producers(channel):
            port = f"{producer.name}.{out}"
            for consumer, into in made.mesh.consumers(channel):
                place = f"{consumer.name}.{into}"
                got = [number for who, number in notes.taken[place] if who == port]
                if got != list(range(notes.given[port])):
                    found.append(f"{port} -> {place}: {notes.given[port]} were sent, {got} have come")
    for name, kind in made.kinds.items():
        if kind == "seeing":
            found += _wrong_marks(made, name)
        if kind in ("seeing", *TIMED):
            found += _lost_marks(made, name)
    return found


def _lost_marks(made: RandomMesh, name: str) -> list[str]:
    """Punctuations that were dropped where a slet has raised at them: it, or the platform, sends each of them on."""
    producers = [node.name for node, _ in made.mesh.producers(made.mesh.nodes[name].ports["item"])]
    if len(producers) != 1 or made.kinds[producers[0]] != "many" or not made.stations[producers[0]].sees_time:
        return []
    sent, got = (
        [mark.time for mark, _ in made.notes.marks[f"{node}.item"] if isinstance(mark, stations.Punctuation)]
        for node in (producers[0], name)
    )
    seen = made.kinds[name] == "seeing" or made.stations[name].sees_time
    if name in made.rewired:  # those that waited when another stream began are dropped
        sent = [time for time in sent if time in got]
    return [f"{name} has seen the punctuations {got} instead of {sent}"] if seen and sent != got else []


def _wrong_marks(made: RandomMesh, name: str) -> list[str]:
    """Punctuations that came before what they say is complete; an end that came never, or not last."""
    place, found = f"{name}.item", []
    taken, marks = made.notes.taken[place], made.notes.marks[place]
    ends = [at for at, (mark, _) in enumerate(marks) if isinstance(mark, stations.EndOfStream)]
    if ends != [len(marks) - 1]:
        found.append(f"{place} has seen the end of the stream at {ends} of {len(marks)} control items")
    channel = made.mesh.nodes[name].ports["item"]
    sources = {
        f"{node.name}.out": made.notes.given[f"{node.name}.out"]
        for node, _ in made.mesh.producers(channel)
        if made.kinds[node.name] in ("mixed_source", "column_source", "engine_source")
    }
    last = -1.0
    for mark, when in marks:
        if isinstance(mark, stations.EndOfStream):
            continue
        if mark.time <= last:
            found.append(f"{place} has seen {mark} after a punctuation of {last}")
        last = mark.time
        for port, sent in sources.items():
            before = {number for who, number in taken[:when] if who == port}
            if not before.issuperset(range(min(int(mark.time) + 1, sent))):
                found.append(f"{place} has seen {mark} before all that {port} sent until then")
    return found
