"""Exceptions that are hostile objects: under every policy, no slet of any kind ends a driver, loses or doubles an item.

`python -m bench exceptions --runs 1000 --record FILE`: each case runs a small application in which one slet raises a
hostile exception for one item. It looks at the status and the failed item, repairs what is suspended, by a replacement
or by `resume`, and compares all that has come out with what the policy promises. One case in eight lets the handling of
the exception fail, too, as for a lack of memory: the item may come twice then, a window may not, and neither is lost.
"""

from __future__ import annotations

import json
import random
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final, NoReturn

from bench.cases import carry_out
from bench.harness import Result
from exop import Application, InputPort, Memento, OutputPort, Platform, Slet, hookimpl, input_port, slet
from exop.cli.status_text import as_text
from exop.hooks import Plugins
from exop.model.meshes.mesh import Mesh
from exop.model.slets.slet import spec_of
from exop.model.slets.spec import POLICIES, Policy, SletSpec
from exop.runtime.dataflow.entry import Unwind
from exop.runtime.drivers.base import Driver, current_driver
from exop.runtime.supervision import failure_policy as failure
from exop.safe_repr import add_note

LAST, SIZE = 12, 3
#: How long a condition may take to come about, in seconds.
PATIENCE = 20.0
BACK_OFF = 0.0005


def _refuse(*_: Any, **__: Any) -> NoReturn:
    """Stands for any method of a hostile class."""
    raise SystemExit("refused")


@dataclass(frozen=True)
class Frozen(Exception):
    """Takes no attribute."""

    reason: str = "no"


class Numbered(Exception):
    """Its notes are none."""

    __notes__ = 5  # type: ignore[assignment]


_METHODS: Final = [
    "__getattribute__",
    "__setattr__",
    "__str__",
    "__repr__",
    "__eq__",
    "__ne__",
    "__bool__",
    "__format__",
]
_METHODS.extend(["__reduce__", "__reduce_ex__", "with_traceback", "add_note"])
Closed: Final = type("Closed", (Exception,), {**dict.fromkeys(_METHODS, _refuse), "__hash__": None})
Meta: Final = type("Meta", (type,), dict.fromkeys(["__getattribute__", "__instancecheck__"], _refuse))
Odd: Final = type.__call__(Meta, "Odd", (Exception,), {})
Text: Final = type("Text", (str,), dict.fromkeys(["__len__", "__getitem__", "__format__", "__str__"], _refuse))
Worded: Final = type("Worded", (Exception,), {"__str__": lambda _: Text("words")})
Disguised: Final = type("Disguised", (Exception,), {"__class__": property(lambda _: Unwind)})


def _chained() -> BaseException:
    """A long chain of causes."""
    error = ValueError("first")
    for number in range(5000):
        later = ValueError(str(number))
        later.__cause__, error = error, later
    return error


def _circle() -> BaseException:
    """Two exceptions that have caused each other."""
    one, other = ValueError("one"), ValueError("other")
    one.__cause__, other.__cause__, one.__context__ = other, one, one
    return one


def _nested() -> BaseException:
    """Groups within groups, deeper than Python recurses."""
    error: Exception = ValueError("innermost")
    for _ in range(3 * sys.getrecursionlimit()):
        error = ExceptionGroup("group", [error])
    return error


def _with_notes() -> BaseException:
    error = ValueError("no")
    error.__notes__ = 7  # type: ignore[assignment]
    return error


HOSTILE: Final[dict[str, Callable[[], BaseException]]] = {
    "frozen": Frozen,
    "notes-of-the-class": Numbered,
    "notes-that-are-none": _with_notes,
    "closed": Closed,
    "odd-class": lambda: type.__call__(Odd, "no"),
    "hostile-text": Worded,
    "disguised": Disguised,
    "chain": _chained,
    "circle": _circle,
    "nested-groups": _nested,
    "huge-group": lambda: ExceptionGroup("group", [ValueError(number) for number in range(20_000)]),
    "base-group": lambda: BaseExceptionGroup("group", [SystemExit(3), KeyboardInterrupt()]),
    "huge-text": lambda: ValueError("x" * 3_000_000),
    "control-characters": lambda: ValueError("\x1b[2J\r\n12:00:00 [info] forged"),
    "strange-name": lambda: type("\x1b[2J" * 1000, (Exception,), {})("no"),
    "system-exit": lambda: SystemExit(3),
    "interrupt": KeyboardInterrupt,
    "generator-exit": GeneratorExit,
    "stop-iteration": lambda: StopIteration(5),
    "no-memory": MemoryError,
    "recursion": RecursionError,
}


class Fault:
    """Raises one kind of exception for one item, so many times."""

    def __init__(self, poison: int, times: int, make: Callable[[], BaseException]) -> None:
        self.poison, self.left, self.make = poison, times, make

    def __call__(self, *items: int) -> None:
        """Look at what comes."""
        if self.poison in items and self.left:
            self.left -= 1
            raise self.make()


