"""Does a platform in a damaged state directory put out what it should, or refuse by name: never anything else?"""

from __future__ import annotations

import os
import random
import shutil
import sqlite3
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import cache
from pathlib import Path
from typing import Annotated, Any

from bench import durable_app
from bench.cases import carry_out
from bench.durable_app import STEP, either, keyed, numbers, totals
from bench.durable_app.engine import Doubled, Summed
from bench.harness import Result
from bench.kills import life
from exop import Application, EndOfStream, Platform, Punctuation
from exop.errors import ComponentFailed, ExopError, StateError
from exop.hooks import Plugins
from exop.runtime.log.disk import DiskLog
from exop.runtime.log.memory import flat

NAME = "damaged"
#: How many state directories are damaged in turn, each left behind by two kills.
DIRECTORIES = 3
#: The points at which the process is killed: around a transaction, an engine's commit, an append to a log, and between.
POINTS = (
    "checkpoint-writing",
    "generation-written",
    "generation-committed",
    "checkpoint-committed",
    "checkpoint-put-out",
    "engine-commit-before",
    "engine-commit-after",
    "log-append-half",
)
#: A bundle that is installed and started, for its files to be damaged, too.
BUNDLE = {
    "bundle.toml": 'name = "passing"\nversion = "1.0.0"\nslets = ["slets:passes"]\n',
    "slets.py": "from exop import slet\n\n\n@slet\ndef passes(number: int) -> int:\n    return number\n",
}
#: No run lasts longer, in seconds.
PATIENCE = 60.0
#: Texts that count as no message: the words of an unforeseen error.
UNFORESEEN = ("a defect", "Traceback", "AssertionError", "KeyError", "IndexError", "TypeError", "ValueError")


def measure(
    *,
    runs: Annotated[int, "how many cases"] = 500,
    seed: Annotated[int, "another seed is another campaign"] = 0,
    record: Annotated[
        Path | None, "a file with one line for each case; a second run goes on behind the last one"
    ] = None,
    only: Annotated[int | None, "run this one case"] = None,
) -> Iterator[Result]:
    """Damage, start, run to the end, compare; count the outcomes."""
    yield from carry_out("damage", damaged_directory, runs=runs, seed=seed, record=record, only=only)


def damaged_directory(chance: random.Random) -> str:
    """One damage to one file of a state directory; what happened then, in two or three words."""
    kept = _left_behind(chance.randrange(DIRECTORIES))
    folder = _folder()
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(kept / "newer", folder)
    what = _damage(chance, folder / "state", kept / "older" / "state")
    before = _contents(folder / "state")
    try:
        found = _run(folder, what)
        if found is None:
            assert _output(folder) == _undisturbed(), f"{what}: other output"
            return _of_log(folder, what)
        _check_refusal(what, found)
        return "the application refused by name"
    except StateError as problem:
        _check_refusal(what, problem)
        if "nothing was changed" in str(problem):
            assert _contents(folder / "state") == before, f"{what}: refused, and changed"
        return "the directory refused by name"


def application(folder: Path, plugins: Plugins) -> Application:
    """A slet of a bundle, a log, a queue, engines that commit by themselves, sinks of files and of tables."""
    app = Application(NAME, plugins=plugins)
    app.durable(every=0.01)
    stream = app.add("numbers", numbers, to=6000, pace=0.02)
    kept = app.channel("kept", kind="log", keep="all", segment=2**14)
    app.add("keep", "passing@1.0.0:passes", number=stream, out=kept)
    lines = {
        "keyed": app.add("keyed", keyed, number=stream, out=app.channel("sums", kind="queue", capacity=50)),
        "logged": app.add("logged", either, item=kept),
        "doubled": app.add("doubled", Doubled, number=stream),
    }
    for name, found in lines.items():
        app.add(f"write-{name}", "stock:write_lines", item=found, path=folder / name)
    rows = {"summed": app.add("engine", Summed, number=stream), "totals": app.add("totals", totals, number=stream)}
    for name, found in rows.items():
        app.add(f"write-{name}", "stock:write_sqlite", item=found, path=folder / f"{name}.sqlite")
    return app


def platform(folder: Path) -> Platform:
    """A platform in the state directory, which knows the slets."""
    plugins = Plugins()
    plugins.discover()
    plugins.register("durable_app", durable_app)
    return Platform(state=folder / "state", control=False, plugins=plugins)


def live(folder: Path) -> None:
    """Start the application, or let it go on, and wait for its end: unless this process is killed before."""
    with platform(folder) as running:
        begun = (folder / "keyed").exists()  # if it has ended since, it is not run once more: its rows would be doubled
        if NAME not in running.applications() and not begun:
            source = folder / "source"
            source.mkdir(exist_ok=True)
            for name, text in BUNDLE.items():
                (source / name).write_text(text)
            if not running.bundles.states():
                running.bundles.install(source)
            running.bundles.start("passing")
            running.apply(application(folder, running.plugins).build())
        if NAME in running.applications():
            running.wait(NAME, PATIENCE)


