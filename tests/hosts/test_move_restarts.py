"""Platforms that die in the middle of a move, and return: the node goes on once, with its exact state."""

from __future__ import annotations

import os
import random
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from exop import Application, Platform, Shadow
from exop.errors import ExopError, NotNow, PlanError, StateError, UnknownName
from exop.hosts.fragment_change import RestoredChange
from exop.hosts.protocol.messages import Report, Restart
from exop.model.meshes.mesh import Mesh
from exop.runtime.durable import snapshot
from exop.wiring.changes.executor import Changes
from tests.hosts.hosts_rig import GATES, SEEN, Death, Network, PlanTime, at_rest, collect, goes_on, hosts, keeps, opened
from tests.hosts.test_any_moves import is_possible
from tests.hosts.test_federation_restarts import Hosts
from tests.rig import PATIENCE, eventually, stress_seeds


class Killed:
    """Lets a platform die at a record; from then on its state directory gets nothing more."""

    def __init__(self, there: Hosts, name: str, record: str, *, after: bool) -> None:
        self.one = there.all[name]
        self.death = Death(self.one, there.network, record, after=after)
        checkpoints = self.one._applications.store.checkpoints
        write = checkpoints.write

        def written(snapshot: Any) -> int:
            if self.death.dead.is_set():
                raise StateError(f"{name} is dead")
            return write(snapshot)

        checkpoints.write = written


def dies_in(there: Hosts, name: str, mesh: Mesh, record: str = "Settled", *, after: bool = True) -> None:
    """Let a platform die in a change, before or after a record of its; by default when it knows the commit."""
    killed = Killed(there, name, record, after=after)
    with ThreadPoolExecutor(1) as pool:
        change = pool.submit(there.all["a"].apply, mesh, timeout=PATIENCE)
        assert killed.death.dead.wait(PATIENCE)
        there.wait_no_longer()
        change.exception(PATIENCE)
    there.all[name].close()


def returned(home: Platform, before: Mesh) -> None:
    """Move all that a change has moved back to where it was, as soon as the hosts permit it.

    What would come behind the end of its channel, or needs two changes, is refused, and stays where it is.
    """
    refusal = [""]

    def back() -> bool:
        try:
            after = mesh = home.mesh("app")
            now = {**mesh.nodes, **mesh.channels}
            for name, place in {**before.nodes, **before.channels}.items():
                if now[name].host != place.host:
                    after = after.move(name, to=place.host or home.name)
            if is_possible(mesh, after):
                home.apply(after)
        except (NotNow, UnknownName) as refused:  # a host has not returned yet
            refusal[:] = [str(refused)]
            assert "without its fragment" not in refusal[0]
            return "would come behind the end" in refusal[0]
        except PlanError as refused:
            assert "has finished" in str(refused) or "would both hand over" in str(refused)  # noqa: PT017
        return True

    try:
        eventually(back, "the way back")
    except AssertionError as late:
        late.add_note(f"last refused: {refusal[0]}")
        raise


def run_again(there: Hosts, name: str, outcome: str | None) -> None:
    """Start the platform again; the checked numbers follow each other on exactly one host."""
    there.back(name)
    home = there.all["a"]

    def settled() -> bool:
        found = home.status("app")
        hosts = found.get("hosts", {})  # none while the fragment of the home is opened
        return found["state"] == "running" and {one["state"] for one in hosts.values()} == {"running"}

    eventually(settled, "running")
    at_rest(*there.all.values())
    place = home.mesh("app").node("check").host
    assert outcome in (None, place)
    deployed = [one for one in there.all.values() if "app" in one._applications.deployed]
    assert [one.name for one in deployed if "check" in one.deployment("app").components] == [place]
    goes_on(there.all[place])
    for other, node in (("c", "check-c"), ("a", "check-a")):
        goes_on(there.all[other], node)


