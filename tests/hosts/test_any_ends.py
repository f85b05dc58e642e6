"""Finite streams that wait, with their ends, before a suspended slet, move between any hosts: the end comes last.

In durable applications, hosts are killed between, which have stored no checkpoint since the last change.
"""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, nullcontext, suppress
from dataclasses import field
from pathlib import Path
from typing import Any
from unittest.mock import Mock, patch

import pytest

from exop import Application, EndOfStream, InputPort, Memento, Platform, Punctuation, Slet, input_port, slet
from exop.errors import CheckpointError, ExopError, LifecycleError, PlanError, StateError, UnknownName
from exop.hosts.fragment_change import FragmentChange
from exop.hosts.moves import handing
from exop.hosts.protocol.messages import Do, Report
from exop.model.meshes.mesh import Mesh
from exop.runtime.channels.queue import QueueChannel
from exop.runtime.component import Component
from exop.runtime.deployment import Deployment
from exop.wiring.changes import change as changing
from exop.wiring.graph import binding
from tests.change.tools import Position, suspended
from tests.hosts.moving import APP, Hosts, hosts
from tests.hosts.test_any_moves import is_possible
from tests.rig import eventually, stress_seeds

HOSTS = ("h1", "h2", "h3")
#: The number of each stream on which the slet is suspended.
STOP = 5
#: Refusals that leave everything as it was: an ended source that would feed a stream that has ended, and two kinds of
#: hosts or groups that would have to be parted.
REFUSED = ("the stream has ended at", "would come behind the end", "would be lost", "would both hand over")


@slet
def upto(position: Position, *, to: int = 100, tag: int = 0) -> Iterator[int | Punctuation]:
    """Emit 1, 2, 3, … up to *to*, each with a tag as its last digit, and a punctuation behind each."""
    while position.number < 2 * to:  # the source may move between the two
        position.number += 1
        number, behind = divmod(position.number + 1, 2)
        yield Punctuation(number) if behind else number * 10 + tag


class Taken(Memento):
    """What a slet has taken."""

    all: list[int | float] = field(default_factory=list)


class Stores(Slet, name="stores"):
    """Keeps items, and punctuations as negative numbers."""

    taken: Taken

    @input_port
    def x(self, x: int | Punctuation) -> None:
        """Take one."""
        self.taken.all.append(-x.time if isinstance(x, Punctuation) else x)


