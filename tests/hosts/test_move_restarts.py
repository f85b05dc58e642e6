"""Platforms that die in the middle of a move, and return: the node goes on once, with its exact state."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from exop import Application, Shadow
from exop.errors import StateError
from tests.hosts.hosts_rig import GATES, SEEN, Death, PlanTime, at_rest, collect, goes_on, opened
from tests.hosts.test_federation_restarts import Hosts
from tests.rig import PATIENCE, eventually


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
    killed = Killed(three, name, record, after=after)
    edited = three.all["a"].mesh("app").move("check", to="c")
    with ThreadPoolExecutor(1) as pool:
        moved = pool.submit(three.all["a"].apply, edited, timeout=PATIENCE)
        assert killed.death.dead.wait(PATIENCE)
        three.wait_no_longer()
        moved.exception(PATIENCE)
    three.all[name].close()
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
def test_the_end_of_merged_streams_comes_after_a_restart_from_the_cut_of_a_move(three: Hosts, ended: str, to: str):
    """A source that has ended comes to the host of one that has not, or leaves it; that host dies."""
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
    killed = Killed(three, "c", "Settled", after=True)
    with ThreadPoolExecutor(1) as pool:
        moved = pool.submit(home.apply, edited, timeout=PATIENCE)
        assert killed.death.dead.wait(PATIENCE)
        three.wait_no_longer()
        moved.exception(PATIENCE)
    three.all["c"].close()
    three.back("c")
    GATES["y"].set()
    eventually(lambda: home._hosts.homes["app"].finished, "the end")
    assert sorted(SEEN["all"]) == [*range(1, 11), *range(101, 111)]
