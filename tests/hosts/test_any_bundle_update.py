"""Bundles are updated there and back between moves, other changes, restarts and deaths.

A campaign is an application over three hosts whose nodes run slets of one bundle, or also of a second one that imports
a class from the first. After each step, each node runs on
the host, with the version and with the settings that its home knows, and no number was lost or doubled.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import count
from pathlib import Path

import pytest

from exop.bundle import bundles
from exop.errors import ExopError
from exop.hosts.federation import Federation
from exop.wiring import Applications
from tests.hosts.hosts_rig import PlanTime
from tests.hosts.updating import CHECK, NODES, RECORDS, Hosts, line

#: The steps of one campaign.
STEPS = 6
#: The records at which a platform may die.
DEATHS = (
    ("a", "Committed"),
    ("a", "Prepared"),
    ("b", "Prepared"),
    ("b", "Settled"),
    ("c", "Prepared"),
    ("c", "Settled"),
)


class Campaign:
    """What the application is expected to be, and the steps that change it."""

    def __init__(self, there: Hosts, chance: random.Random, monkeypatch: pytest.MonkeyPatch) -> None:
        self.there, self.chance, self.plan_time = there, chance, PlanTime(monkeypatch)
        self.version = self.newest = 1
        self.told: list[str] = []
        self.records = there.slets == RECORDS
        self.nodes = (*NODES, *(f"to_{node}" for node in NODES if self.records))
        places = {node: chance.choice("abc") for node in self.nodes}
        away = {node: host for node, host in places.items() if host != "a"}
        there.a.apply(line("app", there.a, records=self.records, **away))

    def step(self) -> None:
        """Do one of the steps, and look at all hosts."""
        does = self.chance.choices((self.update, self.die, self.move, self.configure, self.restart), (4, 2, 3, 2, 2))[0]
        does()
        assert self.there.agrees() == self.there.slets_of(self.version)

    def next(self) -> int:
        """Another version: there or back; or a newer one, since no class loses a field that items have."""
        if not self.records:
            return 3 - self.version
        self.newest += 1
        return self.newest

    def update(self) -> None:
        """Update the bundle."""
        self.version = self.next()
        self.told.append(f"update to {self.version}")
        self.there.update(self.version)

    def die(self) -> None:
        """Update while a platform dies, and returns: both versions are right, on all hosts."""
        name, record = self.chance.choice(DEATHS)
        after, version = self.chance.random() < 0.5, self.next()
        self.told.append(f"{name} dies {'after' if after else 'before'} {record} in the update to {version}")
        self.there.update_while(version, name, record, after=after, plan_time=self.plan_time)
        if self.there.agrees() == self.there.slets_of(version):
            self.version = version

    def move(self) -> None:
        """Move a node; the stream goes from host to host and back."""
        mesh, node = self.there.a.mesh("app"), self.chance.choice(self.nodes)
        host = self.chance.choice([one for one in "abc" if one != (mesh.node(node).host or "a")])
        self.told.append(f"move {node} to {host}")
        self.there.a.apply(mesh.move(node, to=host if host != "a" else None))

    def configure(self) -> None:
        """Make a small change, which starts from the mesh of the home."""
        node = self.chance.choice(NODES)
        self.told.append(f"configure {node}")
        self.there.a.apply(self.there.a.mesh("app").configure(node, unit=str(self.chance.randrange(1 << 30))))

    def restart(self) -> None:
        """Close a platform, and start it again."""
        name = self.chance.choice("abc")
        self.told.append(f"restart {name}")
        self.there.all[name].close()
        self.there.back(name)


def campaign(folder: Path, seed: int, monkeypatch: pytest.MonkeyPatch, steps: int = STEPS) -> None:
    """Run one campaign; a failure tells the steps before it."""
    with ExitStack() as stack:
        there = Hosts(folder, stack, monkeypatch, "abc", RECORDS if seed % 2 else CHECK)
        made = Campaign(there, random.Random(seed), monkeypatch)
        try:
            for _ in range(steps):
                made.step()
        except (AssertionError, ExopError) as problem:
            raise AssertionError("\n".join([f"seed {seed}: {problem}", *made.told])) from problem


@pytest.mark.parametrize("seed", [0])
def test_any_bundle_update(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int):
    """Whatever comes before and after an update, all hosts and the home agree."""
    campaign(tmp_path, seed, monkeypatch)


@pytest.mark.skipif("EXOP_STRESS" not in os.environ, reason="a long campaign: EXOP_STRESS=SECONDS[:SEED]")
@pytest.mark.timeout(0)
def test_any_bundle_update_for_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The same with as many seeds as the time allows."""
    seconds, _, first = os.environ["EXOP_STRESS"].partition(":")
    until = time.monotonic() + float(seconds)
    for seed in count(int(first or 0)):
        if time.monotonic() > until:
            break
        campaign(tmp_path / str(seed), seed, monkeypatch)


def campaigns(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run some of them."""
    for seed in range(5):
        campaign(folder / str(seed), seed, monkeypatch)


def only_the_fragment(patch: pytest.MonkeyPatch) -> None:
    """An update replaces the nodes on the platform of the command alone, and its home keeps the old mesh."""

    def running(self: Federation) -> Iterator[tuple[object, str]]:
        yield from ((one.mesh, self.name) for one in self._local.deployed.values())

    patch.setattr(Applications, "check_whole", lambda self, application: None)
    patch.setattr(Federation, "running", running)
    patch.setattr(bundles, "_plans", _planned_locally(bundles._plans))


def _planned_locally(plans: Callable[..., object]) -> Callable[..., object]:
    def planned(context: object, *given: object) -> object:
        hosts = context.hosts  # type: ignore[attr-defined]
        hosts.plan, hosts.spans = hosts._local.plan, lambda mesh: False
        try:
            return plans(context, *given)
        finally:
            del hosts.plan, hosts.spans

    return planned


def old_mesh_kept(patch: pytest.MonkeyPatch) -> None:
    """The update is made on all hosts, and the home goes on with the mesh of before."""
    record = Federation.record

    def recorded(self: Federation, application: str, entry: object) -> None:
        found = self.homes.get(application)
        before = found.mesh if found is not None else None
        record(self, application, entry)  # type: ignore[arg-type]
        if type(entry).__name__ == "Committed" and found is not None and before is not None and before.nodes:
            found.mesh = before.at(found.mesh.revision)

    patch.setattr(Federation, "record", recorded)


@pytest.mark.parametrize("mistake", [only_the_fragment, old_mesh_kept])
def test_a_planted_mistake_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mistake: Callable[[pytest.MonkeyPatch], object]
):
    """One of the first campaigns fails, since a node runs another version than its home has."""
    with monkeypatch.context() as patch:
        mistake(patch)
        with pytest.raises(AssertionError, match="and its home has"):
            campaigns(tmp_path, monkeypatch)
