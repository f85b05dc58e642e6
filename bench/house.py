"""How large is the code, and how far does one request walk through it: calls, modules, and switches between modules?"""

from __future__ import annotations

import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from types import FrameType
from typing import Any, Final, TypeAlias

import grimp

import exop
from bench.harness import Result
from exop import Application, Memento, Platform, hookimpl, slet
from exop.hooks import Plugins
from exop.model.meshes.mesh import Mesh

#: Makes what is carried out for the first, second, … time.
Request: TypeAlias = Callable[[int], Callable[[], object]]
Condition: TypeAlias = Callable[[], bool]
#: Each request is carried out so many times.
TIMES: Final = 5
#: A module with a single importer and fewer lines than this belongs into its importer.
SHORT: Final = 60
#: The folder of the code that is looked at.
CODE: Final = Path(exop.__file__).parent
#: The source is asked for a number (`True`), or to come to its safe point; the stream stands still otherwise.
ASKED: Final[SimpleQueue[bool]] = SimpleQueue()
#: The numbers that have come to the sink.
ARRIVED: Final[SimpleQueue[int]] = SimpleQueue()


class Total(Memento):
    """The sum so far: the state that a successor takes over."""

    total: int = 0


class Position(Memento):
    """How far the source has come."""

    number: int = 0


@slet
def numbers(position: Position) -> Iterator[int | None]:
    """Emit a number when one is asked for."""
    while True:
        if ASKED.get():
            position.number += 1
            yield position.number
        else:
            yield None


@slet
def first(number: int, total: Total) -> int:
    """Add up."""
    total.total += number
    return number


@slet
def second(number: int, total: Total) -> int:
    """Add up, in other words: what `first` is replaced by."""
    total.total = total.total + number
    return number


@slet
def seen(number: int) -> None:
    """Tell the one who asks that the item has arrived."""
    ARRIVED.put(number)


class _Slets:
    """The slets of the measured application, as a plugin: a durable application has to find them again."""

    @staticmethod
    @hookimpl
    def register_slets() -> list[Any]:
        """All four."""
        return [numbers, first, second, seen]


