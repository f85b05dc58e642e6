"""Platforms that are linked and run versions of one bundle, in an application over hosts; each may die and return."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

from exop import Application, Platform
from exop.errors import ExopError, StateError
from exop.hosts import supply
from exop.hosts.supply import Supply
from exop.model.meshes.mesh import Mesh
from tests.bundle.folders import write
from tests.change.tools import endless
from tests.hosts.hosts_rig import Death, Network, PlanTime, await_no_host, platform
from tests.rig import PATIENCE, eventually

#: A slet that counts the numbers that do not follow.
CHECK = """
from exop import Memento, slet

class Last(Memento):
    number: int = 0
    wrong: int = 0

@slet
def check(item: int, last: Last, *, unit: str = "x") -> int:
    last.wrong += item != last.number + 1
    last.number = item
    return item
"""
#: The same for items of a class, which the state refers to.
COMPARE = """
class Last(Memento):
    number: int = 0
    wrong: int = 0
    items: list[Number] = field(default_factory=list)

@slet
def check(item: Number, last: Last, *, unit: str = "x") -> Number:
    last.items = [*last.items, item][-3:]
    last.wrong += {*map(type, last.items)} != {Number} or item.value != last.number + 1
    last.number = item.value
    return item
"""
#: The class, a slet that makes the items, and the one that compares them.
RECORDS = f"""
from dataclasses import dataclass, field
from exop import Memento, slet

@dataclass
class Number:
    value: int

@slet
def make(item: int) -> Number:
    return Number(item)
{COMPARE}"""
#: The bundle `checks`, which imports the class.
IMPORTING = {
    "bundle.toml": """
name = "checks"
version = "1.0.0"
slets = ["slets:check"]
[requires]
bundles = ["marks>=1"]
""",
    "slets.py": f"""
from dataclasses import field
from exop import Memento, slet
from marks.slets import Number
{COMPARE}""",
}
#: A class that opens only where its name is not in `SHUT`.
OPENS = """
from exop import Memento, Slet, input_port
from tests.hosts.updating import SHUT

class Last(Memento):
    number: int = 0
    wrong: int = 0

class Check(Slet, name="check"):
    last: Last
    unit: str = "x"

    def __enter__(self):
        if SHUT:
            raise OSError("no room")
        return self

    @input_port
    def item(self, item: int) -> int:
        self.last.wrong += item != self.last.number + 1
        self.last.number = item
        return item
