"""The end of an application over hosts is not stored at some of them, until there is room: it is over once, whole.

A campaign lets finite streams reach sinks on any hosts, whose stores or sinks cannot write from a moment before the end
on. Each `wait` at the home raises, and names what is not written; platforms are started again between. When all hosts
can write, the next `wait` returns, every row is written once, and nothing starts again.
"""

from __future__ import annotations

import os
import random
import re
import sqlite3
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from exop import Application, slet
from exop.errors import LastCheckpointFailed, StateError
from exop.hosts.federation import Federation
from exop.model.meshes.mesh import Mesh
from exop.runtime.durable.database import Database
from exop.runtime.durable.store import Checkpoints
from exop.stock.sinks import WriteSqlite
from tests.change.tools import Position, plain, summing
from tests.hosts.moving import APP, Hosts, hosts
from tests.rig import PATIENCE, eventually, stress_seeds

HOSTS = ("h1", "h2")
#: The numbers of each source, and how many it may emit so far.
TO, RELEASED = 40, [0]
#: The hosts that cannot write, and which of their writes fail.
FULL: dict[str, str] = {}


@slet
def released(position: Position, *, tag: int = 0) -> Iterator[int | None]:
    """Emit the numbers that are released, each with a tag as its last digit."""
    while position.number < TO:
        if position.number < RELEASED[0]:
            position.number += 1
            yield position.number * 10 + tag
        else:
            yield None
            time.sleep(0.0005)


def no_room(patch: pytest.MonkeyPatch) -> None:
    """Let the writes of the hosts in `FULL` fail: of checkpoints, of all that is stored, or of sinks."""
    write, transaction, commit = Checkpoints.write, Database.transaction, WriteSqlite.commit_checkpoint

    def written(self: Checkpoints, snapshot: Any) -> int:
        if FULL.get(self._database.path.parent.name) == "checkpoints":
            raise StateError("no room")
        return write(self, snapshot)

    @contextmanager
    def changed(self: Database, *names: str, **how: Any) -> Iterator[Any]:
        if FULL.get(self.path.parent.name) == "everything":
            raise StateError("no room")
        with transaction(self, *names, **how) as connection:
            yield connection

    def committed(self: WriteSqlite, number: int) -> None:
        if FULL.get(Path(self.path).parent.name) == "sinks":
            raise OSError("no room")
        commit(self, number)

    patch.setattr(Checkpoints, "write", written)
    patch.setattr(Database, "transaction", changed)
    patch.setattr(WriteSqlite, "commit_checkpoint", committed)