@dataclass
class Walk:
    """The calls of functions of ours, in all threads, while it is watched.

    Attributes:
        calls: How many there were.
        switches: How many of them came from another module of ours.
        modules: How often each module was called.
    """

    watched: bool = False
    calls: int = 0
    switches: int = 0
    modules: Counter[str] = field(default_factory=Counter)

    def see(self, frame: FrameType, event: str, _: object) -> None:
        """Count one call; installed as the profile function of every thread."""
        if not self.watched or event != "call":
            return
        module = _module(frame)
        if module is None:
            return
        caller = frame.f_back
        while caller is not None and _module(caller) is None:
            caller = caller.f_back
        self.calls += 1
        self.switches += caller is not None and _module(caller) != module
        self.modules[module] += 1

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Count what is called while the block runs."""
        self.watched, self.calls, self.switches = True, 0, 0
        self.modules.clear()
        try:
            yield
        finally:
            self.watched = False

    def results(self, name: str) -> Iterator[Result]:
        """The three figures of what was watched last."""
        yield Result(f"house/{name}/calls", self.calls, "calls")
        yield Result(f"house/{name}/modules", len(self.modules), "modules")
        yield Result(f"house/{name}/switches", self.switches, "switches")


def measure() -> Iterator[Result]:
    """Count lines and modules, then trace an item, a replacement and a checkpoint of a small durable application."""
    yield from sizes()
    yield from walks()


def sizes() -> Iterator[Result]:
    """Lines, modules and folders of all the code; lines of each package and of the tests; import circles."""
    lines = {path.relative_to(CODE).as_posix(): _lines(path) for path in sorted(CODE.rglob("*.py"))}
    packages = Counter[str]()
    for name, number in lines.items():
        packages[name.partition("/")[0] if "/" in name else "(top)"] += number
    yield Result("house/lines", sum(lines.values()), "lines")
    for package, number in sorted(packages.items()):
        yield Result(f"house/lines/{package}", number, "lines")
    yield Result("house/tests", sum(map(_lines, (CODE.parent / "tests").rglob("*.py"))), "lines")
    yield Result("house/modules", len(lines), "modules")
    yield Result("house/modules/longest", max(lines.values()), "lines")
    folders = Counter(str(Path(name).parent) for name in lines)
    yield Result("house/folders", len(folders), "folders")
    yield Result("house/folders/largest", max(folders.values()), "modules")
    graph = imports()
    single = [name for name in lines if len(graph.find_modules_that_directly_import(_dotted(name))) == 1]
    yield Result("house/modules/one-importer", len(single), "modules")
    yield Result("house/modules/one-importer/short", sum(lines[name] < SHORT for name in single), "modules")
    found = circles(graph)
    yield Result("house/circles", len(found), "circles")
    yield Result("house/circles/largest", max(map(len, found), default=0), "modules")


def imports() -> grimp.ImportGraph:
    """All imports between our modules, those for type checking and inside of functions included.

    Without the root package: its names are imported on first use, and lead back to all floors.
    """
    graph = grimp.build_graph("exop", cache_dir=None)
    for importer in graph.find_modules_that_directly_import("exop"):
        graph.remove_import(importer=importer, imported="exop")
    return graph


def circles(graph: grimp.ImportGraph) -> list[set[str]]:
    """The sets of modules that all import each other, directly or through others of the set."""
    above = {module: graph.find_downstream_modules(module) for module in graph.modules}
    found = [{module, *(other for other in above[module] if module in above[other])} for module in graph.modules]
    return [set(one) for one in {frozenset(one) for one in found if len(one) > 1}]


def walks() -> Iterator[Result]:
    """Trace the ways through the code: drivers are traced from their start on, and counted while they are watched."""
    walk = Walk()
    threading.setprofile(walk.see)
    try:
        with Platform() as platform:
            platform.apply(_application(durable=False))
            for _ in range(100):  # beyond the first items, which are all measured
                _one_item()
            yield from traced(walk, "item", lambda _: _one_item)
            yield from traced(walk, "plan", lambda number: partial(platform.plan, _replaced(platform, number)))
            yield from traced(walk, "apply", partial(_applied, platform))
            carried_out(partial(platform.remove, "house"), lambda: True)
        plugins = Plugins()
        plugins.register("house", _Slets())
        with tempfile.TemporaryDirectory() as state, Platform(state=state, control=False, plugins=plugins) as platform:
            platform.apply(_application(durable=True))
            source = platform.deployment("house").components["numbers"].driver
            closed = partial(getattr, source, "closed")
            yield from traced(walk, "checkpoint", lambda _: lambda: platform.checkpoint("house"), closed)
            yield from traced(walk, "memento", lambda _: partial(platform.memento, "house", "first"))
            yield from traced(walk, "apply/durable", partial(_applied, platform), closed)
            carried_out(partial(platform.remove, "house"), lambda: True)
    finally:
        threading.setprofile(None)


def _replaced(platform: Platform, number: int) -> Mesh:
    return platform.mesh("house").replace("first", (second, first)[number % 2])


def _applied(platform: Platform, number: int) -> Callable[[], object]:
    return platform.plan(_replaced(platform, number)).apply


def traced(walk: Walk, name: str, request: Request, until: Condition | None = None) -> Iterator[Result]:
    """Carry out a request several times, each in a thread of its own; report the time with the fewest calls.

    The calls of all threads are counted, those of drivers too; what else runs beside them (samplers) adds to some of
    the times. *request* makes what is carried out, uncounted; *until* is that of `carried_out`.
    """
    least: Walk | None = None
    for number in range(TIMES):
        carry_out = request(number)
        with walk.watching():
            carried_out(carry_out, until)
        if least is None or walk.calls < least.calls:
            least = replace(walk, modules=walk.modules.copy())
    assert least is not None
    yield from least.results(name)


def carried_out(request: Callable[[], object], until: Condition | None = None) -> None:
    """Carry out a request in a thread; while *until* holds the source is asked to come to its safe point."""
    thread = threading.Thread(target=request)
    thread.start()
    while thread.is_alive():
        thread.join(0.01)
        if until is not None and until():
            ASKED.put(False)


def _application(*, durable: bool) -> Mesh:
    app = Application("house")
    if durable:
        app.durable(every=3600.0)
    queue = app.channel("queue", kind="queue")
    app.add("first", first, number=app.add("numbers", numbers), out=queue)
    app.add("seen", seen, number=app.add("last", second, number=queue))
    return app.build()


def _one_item() -> None:
    ASKED.put(True)
    ARRIVED.get()


def _module(frame: FrameType) -> str | None:
    name = frame.f_globals.get("__name__", "")
    return name if name.partition(".")[0] == "exop" else None


def _lines(path: Path) -> int:
    return len(path.read_text("utf-8").splitlines())


def _dotted(name: str) -> str:
    return f"exop/{name}".removesuffix(".py").removesuffix("/__init__").replace("/", ".")