class Position(Memento):
    """The position of the source."""

    number: int = 0


class Seen(Memento):
    """The items that the sink has received."""

    items: list[int] = field(default_factory=list)


def _source(fault: Fault, policy: Policy) -> Any:
    @slet(on_error=policy)
    def made(position: Position) -> Iterator[int]:
        while position.number < LAST:
            fault(position.number + 1)
            position.number += 1
            yield position.number

    return made


def _function(fault: Fault, policy: Policy) -> Any:
    @slet(on_error=policy)
    def made(x: int) -> int:
        fault(x)
        return x

    return made


def _generator(fault: Fault, policy: Policy) -> Any:
    @slet(on_error=policy)
    def made(x: int) -> Iterator[int]:
        yield x
        fault(x)
        yield -x

    return made


def _two_ports(fault: Fault, policy: Policy) -> Any:
    class Made(Slet, on_error=policy):
        further: OutputPort[int]

        @input_port
        def x(self, item: int) -> int:
            self.further.push(-item)
            fault(item)
            return item

        @input_port
        def y(self, item: int) -> int:
            return item + 100

    return Made


def _pulling(fault: Fault, policy: Policy) -> Any:
    @slet(on_error=policy)
    def made(x: InputPort[int]) -> Iterator[int]:
        for item in x:
            fault(item)
            yield item

    return made


def _window(fault: Fault, policy: Policy) -> Any:
    @slet(on_error=policy)
    def made(x: list[int]) -> int:
        fault(*x)
        return sum(x)

    return made


def _sink(fault: Fault, policy: Policy) -> Any:
    @slet(on_error=policy)
    def made(item: int, seen: Seen) -> None:
        fault(item)
        seen.items.append(item)

    return made


#: Makes a slet; the items that fail with the poisonous one; and what leaves for one item, or one window.
KINDS: Final[dict[str, tuple[Callable[[Fault, Policy], Any], Callable[..., list[int]]]]] = {
    "source": (_source, lambda x: [x]),
    "function": (_function, lambda x: [x]),
    "generator": (_generator, lambda x: [x, -x]),
    "two-ports": (_two_ports, lambda x: [-x, x]),
    "pulling": (_pulling, lambda x: [x]),
    "window": (_window, lambda *x: [sum(x)]),
    "sink": (_sink, lambda x: [x]),
}


class Offered:
    """Slets as a plugin offers them: a durable application finds them again."""

    def __init__(self) -> None:
        self.slets: list[SletSpec] = []

    def add(self, made: Any, name: str) -> SletSpec:
        """Offer a slet by a name."""
        self.slets.append(replace(spec_of(made), name=name))
        return self.slets[-1]

    @hookimpl
    def register_slets(self) -> list[SletSpec]:
        """All of them."""
        return self.slets