class Ending:
    """One application whose end some hosts cannot store at first."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.chance, self.folder = random.Random(seed), folder
        self.sinks: dict[str, str] = {}
        self.history = list[str]()

    def mesh(self) -> Mesh:
        """Sources, each with a channel of any kind, at times a slet behind it, and sinks; everything at any host.

        Streams that met would wait for the checkpoints of the hosts, and not come to their end while these fail.
        """
        app, chance = Application(APP), self.chance
        app.durable(every=chance.choice((0.05, 3600.0, 3600.0)))
        for tag in range(chance.choice((1, 1, 2))):
            kind = chance.choice(("direct", "queue", "log"))
            rows = app.channel(f"rows{tag}", kind, host=None if kind == "direct" else chance.choice(HOSTS))
            app.on(chance.choice(HOSTS)).add(f"source{tag}", released, tag=tag, out=rows)
            if chance.random() < 0.6:
                rows = app.on(chance.choice(HOSTS)).add(f"between{tag}", chance.choice((plain, summing)), x=rows)
            for name in [f"sink{tag}{number}" for number in range(chance.randint(1, 2))]:
                self.sinks[name] = host = chance.choice(HOSTS[not self.sinks :])  # the first one is not at home
                app.on(host).add(name, WriteSqlite, item=rows, path=self.path(name))
        return app.build()

    def path(self, name: str) -> Path:
        """The database of a sink, in a folder of its host."""
        (folder := self.folder / "rows" / self.sinks[name]).mkdir(parents=True, exist_ok=True)
        return folder / f"{name}.sqlite"

    def rows(self, name: str) -> list[int]:
        """What a sink has written, in this order."""
        with closing(sqlite3.connect(self.path(name))) as database:
            try:
                return [value for (value,) in database.execute("SELECT value FROM items ORDER BY rowid")]
            except sqlite3.OperationalError:  # the table is made for the first row
                return []

    def run(self, there: Hosts, stack: ExitStack) -> None:
        """Let the end fail, again and again, and then be stored."""
        chance, home = self.chance, there.home
        home.apply(mesh := self.mesh())
        self.history.append(mesh.to_toml())
        used = sorted({host for node in mesh.nodes.values() if (host := node.host or "h1")})
        RELEASED[0] = chance.randint(0, TO - 1)
        for _ in range(chance.randint(0, 2)):
            time.sleep(chance.choice((0.0, 0.02)))
            home.checkpoint(APP)
        for host in chance.sample(used, chance.randint(1, len(used))):
            FULL[host] = chance.choice(("checkpoints", "everything", *["sinks"] * (host in self.sinks.values())))
        self.history.append(f"from {RELEASED[0]} on, these cannot write: {FULL}")
        RELEASED[0] = TO
        while FULL:
            self.fails(there)
            if chance.random() < 0.3:
                self.restart(there, stack, chance.choice(HOSTS))
            elif chance.random() < 0.6:
                self.history.append(f"room on {FULL.popitem()}")
        self.ended(there, stack)

    def fails(self, there: Hosts) -> None:
        """Wait at the home: it raises, and names what is not written."""
        with pytest.raises(LastCheckpointFailed) as raised:
            there.home.wait(APP, PATIENCE)
        self.history.append(f"{FULL}: {raised.value}")
        assert "no room" in str(raised.value)
        for name, host in self.sinks.items():
            left = TO - len(self.rows(name))
            (said,) = re.findall(rf"(\d+) items? of {name}\b", str(raised.value)) or ["0"]
            assert int(said) == left, f"{name} on {host} has not written {left}"
            assert host not in FULL or left, f"{name} on {host} has written all"

    def restart(self, there: Hosts, stack: ExitStack, name: str) -> None:
        """Close a platform, and start it again; so much it can write."""
        self.history.append(f"restart {name}")
        there.platforms[name].close()
        if FULL.get(name) == "everything":
            FULL[name] = "checkpoints"
        there.back(name, stack)

    def ended(self, there: Hosts, stack: ExitStack) -> None:
        """Each row is written once, in order; so it is when all platforms have started again, at the end."""
        for again in (False, True):
            for name in HOSTS if again else ():
                self.restart(there, stack, name)
            assert there.home.wait(APP, PATIENCE), "the end"
            for name, one in there.platforms.items():
                found = one._applications.deployed.get(APP)
                eventually(lambda found=found: found is None or found.finished.is_set(), f"{name} is at the end")
            assert "unwritten" not in there.home.status(APP).get("checkpoints", {})
            for name in self.sinks:
                assert self.rows(name) == [number * 10 + int(name[-2]) for number in range(1, TO + 1)], name


def campaign(folder: Path, seed: int, patch: pytest.MonkeyPatch) -> None:
    """Make and check one application."""
    ending = Ending(folder, seed)
    FULL.clear()
    RELEASED[0] = 0
    with patch.context() as context, ExitStack() as stack:
        no_room(context)
        try:
            ending.run(stack.enter_context(hosts(*HOSTS, slets=(released, WriteSqlite), state=folder / "state")), stack)
        except BaseException as problem:
            problem.add_note("\n".join([f"EXOP_STRESS=1:{seed}", *ending.history]))
            raise
        finally:
            FULL.clear()


@pytest.mark.parametrize("seed", [0])
def test_any_failed_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """It is named by each `wait`, and stored by the first one for which all hosts can write."""
    campaign(tmp_path, seed, monkeypatch)


@pytest.mark.skipif("EXOP_STRESS" not in os.environ, reason="a long campaign: EXOP_STRESS=SECONDS[:SEED]")
@pytest.mark.timeout(0)
def test_any_failed_end_for_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same with as many seeds as the time allows."""
    for seed in stress_seeds():
        campaign(tmp_path / str(seed), seed, monkeypatch)


def untold(patch: pytest.MonkeyPatch) -> None:
    """The sinks of other hosts are not named."""
    patch.setattr(Federation, "_unwritten", lambda *_: {})


def test_planted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A message that names less than what is not written is found."""
    untold(monkeypatch)
    with pytest.raises(AssertionError, match="has not written"):
        campaign(tmp_path, 0, monkeypatch)
