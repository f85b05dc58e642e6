"""Bundles are updated there and back between moves, other changes, restarts and deaths; or are gone at a restart.

A campaign is an application over three hosts whose nodes run slets of one bundle, or also of a second one that imports
a class from the first. After each step, each node runs on
the host, with the version and with the settings that its home knows, and no number was lost or doubled.
"""

from __future__ import annotations

import json
import os
import random
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from exop.bundle import bundles
from exop.bundle.store import STARTED, remembered
from exop.cli.commands import state
from exop.cli.commands.state import examine
from exop.errors import ComponentFailed, ExopError
from exop.hosts.federation import Federation
from exop.wiring import Applications
from tests.hosts.hosts_rig import PlanTime
from tests.hosts.updating import CHECK, NODES, RECORDS, Hosts, line
from tests.rig import PATIENCE, stress_seeds

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
        steps = (self.update, self.die, self.move, self.configure, self.restart, self.lose)
        self.chance.choices(steps, (4, 2, 3, 2, 2, 3))[0]()
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

    def lose(self) -> None:
        """Start a platform again without one of its bundles; the application is down there until that is back."""
        name, how = self.chance.choice("abc"), self.chance.choice(("removed", "damaged", "not started"))
        if not (started := self.there.started()[name]):
            return
        lost, bundles = self.chance.choice(started), self.there.folder / name / "bundles"
        gone = {one["bundle"] for one in self.there.all[name].bundles.list() if lost in one.get("imports_from", ())}
        nodes = self.there.a.mesh("app").nodes.values()
        used = {node.slet.plugin for node in nodes if name in ("a", node.host)} & {lost, *gone}
        self.told.append(f"{lost} is {how} when {name} is started again, which uses {used}")
        self.there.all[name].close()
        wires = remembered(bundles)
        copy = shutil.copytree(bundles / lost, self.there.folder / "copies" / f"{len(self.told)}" / lost)
        if how == "removed":
            shutil.rmtree(bundles / lost)
        elif how == "damaged":
            (bundles / lost / "slets.py").write_text("damaged")
        else:  # with those that import from it, which would start it
            kept = {key: imports for key, imports in wires.items() if key not in {lost, *gone}}
            (bundles / STARTED).write_text(json.dumps(kept))
        found = examine(self.there.folder / name)
        assert [one.partition(":")[0] for one in found["down"]][:1] == ["app"] * bool(used), f"check: {found['down']}"
        assert any(lost in one for one in found["damage"]) == (how == "damaged"), f"check: {found['damage']}"
        one = self.there.back(name)
        assert ("app" in one.failed_to_restart) == bool(used), f"down: {one.failed_to_restart}"
        if used and name != "a":
            with pytest.raises(ComponentFailed, match=f"app on {name} failed while being started again"):
                self.there.a.wait("app", PATIENCE)
        if how == "damaged":
            shutil.rmtree(bundles / lost)
            (bundles / f".{lost}.digest").unlink()
        if how != "not started":
            one.bundles.install(copy)
        for key in (lost, *gone):  # a cut-off update may have left a newer version to import from
            one.bundles.start(key, wires[key])
        if used:
            one.restart("app")


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


@pytest.mark.parametrize("seed", [0, 4000100027])
def test_any_bundle_update(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int):
    """Whatever comes before and after an update, all hosts and the home agree."""
    campaign(tmp_path, seed, monkeypatch)


@pytest.mark.skipif("EXOP_STRESS" not in os.environ, reason="a long campaign: EXOP_STRESS=SECONDS[:SEED]")
@pytest.mark.timeout(0)
def test_any_bundle_update_for_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The same with as many seeds as the time allows."""
    for seed in stress_seeds():
        campaign(tmp_path / str(seed), seed, monkeypatch)


def campaigns(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run some of them."""
    for seed in range(8):
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


def nothing_lacks(patch: pytest.MonkeyPatch) -> None:
    """The check of a state directory does not see that a bundle is gone."""
    patch.setattr(state, "_down", lambda *given: ())


@pytest.mark.parametrize(
    ("mistake", "shows"),
    [(only_the_fragment, "and its home has"), (old_mesh_kept, "and its home has"), (nothing_lacks, "check: ")],
)
def test_a_planted_mistake_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mistake: Callable[[pytest.MonkeyPatch], object], shows: str
):
    """One of the first campaigns fails, with another version than its home has, or with a check that sees nothing."""
    with monkeypatch.context() as patch:
        mistake(patch)
        with pytest.raises(AssertionError, match=shows):
            campaigns(tmp_path, monkeypatch)
