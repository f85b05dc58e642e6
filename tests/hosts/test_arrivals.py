"""A node leaves one platform and arrives at another one: its state, counts, items and position go with it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest

from bench.durable_app.engine import Doubled, Summed
from exop import Application, Memento, Platform, Slet, slet
from exop.errors import MementoError, PlanError
from exop.hosts.moves.transfer import Transfer
from exop.model.meshes.mesh import Mesh
from exop.model.slets.handover import check_movable
from exop.model.slets.slet import spec_of
from exop.runtime.lifecycle import State
from exop.wiring.changes.arrivals import Arrival, departed, dumped
from exop.wiring.changes.change import Change
from tests.change.tools import (
    Position,
    Sum,
    Tap,
    endless,
    finish,
    grows,
    summing,
    suspended,
    whole,
    writing,
)
from tests.rig import eventually, parked


class Numbers(Slet):
    """The numbers 1, 2, 3, with their position in a memento."""

    position: Position

    def __iter__(self) -> Iterator[int]:
        while self.position.number < 3:
            self.position.number += 1
            yield self.position.number


@slet
def from_nowhere() -> Iterator[int]:
    """A source without a position."""
    yield 1


@slet
def other_state(x: int, so_far: Position) -> int:
    """Another slet, with another state."""
    return x


class Scripted(Memento):
    """As if a script had defined it."""

    total: int = 0


Scripted.__module__ = "__main__"


@slet
def from_script(x: int, so_far: Scripted) -> int:
    """A slet whose state no other process can read."""
    return x


class Half:
    """One of two platforms that share an application, without any connection between them."""

    def __init__(self, name: str, *slets: Any) -> None:
        self.seen: list[Any] = []
        self.platform = Platform(name=name)
        self.idle, channel, app = Tap(), None, Application("app")
        for letter, one in zip("abcdef", slets, strict=False):
            inputs = {} if channel is None else {spec_of(one).inputs[0].name: channel}
            channel = app.add(letter, one, **inputs)
        self.last = "sink"
        app.add("idle", self.idle.source(), out=channel)
        app.add("sink", writing(self.seen), x=channel)
        self.whole = app.build()

    def begin(self, *nodes: str) -> None:
        """Run the sink, and these nodes."""
        self.platform.start()
        self.platform.apply(self.only(*nodes))

    def only(self, *nodes: str) -> Mesh:
        """The mesh with the sink and these nodes."""
        gone = {name: None for name in self.whole.nodes if name not in (*nodes, self.last, "idle")}
        mesh = self.whole.edited(gone)
        used = {channel for node in mesh.nodes.values() for channel in node.ports.values()}
        return mesh.edited(channels={name: None for name in mesh.channels if name not in used})

    def change(self, mesh: Mesh, **moved: tuple[str, ...]) -> Change:
        """A prepared change to this mesh."""
        applications = self.platform._applications
        now = applications.get("app").mesh
        made = applications.changes.change(applications.plan(mesh.at(now.revision)))
        assert made is not None
        made.departing, made.arriving = moved.get("departing", ()), moved.get("arriving", ())
        made.leaves = Transfer(departing=dict.fromkeys(made.departing, "b")).leaves
        made.prepare()
        return made

    def component(self, node: str) -> Any:
        """The component of a node."""
        return self.platform.deployment("app").components[node]


@contextmanager
def halves(*slets: Any) -> Iterator[tuple[Half, Half]]:
    """Two platforms for the same application."""
    here, there = Half("a", *slets), Half("b", *slets)
    try:
        yield here, there
    finally:
        for one in (here, there):
            one.idle.shut()
        here.platform.close()
        there.platform.close()


def left(change: Change, node: str) -> tuple[bytes, bytes]:
    """What leaves with a node, as bytes."""
    memento, rest = departed(change.deployment, change.old[node], {})
    return dumped(memento, node), rest


def move(here: Half, there: Half, *nodes: str, keeps: tuple[str, ...] = ()) -> None:
    """Move nodes to the other half; those that *keeps* names are there already."""
    source = here.change(here.only(*keeps), departing=nodes)
    target = there.change(there.only(*nodes), arriving=nodes)
    with ExitStack() as turns:
        for one in (source, target):
            turns.enter_context(one.deployment.changing)
            one.stage()
        source.cut()
        for node in nodes:
            target.arrive(node, Arrival(target.plan.after.node(node), *left(source, node)))
        target.cut()
        for one in (target, source):
            one.commit()
            one.finish()


def test_a_source_goes_on_at_its_position():
    """Every item is sent once, by one of both hosts, also the item that was yielded and not pushed."""
    with halves(endless, summing) as (here, there):
        here.begin("a", "b")
        there.begin()
        for _ in range(3):
            grows(here.seen)
            move(here, there, "a", "b")
            grows(there.seen)
            here, there = there, here
        with parked(here.platform.deployment("app")):
            so_far = here.component("b").state
        assert so_far.total == so_far.count * (so_far.count + 1) // 2
        here.idle.shut()
        here.platform.remove("app")
        whole(sorted([*here.seen, *there.seen]))


def test_the_item_of_a_suspended_slet_goes_with_it():
    """The item on which it is suspended, and those behind it at its port, are processed by the other host."""
    bad = [True]

    @slet
    def careful(x: int, so_far: Sum) -> int:
        if x == 50 and bad:
            raise ValueError("not now")
        so_far.count += 1
        return x

    with halves(endless, careful) as (here, there):
        here.begin("a", "b")
        there.begin()
        suspended(here.platform, "app", "b")
        bad.clear()
        move(here, there, "a", "b")
        grows(there.seen)
        whole([*here.seen, *there.seen])
        assert len(here.seen) == 49


def test_an_engine_goes_with_what_is_inside_it():
    """It is packed when it has come to rest; a part of the sums is emitted by either host."""
    with halves(endless, Summed) as (here, there):
        here.begin("a", "b")
        there.begin()
        for _ in range(3):
            grows(here.seen)
            move(here, there, "a", "b")
            grows(there.seen)
            here, there = there, here
        here.idle.shut()
        here.platform.remove("app")
        sums = sorted([*here.seen, *there.seen])
        assert sums == [number * (number + 1) // 2 for number in range(1, len(sums) + 1)]


def test_dead_letters_and_counts_go_with_a_node():
    """The status of the node at the other host contains what has happened before."""

    @slet(on_error="dead-letter")
    def picky(x: int) -> int:
        if x % 10 == 0:
            raise ValueError("not this")
        return x

    with halves(endless, picky) as (here, there):
        here.begin("a", "b")
        there.begin()
        grows(here.seen)
        move(here, there, "a", "b")
        grows(there.seen)
        items = [letter.item for letter in there.component("b").trouble.dead]
        assert items == [*range(items[0], items[-1] + 10, 10)]
        assert there.component("b").metrics.counts()["out", "out"] >= len(here.seen) + 100
        assert not here.platform.deployment("app").components.keys() & {"a", "b"}


def test_an_aborted_move_leaves_the_node_where_it_was():
    """After the cut of both halves, the source still goes on with all its items, and the target is empty again."""
    with halves(endless, summing) as (here, there):
        here.begin("a", "b")
        there.begin()
        grows(here.seen)
        source = here.change(here.only(), departing=("a", "b"))
        target = there.change(there.only("a", "b"), arriving=("a", "b"))
        with source.deployment.changing, target.deployment.changing:
            source.stage()
            target.stage()
            source.cut()
            for node in ("a", "b"):
                target.arrive(node, Arrival(target.plan.after.node(node), *left(source, node)))
            target.cut()
            target.abort()
            source.abort()
        grows(here.seen)
        whole([*here.seen])
        assert there.seen == []
        assert "a" not in there.platform.deployment("app").components


def test_a_node_that_has_ended_ends_the_stream_at_the_other_host():
    """The end of its stream is sent once more, since the ports there have not seen it."""
    with halves(Numbers) as (here, there):
        here.begin("a")
        there.begin()
        eventually(lambda: here.component("a").status is State.ENDED)
        move(here, there, "a")
        for half in (here, there):
            half.idle.shut()
            finish(half.platform, "app")
        assert [*here.seen, *there.seen] == [1, 2, 3]


@pytest.mark.parametrize(
    ("before", "after", "problem"),
    [
        pytest.param(from_nowhere, from_nowhere, "keeps no position in a memento", id="a source without a position"),
        pytest.param(from_script, from_script, "is defined in a script", id="a state of a class of a script"),
        pytest.param(Doubled, Doubled, "its engine keeps state that the platform cannot read", id="an engine"),
        pytest.param(summing, other_state, "has no upgrade", id="a state that the successor cannot take over"),
    ],
)
def test_a_move_that_would_leave_state_behind_is_refused(before, after, problem):
    """The error names the node and the reason, before anything happens."""
    app, other = Application("app"), Application("app")
    nodes = []
    for one, spec in ((app, before), (other, after)):
        inputs = {} if spec is from_nowhere else {spec_of(spec).inputs[0].name: one.add("numbers", endless)}
        one.add("end", writing([]), x=one.add("node", spec, **inputs))
        nodes.append(one.build().node("node"))
    with pytest.raises((PlanError, MementoError), match=problem) as refused:
        check_movable(*nodes)
    assert "node" in str(refused.value)


def test_a_refused_move_names_the_node_once_and_the_option():
    """Also a node that is called as its slet; the cure works in Python, and as it is told on the command line."""
    app = Application("app")
    app.add("end", writing([]), x=app.add("from_nowhere", from_nowhere))
    mesh = app.build()
    with pytest.raises(
        PlanError, match=r"^from_nowhere cannot .*lose_state=True \(`exop move APP.from_nowhere HOST --lose-state`\)$"
    ):
        check_movable(mesh.node("from_nowhere"), mesh.move("from_nowhere", "b").node("from_nowhere"))
    check_movable(mesh.node("from_nowhere"), mesh.move("from_nowhere", "b", lose_state=True).node("from_nowhere"))