def _run(folder: Path, what: str = "undamaged") -> ExopError | None:
    """Go on to the end; returns why the application could not, by name."""
    with platform(folder) as running:
        if NAME in running.failed_to_restart:
            return running.failed_to_restart[NAME]
        if NAME in running.applications():
            try:
                assert running.wait(NAME, PATIENCE), f"{what}: it hangs"
            except ComponentFailed as problem:
                return problem
    return None


def _check_refusal(what: str, problem: ExopError) -> None:
    told = str(problem)
    assert not any(word in told for word in UNFORESEEN), f"{what}: {told}"
    places = (str(_folder()), NAME, "could not be loaded: passing@1.0.0: ")
    assert any(place in told for place in places), f"{what}: {told} names no place"


def _damage(chance: random.Random, state: Path, older: Path) -> str:
    """Do one damage; returns what it was."""
    if chance.random() < 0.03:
        shutil.rmtree(state)
        shutil.copytree(older, state)
        return "everything replaced by an older copy"
    files = sorted(path for path in state.rglob("*") if path.is_file() and path.name != "lock")
    central = [path for path in files if path.parent == state]
    path = chance.choice(central if chance.random() < 0.5 else files)
    size = path.stat().st_size
    there = older / path.relative_to(state)
    ways: dict[str, Callable[[], Any]] = {"deleted": path.unlink, "emptied": lambda: os.truncate(path, 0)}
    if size:
        place, cut = chance.randrange(size * 8), chance.randrange(size)
        ways |= {
            f"bit {place} flipped": lambda: _flip(path, place),
            f"cut off at {cut}": lambda: os.truncate(path, cut),
        }
    if there.exists() and there.read_bytes() != path.read_bytes():
        ways["replaced by an older copy"] = lambda: shutil.copy(there, path)
    how = chance.choice(sorted(ways))
    ways[how]()
    return f"{path.relative_to(state)} ({size} bytes) {how}"


def _flip(path: Path, place: int) -> None:
    data = bytearray(path.read_bytes())
    data[place // 8] ^= 1 << place % 8
    path.write_bytes(data)


@cache
def _folder() -> Path:
    """Return the folder in which all lives run: the settings of sinks contain it."""
    return Path(_temporary().name) / "folder"


@cache
def _temporary() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="exop-damage-")


@cache
def _undisturbed() -> dict[str, Any]:
    """The output of a run that nothing happened to."""
    shutil.rmtree(_folder(), ignore_errors=True)
    _folder().mkdir()
    live(_folder())
    return _output(_folder())


@cache
def _left_behind(number: int) -> Path:
    """Two copies of a folder: after a kill, and after the second one of the same run."""
    chance = random.Random(number)
    wanted = _undisturbed()
    kept = Path(_temporary().name) / str(number)
    while not (kept / "newer").exists():
        shutil.rmtree(_folder(), ignore_errors=True)
        _folder().mkdir()
        for name in ("older", "newer"):
            if not _killed(chance):
                break
            shutil.rmtree(kept / name, ignore_errors=True)
            shutil.copytree(_folder(), kept / name)
    shutil.rmtree(_folder())
    shutil.copytree(kept / "newer", _folder())
    assert _run(_folder()) is None
    assert _output(_folder()) == wanted, "other output without any damage"
    return kept


def _killed(chance: random.Random) -> bool:
    """A life in a process of its own; whether it ended by its kill."""
    return life(__name__, [str(_folder())], failpoint=f"{chance.choice(POINTS)}:{chance.randint(5, 20)}")[0]


def _output(folder: Path) -> dict[str, Any]:
    """Every line, and every row of the tables, in their order."""
    found: dict[str, Any] = {name: (folder / name).read_text() for name in ("keyed", "logged", "doubled")}
    for name in ("summed", "totals"):
        with closing(sqlite3.connect(folder / f"{name}.sqlite")) as database:
            found[name] = database.execute("SELECT value FROM items ORDER BY rowid").fetchall()
    return found


def _of_log(folder: Path, what: str) -> str:
    """Check the events that a log has kept, control items too, including those that were not read afterwards."""
    (place,) = (folder / "state" / "channels").rglob("kept.channel")
    try:
        with closing(DiskLog(place)) as log:
            events = flat(log.events(log.start, log.position))
    except StateError as problem:
        _check_refusal(what, problem)
        return "same output, the log refused by name"
    wanted: list[Any] = [int(line) for line in _undisturbed()["logged"].split()]
    for number in range(len(wanted) // STEP * STEP, 0, -STEP):
        wanted.insert(number, Punctuation(number))
    assert events == [*wanted, EndOfStream()], f"{what}: other events in the log"
    return "same output"


def _contents(state: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(state)): path.read_bytes()
        for path in state.rglob("*")
        if path.is_file() and path.name != "lock"
    }


if __name__ == "__main__":
    live(Path(sys.argv[1]))