"""
#: Not empty while the slets of `OPENS` do not open.
SHUT: list[str] = []
NODES = ("first", "second", "third")


def marks(folder: Path, version: int, slets: str = CHECK) -> Path:
    """A folder with a version of the bundle `marks`; the class of its items has a further field in each version."""
    offers = [f"slets:{one}" for one in ("make", "check") if f"def {one}(" in slets] or ["slets:Check"]
    text = f'name = "marks"\nversion = "{version}.0.0"\nslets = {offers}\n'
    fields = "".join(f"    f{number}: int = {number}\n" for number in range(version))
    slets = slets.replace("    value: int\n", f"    value: int\n{fields}")
    return write(folder / f"marks-{version}", {"bundle.toml": text, "slets.py": f"{slets}\nVERSION = {version}\n"})


def line(name: str, home: Platform, *, records: bool = False, **places: str) -> Mesh:
    """A durable application: numbers, and three nodes of the bundle behind each other, at home or at these places.

    With *records*, the numbers are items of a class of the bundle, and pass a slet that is not of it before each node;
    the second node is of the bundle, and those around it of one that imports the class.
    """
    app = Application(name, plugins=home.plugins)
    app.durable(every=0.2)
    before = app.add("numbers", endless)
    if records:
        before = app.add("make", "marks@1.0.0:make", item=before)
    for node in NODES:
        checks = "checks" if records and node != "second" else "marks"
        for name, slet in ((f"to_{node}", "stock:pass_on"), (node, f"{checks}@1.0.0:check"))[not records :]:
            on = app.on(places[name]) if name in places else app
            before = on.add(name, slet, item=before)
    return app.build()


class Hosts:
    """Platforms with state directories; the first one is the home, and has started the first version."""

    def __init__(self, folder: Path, stack: ExitStack, monkeypatch: Any, names: str = "ab", slets: str = CHECK) -> None:
        self.folder, self.stack, self._patch, self.slets = folder, stack, monkeypatch, slets
        self.all: dict[str, Platform] = {}
        self.network = Network()
        for name in names:
            self.back(name)
        self.a.bundles.start(self.a.bundles.install(marks(folder, 1, slets))["bundle"])
        if slets == RECORDS:
            self.a.bundles.start(self.a.bundles.install(write(folder / "checks", IMPORTING))["bundle"])

    @property
    def a(self) -> Platform:
        """The home."""
        return self.all["a"]

    def back(self, name: str) -> Platform:
        """Start a platform, also again; it is connected with the others."""
        one = self.stack.enter_context(platform(name, state=self.folder / name))
        self.all[name] = one
        self.network.away.discard(name)
        self.network.join(one)
        for other in self.all.values():
            if other is not one and name not in other.remoting.peers:
                one.remoting.connect(f"inproc:{other.name}")
            elif other is not one:
                other.remoting.connect(f"inproc:{name}")
        return one

    def slets_of(self, version: int) -> set[str]:
        """The slets of the nodes when the bundle has been updated to a version."""
        along = f"checks@1.0.0{f'+marks.{version}.0.0' if version > 1 else ''}:check"
        return {f"marks@{version}.0.0:check", *([along] if self.slets == RECORDS else [])}

    def update(self, version: int, slets: str = "", **how: Any) -> dict[str, Any]:
        """Update the bundle at the home."""
        return self.a.bundles.update(marks(self.folder, version, slets or self.slets), pause=PATIENCE, **how)

    def update_while(self, version: int, name: str, record: str, *, after: bool, plan_time: PlanTime) -> None:
        """Update the bundle while a platform dies at a record, and returns; a dead platform does nothing any more."""
        one, home = self.all[name], self.a
        death = Death(one, self.network, record, after=after)
        write_checkpoint = one._applications.store.checkpoints.write  # type: ignore[union-attr]
        withdraw, take_back = Supply.withdraw, home.bundles._take_back

        def written(snapshot: Any) -> int:
            if death.dead.is_set():
                raise StateError(f"{name} is dead")
            return write_checkpoint(snapshot)

        def withdrawn(self: Supply, *given: Any, **more: Any) -> None:
            if not death.dead.is_set() or self.name != name:
                withdraw(self, *given, **more)

        def taken_back(*given: Any) -> None:
            if not death.dead.is_set() or name != home.name:
                take_back(*given)

        one._applications.store.checkpoints.write = written  # type: ignore[union-attr, method-assign]
        home.bundles._take_back = taken_back  # type: ignore[method-assign]
        with self._patch.context() as patch, ThreadPoolExecutor(1) as pool:
            patch.setattr(Supply, "withdraw", withdrawn)
            patch.setattr(supply, "LEAVING", 0.0)
            outcome = pool.submit(self.update, version, timeout=PATIENCE)
            eventually(lambda: death.dead.is_set() or outcome.done(), f"{name} dies at {record}")
            plan_time.pass_deadlines()
            if "app" in home._hosts.homes:  # it has moved at least once
                await_no_host(home)
            with suppress(ExopError):
                outcome.result(PATIENCE)
        one.close()
        self.back(name)

    def agrees(self, name: str = "app") -> set[str]:
        """Wait until all runs again, and no number was lost or doubled; return the slets that the home knows.

        Each node runs where, and with the slet and the settings that, the home has it.
        """
        eventually(lambda: self.a.status(name)["state"] == "running", "running")
        for machines in (one._hosts.exchange.machines.get(name) for one in self.all.values()):
            eventually(lambda machines=machines: machines is None or machines.member.plan is None, "settled")
            eventually(lambda machines=machines: machines is None or machines.home.due is None, "settled everywhere")
        mesh = self.a.mesh(name)
        for node in (mesh.nodes[one] for one in NODES):
            there = self.all[node.host or "a"].deployment(name)
            component = there.components[node.name]
            known = node.slet.identity, dict(node.settings)
            runs = component.spec.identity, dict(there.mesh.nodes[node.name].settings)
            assert runs == known, f"{node.name} runs {runs}, and its home has {known}"
            seen = component.state.number
            eventually(
                lambda component=component, seen=seen: component.state.number > seen + 20, f"{node.name} goes on"
            )
            assert component.state.wrong == 0, f"{node.name} has lost or doubled {component.state.wrong}"
        return {mesh.nodes[node].slet.identity for node in NODES}

    def started(self) -> dict[str, list[str]]:
        """The started bundles of each platform."""
        return {
            name: [row["bundle"] for row in one.bundles.list() if row["state"] == "started"]
            for name, one in self.all.items()
        }