def slets(bad: list[bool], seen: list[Any], late: list[Any]) -> tuple[Any, ...]:
    """A slet that fails as long as something is bad, as one that is fed and one that pulls; and what follows it."""
    reached = [0.0]

    def checked(x: int) -> int:
        if bad and x // 10 == STOP:
            raise ValueError("not now")
        return x

    @slet
    def pushed(x: int) -> int:
        return checked(x)

    @slet
    def pulled(x: InputPort[int]) -> Iterator[int]:
        for one in x:
            yield checked(one)

    class Meets(Slet, name="meets"):
        @input_port
        def x(self, x: int | Punctuation) -> int | Punctuation:
            """Pass on what comes from the queue in front of it."""
            return x if isinstance(x, Punctuation) else checked(x)

        @input_port
        def other(self, x: int) -> None:
            """Drop it: it comes from another driver."""

    class Tells(Slet, name="tells"):
        @input_port
        def x(self, x: int | Punctuation | EndOfStream) -> None:
            """Note items and the end in the order in which they come, and which are behind a later punctuation."""
            if isinstance(x, Punctuation):
                reached.append(x.time)
                return
            late.extend([x] if isinstance(x, int) and x // 10 <= max(reached) else [])
            seen.append(x)

    return pushed, pulled, Meets, Tells


class Ends:
    """One application: one or two sources, a queue, log or direct channel, the slet that is suspended, and a sink."""

    def __init__(self, seed: int) -> None:
        self.chance = chance = random.Random(seed)
        self.bad, self.seen, self.late, self.history = [True], list[Any](), list[Any](), list[str]()
        self.sources, self.to = chance.choice((1, 1, 2)), chance.choice((7, 30, 100, 200))
        self.slets = slets(self.bad, self.seen, self.late)
        self.kills, self.stable, self.killed = random.Random(-seed), False, False
        self.stack = ExitStack()

    def channel(self, app: Application, name: str) -> Any:
        """A channel of any kind and size; the log of a durable application moves with its files."""
        chance = self.chance
        kind = chance.choice(("queue", "queue", "direct", "log"))
        settings: dict[str, Any] = {"capacity": chance.choice((4, 32, 300))} if kind == "queue" else {}
        host = None if kind == "direct" else chance.choice(HOSTS)
        connector = {"capacity": chance.choice((8, 64, 1024)), "ack": chance.choice(("received", "done"))}
        if self.stable:
            connector["ack"] = "stable"
        return app.channel(name, kind, host=host, connector=connector, **settings)

    def mesh(self, *, durable: bool) -> Mesh:
        """Everything at any host."""
        app, chance = Application(APP), self.chance
        if durable:
            app.durable(every=chance.choice((0.05, 3600)))
            self.stable = self.kills.random() < 0.8
        waits, follows = (self.channel(app, name) for name in ("waits", "follows"))
        for tag in range(self.sources):
            app.on(chance.choice(HOSTS)).add(f"source{tag}", upto, to=self.to, tag=tag, out=waits)
        pushed, pulled, meets, tells = self.slets
        place, fragile, others = chance.choice(HOSTS), chance.choice((pushed, pulled)), {}
        if self.stable and self.kills.random() < 0.5:
            fragile, others = meets, {"other": app.on(self.kills.choice(HOSTS)).add("others", upto, to=self.to)}
        app.on(place).add("fragile", fragile, x=waits, out=follows, **others)
        app.on(chance.choice(HOSTS)).add("tells", tells, x=follows)
        if durable:
            app.on(self.kills.choice(HOSTS)).add("stores", Stores, x=follows)
        return app.build()

    def moved(self, mesh: Mesh) -> Mesh:
        """The mesh with some of its nodes and channels at other hosts."""
        channels = [name for name, channel in mesh.channels.items() if channel.kind != "direct"]
        for name in self.chance.sample([*mesh.nodes, *channels], self.chance.randint(1, 3)):
            there = (mesh.nodes.get(name) or mesh.channels[name]).host or "h1"
            to = self.chance.choice([host for host in HOSTS if host != there])
            self.history.append(f"{name}: {there} to {to}")
            mesh = mesh.move(name, to=to)
        return mesh

    def run(self, there: Hosts, *, durable: bool) -> None:
        """Move what waits again and again; then let the slet go on: everything comes, and the end comes last."""
        there.home.apply(mesh := self.mesh(durable=durable))
        self.history.append(mesh.to_toml())

        def fragile() -> None:
            one = there.platforms[there.home.mesh(APP).node("fragile").host or "h1"]
            # A host may still undo its part of a change that was refused, or start again.
            deployed = one._applications.deployed
            eventually(lambda: APP in deployed and "fragile" in deployed[APP].components, "the slet is there")
            eventually(lambda: self.stored(there) and deployed[APP].components["fragile"].status == "failed")

        for _ in range(self.chance.randint(1, 5)):
            fragile()
            before = there.home.mesh(APP)
            if not is_possible(before, after := self.moved(before)):
                continue
            self.change(there, after, kill=self.kills.choice((*HOSTS, "", "")) if self.stable else "")
        fragile()
        self.bad.clear()
        there.home.resume(APP, "fragile")
        eventually(lambda: self.finished(there), "the end", PATIENCE)  # on one host, too
        if durable:
            self.check(there.home.memento(APP, "stores").all)
        if not self.killed:  # otherwise what had come is repeated
            self.check_seen()

    def stored(self, there: Hosts) -> bool:
        """Take checkpoints, without which some items would not go on to another host."""
        for one in there.platforms.values() if self.stable else ():
            with suppress(CheckpointError, LifecycleError, UnknownName):
                one.checkpoint(APP)
        return True

    def finished(self, there: Hosts) -> bool:
        """Whether the end has come."""
        return self.stored(there) and there.home.status(APP)["state"] == "finished"

    def change(self, there: Hosts, after: Mesh, kill: str) -> None:
        """Make a change, and kill a host, which has stored no checkpoint since."""
        write = Mock(side_effect=StateError("it is killed"))
        dead = patch.object(there.platforms[kill]._applications.store.checkpoints, "write", write) if kill else None
        with dead or nullcontext():
            try:
                there.home.apply(after)
            except PlanError as refused:
                if not any(words in str(refused) for words in REFUSED):
                    raise
            if kill:
                self.history.append(f"{kill} is killed")
                there.platforms[kill].close()
        if kill:
            self.killed = True
            there.back(kill, self.stack)
            running = {"running", "finished", "suspended"}
            eventually(lambda: set(states(there.home)) <= running, "all hosts run", PATIENCE)

    def check(self, taken: list[int | float]) -> None:
        """What is kept is each item of each stream, and each punctuation behind all items before it."""
        for tag in range(self.sources):
            mine = [one for one in taken if one > 0 and one % 10 == tag]
            assert mine == [number * 10 + tag for number in range(1, self.to + 1)]
        marks = [-one for one in taken if one < 0]
        # Where the output of a source comes to a connector of another one, punctuations are retracted.
        assert marks == [*range(1, self.to + 1)] or (self.sources > 1 and marks == sorted({*marks})), marks
        for at, one in enumerate(taken):
            assert one > 0 or all(two < 0 or two // 10 > -one for two in taken[at:]), f"{-one} is early"
        assert len(taken) == self.sources * self.to + len(marks)

    def check_seen(self) -> None:
        """The same of what has come; and the end comes last."""
        *items, last = self.seen
        assert isinstance(last, EndOfStream)
        for tag in range(self.sources):
            mine = [one for one in items if not isinstance(one, EndOfStream) and one % 10 == tag]
            assert mine == [number * 10 + tag for number in range(1, self.to + 1)]
        assert (len(items), self.late) == (self.sources * self.to, [])


def states(home: Platform) -> list[str]:
    """The states of all hosts."""
    with suppress(ExopError):
        status = home.status(APP)
        return [status["state"], *(one["state"] for one in status.get("hosts", {}).values())]
    return ["none"]


#: Seconds for the end; planted mistakes are noticed earlier.
PATIENCE = 60.0


def campaign(seed: int, state: Path | None = None) -> None:
    """Make and check one application."""
    ends = Ends(seed)
    try:
        with hosts(*HOSTS, slets=(upto, Stores, *ends.slets), state=state) as there, ends.stack:
            try:
                ends.run(there, durable=state is not None)
            except BaseException:
                ends.history.append(there.unfinished())
                raise
    except BaseException as problem:
        problem.add_note("\n".join([f"EXOP_STRESS=1:{seed}", *ends.history, f"{len(ends.seen)} have come"]))
        raise


@pytest.mark.parametrize("seed", [145, 290, 3015])
def test_any_ends(seed: int) -> None:
    """The suspended slet gets each item of each stream, and the end once behind all."""
    campaign(seed)


@pytest.mark.parametrize("seed", [236])
def test_any_ends_of_durable_applications(tmp_path: Path, seed: int) -> None:
    """The same with checkpoints in the cuts."""
    campaign(seed, tmp_path)


@pytest.mark.skipif("EXOP_STRESS" not in os.environ, reason="a long campaign: EXOP_STRESS=SECONDS[:SEED]")
@pytest.mark.timeout(0)
def test_any_ends_for_long(tmp_path: Path) -> None:
    """The same with as many seeds as the time allows, every second one durable."""
    for seed in stress_seeds():
        campaign(seed, tmp_path / str(seed) if seed % 2 else None)


@pytest.mark.parametrize("acks", ["received", "done"])
def test_the_end_does_not_overtake_a_full_queue(acks: str) -> None:
    """A full queue moves with its suspended consumer to the host of its ended source, and the rest of its connector."""
    ends = Ends(0)
    pushed, _, _, tells = ends.slets
    with hosts("h1", "h2", slets=(upto, *ends.slets)) as there:
        app = Application(APP)
        waits = app.channel("waits", "queue", capacity=20, host="h2", connector={"ack": acks})
        app.add("source0", upto, to=100, out=waits)
        app.add("tells", tells, x=app.on("h2").add("fragile", pushed, x=waits))
        there.home.apply(app.build())
        suspended(there.platforms["h2"], APP, "fragile")
        eventually(lambda: there.platforms["h2"].deployment(APP).channels["waits"].depth >= 20, "it is full")
        eventually(lambda: there.component("h1", "source0").status == "ended", "the source ends")
        there.move("h1", "waits", "fragile")
        ends.bad.clear()
        there.home.resume(APP, "fragile")
        eventually(lambda: there.home._hosts.homes[APP].finished, "the end", PATIENCE)
    assert ends.seen == [*range(10, 1001, 10), EndOfStream()]


def test_a_slet_leaves_with_what_waits_though_an_earlier_queue_stays() -> None:
    """The queue in front of a port stays, empty, when its source comes to its host: what waits is in another one."""
    ends = Ends(0)
    pushed, _, _, tells = ends.slets
    with hosts("h1", "h2", slets=(upto, *ends.slets)) as there:
        app = Application(APP)
        waits = app.channel("waits")
        app.add("source0", upto, to=100, out=waits)
        app.on("h2").add("source1", upto, to=100, tag=1, out=waits)
        app.add("tells", tells, x=app.add("fragile", pushed, x=waits))
        there.home.apply(app.build())
        suspended(there.platforms["h1"], APP, "fragile")
        there.move("h2", "source0")
        there.move("h1", "source0", "source1")
        queues = [name for name in there.home.deployment(APP).inserted if name.endswith(" -> fragile.x")]
        assert len(queues) > 1
        there.move("h2", "fragile")
        suspended(there.platforms["h2"], APP, "fragile")
        ends.bad.clear()
        there.home.resume(APP, "fragile")
        eventually(lambda: there.home._hosts.homes[APP].finished, "the end", PATIENCE)
    assert ends.seen[-1] == EndOfStream()
    for tag in range(2):
        assert [one for one in ends.seen[:-1] if one % 10 == tag] == [*range(10 + tag, 1002, 10)]


def test_nothing_has_ended_while_it_moves(monkeypatch: pytest.MonkeyPatch) -> None:
    """A host whose slets leave does not count as ended between its cut and the commit: the next move begins nothing."""
    ends, cut = Ends(0), FragmentChange._cut
    pushed, _, _, tells = ends.slets
    with hosts("h1", "h2", slets=(upto, *ends.slets)) as there:
        source = there.platforms["h2"]._hosts

        def cut_and_report(self: FragmentChange, do: Do, turn: ExitStack) -> Any:
            handed = cut(self, do, turn)
            if self._here.name == "h2":
                reports.append(run_alone(lambda: source.here.report(APP, source.here.known[APP])))
            return handed

        reports: list[Report] = []
        app = Application(APP)
        waits = app.channel("waits", "queue", capacity=300, host="h2")
        app.on("h2").add("source0", upto, to=100, out=waits)
        app.on("h2").add("tells", tells, x=app.on("h2").add("fragile", pushed, x=waits))
        there.home.apply(app.build())
        suspended(there.platforms["h2"], APP, "fragile")
        eventually(lambda: there.component("h2", "source0").status == "ended", "the source ends")
        monkeypatch.setattr(FragmentChange, "_cut", cut_and_report)
        there.move("h1", "waits", "fragile", "tells")
        assert [one.ended for one in reports] == [False]
        suspended(there.home, APP, "fragile")
        there.move("h2", "waits", "fragile", "tells")
        suspended(there.platforms["h2"], APP, "fragile")
        ends.bad.clear()
        there.home.resume(APP, "fragile")
        eventually(lambda: there.home._hosts.homes[APP].finished, "the end", PATIENCE)
    assert ends.seen == [*range(10, 1001, 10), EndOfStream()]


def test_what_waits_in_front_of_a_log_is_not_left_behind() -> None:
    """A log and its suspended consumer do not move to different hosts while items wait in front of the log."""
    ends = Ends(0)
    pushed, _, _, tells = ends.slets
    with hosts("h1", "h2", "h3", slets=(upto, *ends.slets)) as there:
        app = Application(APP)
        waits = app.channel("waits", "log", host="h2")
        for tag in range(2):
            app.on("h2").add(f"source{tag}", upto, to=100, tag=tag, out=waits)
        app.add("tells", tells, x=app.on("h2").add("fragile", pushed, x=waits))
        there.home.apply(app.build())
        suspended(there.platforms["h2"], APP, "fragile")
        with pytest.raises(PlanError, match="would be lost"):
            there.home.apply(there.home.mesh(APP).move("waits", to="h3").move("fragile", to="h1"))
        ends.bad.clear()
        there.home.resume(APP, "fragile")
        eventually(lambda: there.home._hosts.homes[APP].finished, "the end", PATIENCE)
    assert len(ends.seen) == 201
    assert ends.seen[-1] == EndOfStream()


def test_a_log_comes_to_two_ended_sources_while_a_third_runs_elsewhere() -> None:
    """What has merged the ends of the two is not asked whether the log, which now sends by that name, has ended."""
    ends, may_end = Ends(0), threading.Event()
    pushed, _, _, tells = ends.slets
    ends.bad.clear()

    @slet
    def waits_for_us() -> Iterator[int | None]:
        while not may_end.wait(0.001):
            yield None
        yield 12

    with hosts("h1", "h2", slets=(upto, waits_for_us, *ends.slets)) as there:
        app = Application(APP)
        waits = app.channel("waits", "log", host="h2")
        for tag in range(2):
            app.add(f"source{tag}", upto, to=100, tag=tag, out=waits)
        app.on("h2").add("third", waits_for_us, out=waits)
        app.on("h2").add("tells", tells, x=app.on("h2").add("fragile", pushed, x=waits))
        there.home.apply(app.build())
        eventually(lambda: len(ends.seen) == 200, "what the two have sent")
        for host in ("h1", "h2", "h1"):
            there.move(host, "waits")
        may_end.set()
        eventually(lambda: there.home._hosts.homes[APP].finished, "the end", PATIENCE)
    assert ends.seen[200:] == [12, EndOfStream()]


def test_a_suspended_slet_leaves_with_what_its_port_has_taken_and_its_log_goes_elsewhere() -> None:
    """The change waits for none of the items that a suspended slet has pulled: it takes no more of them."""
    ends = Ends(0)
    _, pulled, _, tells = ends.slets
    with hosts("h1", "h2", "h3", slets=(upto, *ends.slets)) as there:
        app = Application(APP)
        waits = app.channel("waits", "log")
        for tag in range(2):
            app.add(f"source{tag}", upto, to=7, tag=tag, out=waits)
        app.add("tells", tells, x=app.add("fragile", pulled, x=waits))
        there.home.apply(app.build())
        suspended(there.home, APP, "fragile")
        for tag in range(2):
            eventually(lambda name=f"source{tag}": there.component("h1", name).status == "ended", "the source ends")
        port = there.component("h1", "fragile").pulled["x"]
        eventually(lambda: port.unfinished and not there.home.deployment(APP).inserted["-> waits"].entries, "taken")
        there.home.apply(there.home.mesh(APP).move("waits", to="h2").move("fragile", to="h3").move("tells", to="h3"))
        suspended(there.platforms["h3"], APP, "fragile")
        ends.bad.clear()
        there.home.resume(APP, "fragile")
        eventually(lambda: there.home._hosts.homes[APP].finished, "the end", PATIENCE)
    for tag in range(2):
        assert [one for one in ends.seen[:-1] if one % 10 == tag] == [*range(10 + tag, 72, 10)]
    assert ends.seen[-1] == EndOfStream()
    assert len(ends.seen) == 15


def run_alone(work: Callable[[], Any]) -> Any:
    """Return what a call returns in a thread of its own, which holds no locks of its caller."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(work).result()


def invented(monkeypatch: pytest.MonkeyPatch) -> None:
    """A newly connected port gets an end, though items for its channel come from other hosts."""
    needed = binding.CatchUp.needed.__func__  # type: ignore[attr-defined]
    monkeypatch.setattr(binding.CatchUp, "needed", classmethod(lambda cls, *given: needed(cls, *given[:3])))


def left_in_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    """The end of some producers counts as that of the channel."""
    monkeypatch.setattr(changing, "with_ends", lambda deployment, graph, coming, work: [*work])


def filled_past_the_relay(monkeypatch: pytest.MonkeyPatch) -> None:
    """What comes from other hosts is put in front of what waits in a queue."""
    put_first = QueueChannel.put_first
    monkeypatch.setattr(QueueChannel, "store", lambda self, *work: put_first(self, [work]))


def hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of several queues in front of one port, the last one hides what waits in the others."""

    def queued(deployment: Deployment, component: Component) -> dict[str, Any]:
        name, pulled = component.node.name, component.pulled
        places = ((place.partition(" -> ")[2].rpartition("."), queue) for place, queue in deployment.inserted.items())
        found = {port: queue for (node, _, port), queue in places if node == name and port not in pulled}
        return {port: queue.capture()["entries"] for port, queue in found.items()}

    monkeypatch.setattr(handing, "queued", queued)


def test_a_hidden_queue_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Items of one of the streams are lost."""
    campaign(118)
    hidden(monkeypatch)
    with pytest.raises(AssertionError):
        campaign(118)


@pytest.mark.parametrize("plant", [invented, left_in_the_rest, filled_past_the_relay])
def test_planted(monkeypatch: pytest.MonkeyPatch, plant: Callable[[pytest.MonkeyPatch], None]) -> None:
    """Each mistake that a move could make is found."""
    monkeypatch.setattr("tests.hosts.test_any_ends.PATIENCE", 1.0)
    plant(monkeypatch)

    def all_checks() -> None:
        test_the_end_does_not_overtake_a_full_queue("done")
        for seed in (290, 3015, 145):
            campaign(seed)

    with pytest.raises(AssertionError):
        all_checks()