@dataclass
class Case:
    """One application with one slet that raises."""

    chance: random.Random

    def __post_init__(self) -> None:
        pick: Callable[[Any], Any] = self.chance.choice
        self.kind, self.policy, self.name = pick([*KINDS]), pick(POLICIES), pick([*HOSTILE])
        self.durable, self.injected = pick([True, False]), pick([None] * 14 + ["noting", "driver"])
        self.poison = self.chance.randint(1, LAST)
        times = self.chance.choice([1, 2, 3, 100]) if self.policy == "retry" else 1
        if self.injected == "driver":
            self.policy, times = "suspend", 1
        self.fault = Fault(self.poison, times, HOSTILE[self.name])
        self.suspends = self.policy == "suspend" or times > failure.TRIES
        if self.injected:
            self.suspends = self.suspends or self.policy != "retry" or self.kind in ("source", "pulling")
        self.offered = Offered()
        make, self.outputs = KINDS[self.kind]
        fine = partial(Fault, 0, 0, HOSTILE[self.name])
        parts = {kind: self.offered.add(KINDS[kind][0](fine(), "suspend"), kind) for kind in ("source", "sink")}
        parts["hostile"] = self.offered.add(make(self.fault, self.policy), "hostile")
        self.healthy = self.offered.add(make(fine(), self.policy), "healthy")
        self.mesh = self._mesh(parts)

    def _mesh(self, parts: dict[str, SletSpec]) -> Mesh:
        """A source, the slet, and a sink; two of the three where the slet is one of them."""
        app = Application("app")
        if self.durable:
            app.durable(every=3600)
        window: dict[str, Any] = {}
        if self.kind == "window":
            window["out"] = app.channel("window", "window", count=SIZE)
        came = app.add("node" if self.kind == "source" else "source", parts[self._as("source")], **window)
        if self.kind == "two-ports":
            both = app.channel("both")
            app.add("node", parts["hostile"], x=came, y=came, out=both, further=both)
            came = both
        elif self.kind not in ("source", "sink"):
            came = app.add("node", parts["hostile"], x=window.get("out", came))
        app.add("node" if self.kind == "sink" else "sink", parts[self._as("sink")], item=came)
        return app.build()

    def _as(self, kind: str) -> str:
        return "hostile" if self.kind == kind else kind

    def run(self) -> str:
        """Run to the end; returns how the exception was dealt with."""
        with (
            _quick(self.injected),
            tempfile.TemporaryDirectory() as folder,
            self._platform(Path(folder)) as platform,
        ):
            platform.apply(self.mesh)
            if self.suspends:
                self._repair(platform)
            assert platform.wait("app", PATIENCE), f"{self} does not end: {platform.status('app')}"
            self._compare(platform)
        return f"{self.policy}{f' injected {self.injected}' if self.injected else ''}"

    def _platform(self, folder: Path) -> Platform:
        plugins = Plugins()
        plugins.register("offered", self.offered)
        return Platform(state=folder if self.durable else None, control=False, plugins=plugins)

    def _repair(self, platform: Platform) -> None:
        """The slet is suspended with its item: look at it, and replace it, or resume it when the fault is over."""
        deployment, pause = platform.deployment("app"), threading.Event()
        for _ in range(int(PATIENCE * 1000)):
            if deployment.failures():
                break
            pause.wait(0.001)
        status = platform.status("app")
        assert status["state"] == "suspended", f"{self}: {status}"
        assert not {"\x1b", "\r"}.intersection("".join(as_text(status | {"platform": "here"})))
        (failed,) = deployment.failures()
        item = platform.kept_item("app", failed.node.name)
        assert item is not None, f"{self}: nothing is kept"
        json.dumps(item.summary())
        if self.durable:
            platform.checkpoint("app")
        if failed.node.name == "node" and self.chance.random() < 0.7:
            platform.apply(platform.mesh("app").replace("node", self.healthy))
        else:
            self.fault.left = 0
            platform.resume("app", failed.node.name)

    def _compare(self, platform: Platform) -> None:
        """Check that the output is what the policy promises."""
        sink = platform.deployment("app").components["node" if self.kind == "sink" else "sink"]
        assert isinstance(sink.state, Seen)
        found, expected = Counter(sink.state.items), Counter(self._expected())
        if self.injected == "driver" and self.kind != "window":
            assert found.keys() == expected.keys(), f"{self}: {found} instead of {expected}"
            return
        assert found == expected, f"{self}: {found} instead of {expected}"
        letters = platform.dead_letters("app", "node")
        assert len(letters) == (self.policy == "dead-letter" and not self.injected), f"{self}: {letters}"
        json.dumps([platform.status("app"), *(one.summary() for one in letters)])

    def _expected(self) -> Iterator[int]:
        left_out = self.policy in ("skip", "dead-letter") and not self.suspends
        if self.kind == "two-ports":
            yield from range(101, 101 + LAST)
        size = SIZE if self.kind == "window" else 1
        for first in range(1, LAST + 1, size):
            unit = range(first, first + size)
            if self.poison not in unit or not left_out:
                yield from self.outputs(*unit)
            elif self.kind == "source":  # there is nothing to leave out: its stream ends
                return

    def __str__(self) -> str:
        durable = ", durable" if self.durable else ""
        return f"{self.name} in {self.kind} under {self.policy}{durable}, for the item {self.poison} ({self.injected})"


@contextmanager
def _quick(injected: str | None) -> Iterator[None]:
    """Let further tries follow at once; *injected*, let the first handling of an exception fail: noting it, or all."""
    left = [MemoryError("injected")] * {"noting": 1, "driver": 2}.get(injected or "", 0)

    def note(error: BaseException, text: str) -> None:
        if left and injected == "noting":
            raise left.pop()
        add_note(error, text)

    def driver() -> Driver | None:
        if left and injected == "driver":
            raise left.pop()
        return current_driver()

    replaced = {"BACK_OFF": BACK_OFF, "add_note": note, "current_driver": driver}
    before = {name: getattr(failure, name) for name in replaced}
    vars(failure).update(replaced)
    try:
        yield
    finally:
        vars(failure).update(before)


def hostile_exception(chance: random.Random) -> str:
    """Run one case."""
    return Case(chance).run()


def measure(
    *,
    runs: Annotated[int, "how many cases"] = 1000,
    seed: Annotated[int, "of the random cases"] = 0,
    record: Annotated[Path | None, "a file of what has run: another call goes on there"] = None,
    only: Annotated[int | None, "run this case alone"] = None,
) -> Iterator[Result]:
    """Run the campaign."""
    yield from carry_out("exceptions", hostile_exception, runs=runs, seed=seed, record=record, only=only)
