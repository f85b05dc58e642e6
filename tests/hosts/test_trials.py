"""Trials, standbys and rollbacks in applications that span hosts: of replacements and of moves."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from threading import Event
from typing import Any, ClassVar

import pytest

from exop import Shadow, Slet, input_port, slet
from exop.errors import PlanError
from tests.change.tools import Sum, endless, grows, summing, summing_too, whole
from tests.hosts.moving import APP, Hosts, hosts
from tests.rig import PATIENCE, eventually, parked


@slet
def wrong(x: int, so_far: Sum) -> int:
    """Pass on all items but each hundredth."""
    so_far.count += 1
    so_far.total += x
    return x if x % 100 else -x


def begin(there: Hosts, *slets: Any, **kinds: str) -> None:
    """Run a line of slets at the home."""
    there.home.apply(there.line(*slets, **kinds))
    grows(there.seen)


def change(there: Hosts, edit: Any, **how: Any) -> None:
    """Plan a change, and make it with a trial or standby."""
    there.home.plan(edit(there.home.mesh(APP))).apply(**how)
    grows(there.seen)


def sound(there: Hosts, host: str) -> None:
    """The state and the counts of the slet in the middle have each item once."""
    with parked(there.platforms[host].deployment(APP)):
        so_far = there.component(host, "b").state
        assert so_far.total == so_far.count * (so_far.count + 1) // 2
        assert there.component(host, "b").metrics.counts()["in", "x"] == so_far.count
    whole([*there.seen])


@pytest.mark.parametrize("where", ["h1", "h2"])
def test_a_replacement_is_tried_and_taken_back_at_its_host(where: str):
    """The slet is replaced at the home or elsewhere; its predecessor follows, and takes over with its own state."""
    with hosts("h1", "h2", slets=(summing_too,)) as there:
        begin(there, endless, summing)
        there.move("h2", "a")
        if where == "h2":
            there.move("h2", "b")
        change(there, lambda mesh: mesh.replace("b", summing_too), shadow=Shadow(items=50), keep=60.0)
        assert there.component(where, "b").spec.name == "summing_too"
        assert there.home.status(APP)["kept"]["b"]["slet"].endswith("summing")
        there.home.rollback(APP, "b")
        grows(there.seen)
        assert there.component(where, "b").spec.name == "summing"
        assert "kept" not in there.home.status(APP)
        sound(there, where)


@pytest.mark.parametrize("where", ["h1", "h2"])
def test_a_replacement_that_differs_is_refused_at_its_host(where: str):
    """The error of the home has the difference, and the old slet runs on."""
    with hosts("h1", "h2", slets=(wrong,)) as there:
        begin(there, endless, summing)
        there.move("h2", "a")
        if where == "h2":
            there.move("h2", "b")
        with pytest.raises(PlanError, match=r"b was not replaced: .*different|difference"):
            change(there, lambda mesh: mesh.replace("b", wrong), shadow=Shadow(items=500))
        grows(there.seen)
        sound(there, where)


@pytest.mark.parametrize("kinds", [{}, {"a": "queue"}], ids=["direct", "queue"])
@pytest.mark.parametrize("places", ["21", "231"])
def test_a_move_is_tried(places: str, kinds: dict[str, str]):
    """The successor runs beside the slet on the other host, and takes over there with the state that it has."""
    with hosts("h1", "h2", "h3") as there:
        begin(there, endless, summing, **kinds)
        for place in places:
            change(there, lambda mesh, place=place: mesh.move("b", to=f"h{place}"), shadow=Shadow(items=200))
            sound(there, f"h{place}")
        eventually(lambda: not any(one._hosts.here.twins for one in there.platforms.values()), "no twin is left")
        assert there.platforms["h2"].applications() == []


@pytest.mark.parametrize("alone", [False, True], ids=["beside others", "alone on its host"])
@pytest.mark.parametrize("shadow", [None, Shadow(items=50)], ids=["at once", "tried"])
def test_a_move_is_taken_back(shadow: Shadow | None, alone: bool):
    """The predecessor follows where it was, and takes over again with what has been processed since."""
    source, target = ("h2", "h1") if alone else ("h1", "h2")
    with hosts("h1", "h2") as there:
        begin(there, endless, summing)
        if alone:
            there.move("h2", "b")
        change(there, lambda mesh: mesh.move("b", to=target), keep=60.0, shadow=shadow)
        grows(there.seen, 500)
        sound(there, target)
        assert there.home.status(APP)["kept"]["b"]["problem"] is None
        reported = "kept" in there.platforms["h2"].status(APP)
        assert reported == (target == "h2"), "only the host of the leader reports it"
        there.home.rollback(APP, "b")
        grows(there.seen, 500)
        sound(there, source)
        assert "kept" not in there.home.status(APP)
        with pytest.raises(PlanError, match="has no predecessor that runs on"):
            there.home.rollback(APP, "b")
        change(there, lambda mesh: mesh.move("b", to=target), keep=60.0, shadow=shadow)
        sound(there, target)


@pytest.mark.parametrize("every", [None, 0.2], ids=["in memory", "durable"])
def test_a_slet_is_replaced_and_moves_in_one_trial(every: float | None, tmp_path: Path):
    """Another slet takes over at another host, and the old one comes back where it was; also with checkpoints."""
    with hosts("h1", "h2", slets=(summing_too,), state=None if every is None else tmp_path) as there:
        there.home.apply(there.line(endless, summing, a="queue", durable=every))
        grows(there.seen)
        how: dict[str, Any] = {"shadow": Shadow(items=50), "keep": 60.0}
        change(there, lambda mesh: mesh.replace("b", summing_too).move("b", to="h2"), **how)
        assert there.component("h2", "b").spec.name == "summing_too"
        sound(there, "h2")
        there.home.rollback(APP, "b")
        grows(there.seen)
        assert there.component("h1", "b").spec.name == "summing"
        sound(there, "h1")


class Twofold(Slet):
    """Counts; what the instance with the number `odd` does at an item is up to the test."""

    instances: ClassVar[int] = 0
    odd: ClassVar[int] = 2
    there: ClassVar[Callable[[int], int]] = staticmethod(lambda item: item)
    so_far: Sum

    def __enter__(self) -> Twofold:
        type(self).instances += 1
        self.is_odd = self.instances == self.odd
        return self

    @input_port
    def x(self, item: int) -> int:
        """Count."""
        self.so_far.count += 1
        self.so_far.total += item
        return type(self).there(item) if self.is_odd else item


@contextmanager
def twofold(there_does: Callable[[int], int], *names: str) -> Iterator[Hosts]:
    """Hosts that run a line with such a slet in the middle, at the second host if there are three."""
    with hosts(*names, slets=(Twofold,)) as there:
        Twofold.instances, Twofold.odd, Twofold.there = 0, len(names), staticmethod(there_does)  # type: ignore[assignment]
        begin(there, endless, Twofold)
        if len(names) > 2:
            there.move(names[1], "b")
        yield there


def nothing_is_left(there: Hosts, *names: str) -> None:
    """These hosts run no follower, and no part of the application."""
    eventually(lambda: not any(one._hosts.here.twins for one in there.platforms.values()), "no twin is left")
    for name in names:
        eventually(lambda name=name: there.platforms[name].applications() == [], f"{name} runs nothing")


def on_trial(there: Hosts, host: str, **how: Any) -> Future[None]:
    """Begin to move the slet in the middle with a trial that lasts, and wait until some items were compared."""
    running = ThreadPoolExecutor(1).submit(
        change, there, lambda mesh: mesh.move("b", to=host), shadow=Shadow(seconds=PATIENCE), **how
    )
    eventually(lambda: there.home.status(APP).get("shadow", {}).get("b", {}).get("items", 0) > 50, "the trial")
    return running


def raises(item: int) -> int:
    """Fail at one item."""
    if item % 100 == 0:
        raise ValueError("not here")
    return item


@pytest.mark.parametrize(
    ("there_does", "problem"),
    [
        (lambda x: -x if x % 100 == 0 else x, r"old \d+, new -\d+"),
        (raises, "ValueError"),
        (lambda x: None if x % 100 == 0 else x, "new nothing"),
    ],
    ids=["another output", "an error", "a missing output"],
)
@pytest.mark.parametrize("names", [("h1", "h2"), ("h1", "h2", "h3")], ids=["from the home", "from elsewhere"])
def test_a_successor_that_differs_does_not_take_over(names: tuple[str, ...], there_does: Any, problem: str):
    """The slet stays where it was, whole; nothing of its successor is left at the other host."""
    with twofold(there_does, *names) as there:
        with pytest.raises(PlanError, match=rf"(?s)b was not replaced: .*{problem}.*nothing was changed on any host"):
            change(there, lambda mesh: mesh.move("b", to=names[-1]), shadow=Shadow(items=1000))
        nothing_is_left(there, names[-1])
        grows(there.seen)
        sound(there, names[-2])
        assert there.component(names[-2], "b").taps == ()


def test_a_successor_that_hangs_does_not_stop_the_stream():
    """The trial ends with its time, and the stream has gone on meanwhile."""
    release = Event()

    def hangs(item: int) -> int:
        release.wait(PATIENCE)
        return item

    with twofold(hangs, "h1", "h2") as there:
        before = len(there.seen)
        with pytest.raises(PlanError, match=r"within 1 s came (not one|0 of 10) items?|too slow"):
            there.home.plan(there.home.mesh(APP).move("b", to="h2")).apply(shadow=Shadow(items=10, seconds=1.0))
        assert len(there.seen) > before + 100
        release.set()
        nothing_is_left(there, "h2")
        grows(there.seen)
        sound(there, "h1")


@pytest.mark.parametrize("event", ["the target dies", "the link is cut", "it is abandoned"])
def test_a_trial_that_is_interrupted_leaves_the_slet_where_it_was(event: str):
    """The error names the cause; the stream goes on, and nothing of the successor is left."""
    with hosts("h1", "h2", "h3") as there:
        begin(there, endless, summing)
        there.move("h2", "b")
        running = on_trial(there, "h3")
        match event:
            case "the target dies":
                there.platforms["h3"].remoting.close()
            case "the link is cut":
                there.platforms["h2"].remoting.peers["h3"].close("it is cut")
            case _:
                assert there.home.abandon_proof(APP)
        with pytest.raises(PlanError, match=r"h3|it was given up"):
            running.result(PATIENCE)
        if event != "the target dies":
            nothing_is_left(there, "h3")
        grows(there.seen)
        sound(there, "h2")
        assert there.component("h2", "b").taps == ()


def test_a_predecessor_that_cannot_be_reached_is_kept_no_longer():
    """The stream does not wait for it, and a rollback is refused by name."""
    with hosts("h1", "h2", "h3") as there:
        begin(there, endless, summing)
        there.move("h2", "b")
        change(there, lambda mesh: mesh.move("b", to="h3"), keep=60.0)
        eventually(lambda: there.home.status(APP)["kept"]["b"]["items"] > 50)
        there.platforms["h3"].remoting.peers["h2"].close("it is cut")
        eventually(lambda: ("app", "b") not in there.platforms["h3"]._applications.changes.shadows._kept, "it ends")
        grows(there.seen)
        with pytest.raises(PlanError, match=r"b has no predecessor that runs on"):
            there.home.rollback(APP, "b")
        grows(there.seen)
        sound(there, "h3")


def test_a_predecessor_goes_with_its_time_and_with_its_application():
    """When its time is up, or the application is removed, nothing is left of it, also where it was alone."""
    with hosts("h1", "h2") as there:
        begin(there, endless, summing)
        there.move("h2", "b")
        change(there, lambda mesh: mesh.move("b", to="h1"), keep=0.5)
        nothing_is_left(there, "h2")
        sound(there, "h1")
        there.move("h2", "b")
        change(there, lambda mesh: mesh.move("b", to="h1"), keep=60.0)
        assert there.platforms["h2"].applications() == [APP]
        there.home.remove(APP)
        nothing_is_left(there, "h1", "h2")


@pytest.mark.parametrize(
    ("edit", "how", "problem"),
    [
        (lambda mesh: mesh.move("sink", to="h2"), {"shadow": Shadow(items=1)}, "acts on something outside of the mesh"),
        (lambda mesh: mesh.move("sink", to="h2"), {"keep": 60.0}, "acts on something outside of the mesh"),
        (lambda mesh: mesh.move("a", to="h2"), {"shadow": Shadow(items=1)}, "is a source"),
        (lambda mesh: mesh.move("bs", to="h2"), {"keep": 60.0}, "replaces no slet and moves none"),
        (
            lambda mesh: mesh.replace("b", summing_too),
            {"shadow": Shadow(items=1, compare=lambda old, new: True)},
            "runs on h2, and a comparison is code, which does not travel",
        ),
    ],
    ids=["tried sink", "kept sink", "source", "channel", "comparison"],
)
def test_what_cannot_be_tried_over_hosts_is_refused(edit: Any, how: dict[str, Any], problem: str):
    """By name, before anything has happened."""
    with hosts("h1", "h2", slets=(summing_too,)) as there:
        begin(there, endless, summing, b="queue")
        there.move("h2", "b")
        with pytest.raises(PlanError, match=problem):
            change(there, edit, **how)
        grows(there.seen)
        sound(there, "h2")