@pytest.fixture
def three(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Three platforms on which an application runs."""
    with ExitStack() as stack:
        yield Hosts(tmp_path, stack, PlanTime(monkeypatch))


@pytest.mark.parametrize(
    ("name", "record", "after", "outcome"),
    [
        ("b", "Prepared", False, "b"),
        ("b", "Prepared", True, "b"),
        ("b", "Settled", False, "c"),
        ("b", "Settled", True, "c"),
        ("c", "Prepared", False, "b"),
        ("c", "Prepared", True, "b"),
        ("c", "Settled", False, "c"),
        ("c", "Settled", True, "c"),
        ("a", "Committed", False, "b"),
        ("a", "Committed", True, "c"),
    ],
)
def test_a_host_dies_in_a_move(three: Hosts, name: str, record: str, after: bool, outcome: str):
    """Source, target and home: before and after each record of the protocol."""
    dies_in(three, name, three.all["a"].mesh("app").move("check", to="c"), record, after=after)
    run_again(three, name, outcome)


@pytest.mark.parametrize("name", ["a", "b", "c"])
def test_a_host_dies_before_the_first_checkpoint_after_a_move(three: Hosts, name: str):
    """What has arrived is not in a checkpoint yet: the move is made again at the restart."""
    checkpoints = three.all[name]._applications.store.checkpoints
    write, target = checkpoints.write, three.all["a"].mesh("app").move("check", to="c")

    def written(snapshot: Any) -> int:
        if snapshot.revision > before:
            raise StateError("no room")
        return write(snapshot)

    before = three.all[name].deployment("app").mesh.revision
    checkpoints.write = written
    three.all["a"].apply(target)
    if name != "c":  # without a checkpoint, c acknowledges nothing, and soon gets nothing more
        goes_on(three.all["c"])
    three.network.away.add(name)
    three.all[name].close()
    run_again(three, name, "c")


def test_a_twin_that_has_taken_over_goes_on_after_a_restart(three: Hosts):
    """Its state was not sent in the cut: it is in the checkpoint that its own host has taken there."""
    home = three.all["a"]
    home.plan(home.mesh("app").move("check", to="c")).apply(shadow=Shadow(items=200))
    goes_on(three.all["c"])
    three.network.away.add("c")
    three.all["c"].close()
    run_again(three, "c", "c")


@pytest.mark.parametrize(("ended", "to"), [("b", "c"), ("c", "b")])
def test_the_end_of_merged_streams_comes_after_a_restart_from_the_cut_of_a_move(
    three: Hosts, monkeypatch: pytest.MonkeyPatch, ended: str, to: str
):
    """A source that has ended comes to the host of one that has not, or leaves it; that host dies.

    What is stored there, and not started yet, does not count as ended.
    """
    home = three.all["a"]
    home.remove("app")
    SEEN.clear()
    for gate in GATES.values():
        gate.clear()
    app = Application("app")
    app.durable(every=0.1)
    both = app.channel("both")
    app.on(ended).add("x", opened, tag="x", out=both)
    app.on("c").add("y", opened, tag="y", out=both)
    app.on("c").add("collect", collect, item=both)
    home.apply(app.build())
    GATES["x"].set()
    eventually(lambda: three.all[ended].deployment("app").components["x"].status == "ended", "x has ended")
    eventually(lambda: len(SEEN.get("all", ())) == 10, "all of x")
    edited = home.mesh("app").move("x", to=to)
    store, reports = RestoredChange._store, list[Report]()

    def stored(self: RestoredChange, restart: Restart) -> None:
        store(self, restart)
        reports.append(self._here.report("app", self._here.known["app"]))

    monkeypatch.setattr(RestoredChange, "_store", stored)
    dies_in(three, "c", edited)
    three.back("c")
    GATES["y"].set()
    eventually(lambda: home._hosts.homes["app"].finished, "the end", END)
    assert sorted(SEEN["all"]) == [*range(1, 11), *range(101, 111)]
    assert [one.ended for one in reports] == [False]


def test_a_source_that_comes_back_after_a_restart_from_the_cut_of_its_move_has_an_end(three: Hosts):
    """What the change took from the channel is not connected to it any more."""
    home = three.all["a"]
    home.remove("app")
    for gate in GATES.values():
        gate.clear()
    app = Application("app")
    app.durable(every=0.1)
    both = app.channel("both", "queue", host="c")
    for tag in GATES:
        app.on("c").add(tag, opened, tag=tag, out=both)
    app.on("c").add("keeps", keeps, item=both)
    mesh = home.apply(app.build())
    GATES["x"].set()
    eventually(lambda: len(home.memento("app", "keeps").items) == 10, "all of x")
    dies_in(three, "c", mesh.move("x", to="b"))
    three.back("c")
    returned(home, mesh)
    GATES["y"].set()
    eventually(lambda: home._hosts.homes["app"].finished, "the end", END)
    assert home.memento("app", "keeps").items == [*range(1, 11), *range(101, 111)]


def test_a_fragment_begins_again_while_the_change_in_which_it_left_is_not_over(
    three: Hosts, monkeypatch: pytest.MonkeyPatch
):
    """The host removes what the former change has emptied first; the home does not wait for that after a restart."""
    home, back, asked, turn = three.all["a"], threading.Event(), threading.Event(), Changes.turn
    home.remove("app")
    GATES["x"].clear()
    app = Application("app")
    kept = app.channel("kept", "queue", host="c")
    app.add("x", opened, tag="x", out=kept)
    app.add("keeps", keeps, item=kept)
    mesh = home.apply(app.build())
    there, remove = three.all["c"]._applications, three.all["c"]._applications.remove

    def late(*given: Any) -> bool:
        assert back.wait(PATIENCE)
        return remove(*given)

    def seen(self: Changes, application: str) -> Any:
        if self is there.changes:
            asked.set()
        return turn(self, application)

    monkeypatch.setattr(there, "remove", late)
    home.apply(mesh := mesh.move("kept", to="b"), timeout=1)
    monkeypatch.setattr(Changes, "turn", seen)
    with ThreadPoolExecutor(1) as pool:
        change = pool.submit(home.apply, mesh.move("kept", to="c").at(home.mesh("app").revision), timeout=PATIENCE)
        assert asked.wait(PATIENCE)
        back.set()
        change.result(PATIENCE)
    GATES["x"].set()
    assert home.wait("app", PATIENCE)
    assert home.memento("app", "keeps").items == [*range(1, 11)]


def test_a_change_that_is_aborted_sends_nothing_that_waits_for_a_checkpoint(three: Hosts):
    """Streams meet at the home no more in the new mesh; their items stay there until the change is made."""
    home = three.all["a"]
    home.remove("app")
    for gate in GATES.values():
        gate.clear()
    app = Application("app")
    app.durable(every=3600)
    kept = app.channel("kept", "queue")
    app.on("c").add("x", opened, tag="x", out=kept)
    app.add("y", opened, tag="y", out=kept)
    app.on("c").add("keeps", keeps, item=kept)
    mesh = home.apply(app.build())
    GATES["x"].set()
    outbox = home.deployment("app").channels["kept.to.c"]
    inbox = three.all["c"].deployment("app").channels["kept.from.a"]
    x = three.all["c"].deployment("app").components["x"]
    eventually(lambda: outbox.depth == 10 and x.status == "ended", "all of x")

    def watch(source: str, to: str, message: Any) -> None:
        if to == "c" and getattr(message, "step", "") == "cut":  # the home is cut; c refuses: x has ended there
            eventually(lambda: outbox._detach is None or inbox.metrics()["received"], "the outbox sends, or cannot")

    three.network.watch = watch
    dies_in(three, "a", mesh.move("y", to="c"), after=False)
    assert inbox.metrics()["received"] == 0
    GATES["y"].set()
    three.back("a")
    home = three.all["a"]
    eventually(lambda: home._hosts.homes["app"].finished, "the end", END)
    assert sorted(home.memento("app", "keeps").items) == [*range(1, 11), *range(101, 111)]


@pytest.mark.parametrize("kind", ["latch", "log"])
def test_a_sink_that_is_added_where_another_was_gets_what_the_channel_keeps(three: Hosts, kind: str):
    """Once, also if its platform dies in the change; what is on the way there is for the other sink, which leaves."""
    home = three.all["a"]
    home.remove("app")
    for gate in GATES.values():
        gate.clear()
    app = Application("app")
    app.durable(every=0.1)
    kept = app.channel("kept", kind, replay=True)
    for tag in GATES:
        app.add(tag, opened, tag=tag, out=kept)
    app.on("b").add("keeps", keeps, item=kept)
    mesh = home.apply(app.build())
    GATES["x"].set()
    eventually(lambda: len(home.memento("app", "keeps").items) == 10, "all of x")
    edited = mesh.add(replace(mesh.node("keeps"), name="late")).move("keeps", to="c")
    dies_in(three, "b", edited)
    three.back("b")
    GATES["y"].set()
    eventually(lambda: home._hosts.homes["app"].finished, "the end", END)
    first, then = [*range(1, 11)], [*range(101, 111)]
    assert home.memento("app", "keeps").items == first + then
    assert home.memento("app", "late").items == (first[-1:] if kind == "latch" else first) + then


class Ends(Hosts):
    """Two sources that end, at once or after the death of a platform in a change, and sinks that keep what comes.

    One of the sinks may come with the change: behind streams that have ended, or a channel with contents.
    """

    def __init__(self, folder: Path, stack: ExitStack, plan_time: PlanTime, seed: int) -> None:
        self.folder, self.stack, self.plan_time = folder, stack, plan_time
        self.chance, self.history = random.Random(seed), [f"EXOP_STRESS=1:{seed}"]
        self.aside = random.Random(f"late {seed}")
        self.all = {one.name: one for one in stack.enter_context(hosts("a", "b", "c", state=folder))}
        self.network = Network(*self.all.values())
        for gate in GATES.values():
            gate.clear()

    def mesh(self) -> Mesh:
        """Everything at any host."""
        app, chance = Application("app"), self.chance
        app.durable(every=chance.choice((0.05, 3600.0)))
        both = app.channel("both")
        if chance.random() < 0.5:
            log: dict[str, Any] = {"kind": "log", "segment": 100, "replay": True}
            kept = chance.choice(({"kind": "queue", "capacity": 4}, {"kind": "queue"}, log))
            if self.aside.random() < 0.3:
                kept = {"kind": "latch", "replay": True}
            both = app.channel("kept", host=chance.choice("abc"), **kept)
        for tag in GATES:
            app.on(chance.choice("abc")).add(tag, opened, tag=tag, out=both)
        app.on(chance.choice("abc")).add("keeps", keeps, item=both)
        return app.build()

    def changed(self, mesh: Mesh) -> Mesh:
        """The mesh with one or two nodes, or a channel, elsewhere, or with another sink."""
        places = {**mesh.nodes, **{name: one for name, one in mesh.channels.items() if one.kind != "direct"}}
        if self.aside.random() < 0.5:
            host = self.aside.choice("abc")
            self.history.append(f"late comes to {host}")
            mesh = mesh.add(replace(mesh.node("keeps"), name="late", host=host))
            if self.aside.random() < 0.5:
                return mesh
        for name in self.chance.sample(sorted(places), self.chance.randint(1, 2)):
            to = self.chance.choice([host for host in "abc" if host != (places[name].host or "a")])
            self.history.append(f"{name}: {places[name].host} to {to}")
            mesh = mesh.move(name, to=to)
        return mesh

    def run(self) -> None:
        """Let sources end, and a platform die in a change and return; then everything comes once, and the end."""
        before = self.all["a"].apply(self.mesh())
        self.history.append(before.to_toml())
        for tag in (over := self.chance.choice(("", "x", "x", "y", "xy"))):
            place = self.all[before.nodes[tag].host or "a"]
            GATES[tag].set()
            eventually(lambda: place.deployment("app").components[tag].status == "ended", "a source has ended")  # noqa: B023
        if not is_possible(before, after := self.changed(before)):
            return
        hosts = {host for mesh in (before, after) for node in mesh.nodes.values() for host in [node.host or "a"]}
        name, late = self.chance.choice(sorted(hosts)), self.chance.random() < 0.5
        record = self.chance.choice(("Prepared", "Settled", "Settled"))
        self.history.append(f"{name} dies at {record}, {'after' if late else 'before'} it is written")
        killed, member = Killed(self, name, record, after=late), self.all[name]._hosts.exchange.of("app").member
        with ThreadPoolExecutor(1) as pool:
            change = pool.submit(self.all["a"].apply, after, timeout=PATIENCE)
            # A refusal is known at the home first: the record of an abort comes after it.
            eventually(lambda: killed.death.dead.is_set() or (change.done() and member.plan is None), "the death")
            if killed.death.dead.is_set():
                self.wait_no_longer()
            change.exception(PATIENCE)
        if killed.death.dead.is_set():
            self.all[name].close()
            self.back(name)
        if self.aside.random() < 0.4:
            self.history.append("all comes back to where it was")
            returned(self.all["a"], before)
        for gate in GATES.values():
            gate.set()
        home = self.all["a"]

        def finished() -> bool:
            for one in self.all.values():  # what crosses to another host is acknowledged with the next checkpoint
                with suppress(ExopError):
                    one._hosts._local.checkpointer("app").take()
            return home.wait("app", 0)

        eventually(finished, "the end", END)
        running = [self.all[one.host or "a"]._applications for one in home.mesh("app").nodes.values()]
        eventually(lambda: all("app" in one.deployed for one in running), "a host that has returned has its part")
        items = home.memento("app", "keeps").items
        assert [one for one in items if one < 100] == [*range(1, 11)], items
        assert [one for one in items if one > 100] == [*range(101, 111)], items
        assert len(items) == 20, items
        if "late" in home.mesh("app").nodes:
            late, kind = home.memento("app", "late").items, before.channels[before.nodes["keeps"].ports["item"]].kind
            missed = {one for one in items if "xy"[one > 100] in over and kind != "log"}
            assert sorted({*items} - missed) == sorted({*late} - missed), late
            assert len({*late}) == len(late) >= (kind == "latch"), late


#: Seconds for the end; planted mistakes are noticed earlier.
END = PATIENCE


def campaign(seed: int, folder: Path) -> None:
    """Run one application."""
    with pytest.MonkeyPatch.context() as patch, ExitStack() as stack:
        ends = Ends(folder, stack, PlanTime(patch), seed)
        try:
            ends.run()
        except BaseException as problem:
            problem.add_note("\n".join(ends.history))
            raise


@pytest.mark.parametrize("seed", [1, 2018, 500200029])  # the last two: a new sink, or a peer, misses what was before
def test_any_death_in_a_move(tmp_path: Path, seed: int):
    """The sink has each item once, in order, and the application ends."""
    campaign(seed, tmp_path)


def ends_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """A restart from the checkpoint of a cut does not look what was connected in that cut."""
    restore = snapshot.restore_contents
    monkeypatch.setattr(snapshot, "restore_contents", lambda *given: restore(*given) and None)


def test_a_planted_mistake_is_found(three: Hosts, monkeypatch: pytest.MonkeyPatch):
    """The end of the merged streams never comes."""
    ends_forgotten(monkeypatch)
    monkeypatch.setattr("tests.hosts.test_move_restarts.END", 1.5)
    with pytest.raises(AssertionError, match="the end has not come about"):
        test_the_end_of_merged_streams_comes_after_a_restart_from_the_cut_of_a_move(three, monkeypatch, "b", "c")


@pytest.mark.skipif("EXOP_STRESS" not in os.environ, reason="a long campaign: EXOP_STRESS=SECONDS[:SEED]")
@pytest.mark.timeout(0)
def test_any_death_in_a_move_for_long(tmp_path: Path):
    """The same with as many seeds as the time allows."""
    for seed in stress_seeds():
        campaign(seed, tmp_path / str(seed))
