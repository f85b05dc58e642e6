"""Ctrl-C at any moment of a change: the mesh is the old one or the new one, and no item is lost, doubled or reordered.

One case is an embedded platform that the main thread changes again and again, while SIGINT comes at random intervals of
0 to 20 ms, once or twice in a row, now and then so often that the change is left to its own thread. The main thread
must be the one that asks.
"""

from __future__ import annotations

import random
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Annotated, Any

from bench.cases import carry_out
from bench.harness import Result
from exop import Application, Memento, Platform, Slet, input_port, slet
from exop.errors import StaleMesh
from exop.model.meshes.mesh import ChannelSpec, Mesh

#: So many interrupts come in one case, all of them while a change is under way.
INTERRUPTS = 25
#: The longest interval between two interrupts, and the longest time that a slet takes to open, in seconds.
INTERVAL, OPENING = 0.02, 0.004
#: No application takes longer to come to its end, in seconds.
PATIENCE = 60.0


def measure(
    *,
    runs: Annotated[int, f"how many cases, with {INTERRUPTS} interrupts each"] = 200,
    seed: Annotated[int, "of the random choices"] = 0,
    record: Annotated[Path | None, "a file of the cases that were run: a second call goes on behind them"] = None,
    only: Annotated[int | None, "run this one case"] = None,
) -> Iterator[Result]:
    """Count the cases by how they ended; a failure is a broken promise."""
    yield from carry_out("interrupts", interrupted_changes, runs=runs, seed=seed, record=record, only=only)


class Count(Memento):
    """The number of items that have left."""

    number: int = 0


class Interrupts:
    """SIGINT for the main thread, at random intervals, raised only while it makes a change.

    Attributes:
        come: How many were raised.
        left: How many more may be raised in this change.
    """

    def __init__(self, chance: random.Random) -> None:
        self.come = self.left = 0
        self._chance = chance
        self._over = threading.Event()

    @contextmanager
    def coming(self) -> Iterator[None]:
        """Let them come while the block runs."""
        main = threading.current_thread().ident or 0
        before = signal.signal(signal.SIGINT, self._handle)
        thread = threading.Thread(target=self._send, args=(main,), name="bench interrupts")
        thread.start()
        try:
            yield
        finally:
            self._over.set()
            thread.join()
            signal.signal(signal.SIGINT, before)

    def disturb(self, change: Callable[[], Any], most: int) -> bool:
        """Make a change, during which up to *most* (3) interrupts are raised; returns whether it returned."""
        # One `try` for each: an interrupt may come just before the change begins, or when it is over.
        try:
            try:
                try:
                    self.left = most
                    change()
                    self.left = 0
                    return True
                except KeyboardInterrupt:
                    self.left = 0
            except KeyboardInterrupt:
                self.left = 0
        except KeyboardInterrupt:
            self.left = 0
        return False

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.left > 0:
            self.left -= 1
            self.come += 1
            raise KeyboardInterrupt

    def _send(self, main: int) -> None:
        while not self._over.wait(self._chance.random() * INTERVAL):
            signal.pthread_kill(main, signal.SIGINT)
            if self._chance.random() < 0.5:
                self._over.wait(self._chance.random() * 0.002)
                signal.pthread_kill(main, signal.SIGINT)


def interrupted_changes(chance: random.Random) -> str:
    """Change one application until enough interrupts have come; check what has arrived."""
    seen: list[int] = []
    beside: list[int] = []
    interrupts = Interrupts(random.Random(chance.random()))
    with Platform(control=False) as platform:
        platform.apply(_application(seen, beside).build())
        with interrupts.coming():
            while interrupts.come < INTERRUPTS:
                _change(platform, chance, interrupts)
        platform.end("numbers")
        assert platform.wait("numbers", PATIENCE), f"it does not come to its end: {platform.status('numbers')}"
    for name, got in (("sink", seen), ("beside", beside)):
        wrong = next((n for n, number in enumerate(got, 1) if n != number), None)
        assert wrong is None, f"{name}: {got[wrong - 3 : wrong + 3]} at {wrong} of {len(got)}"
    assert len(seen) == len(beside), f"{len(seen)} and {len(beside)} items have arrived"
    return f"{INTERRUPTS} interrupts"


def _change(platform: Platform, chance: random.Random, interrupts: Interrupts) -> None:
    """Make one change under interrupts: afterwards the mesh is the one of before, or the new one."""
    before = platform.mesh("numbers")
    after = _edited(before, chance)
    most = chance.choice((1, 2, 2, 3))
    try:
        whole = interrupts.disturb(lambda: platform.apply(after), most)
    except StaleMesh:  # a change that was left to its own thread has been made meanwhile
        return
    if most < 3:
        now = platform.mesh("numbers")
        assert now.revision == before.revision + 1 if whole else now.revision - before.revision in (0, 1), now.revision
        assert set(now.nodes) == set((after if now.revision > before.revision else before).nodes)


def _edited(mesh: Mesh, chance: random.Random) -> Mesh:
    """Another mesh that does the same."""
    kind = chance.choice(("source", "middle", "both", "swap"))
    if kind in ("source", "both"):
        mesh = mesh.replace("source", _source())
    if kind in ("middle", "both"):
        mesh = mesh.replace("middle", _middle(chance.random() * OPENING))
    if kind == "swap":
        name = f"c{mesh.revision}"
        mesh = mesh.replace("source", _source()).rewire("source", out=ChannelSpec(name))
        mesh = mesh.rewire("middle", item=name).rewire("beside", item=name)
    return mesh


def _application(seen: list[int], beside: list[int]) -> Application:
    """Numbers by a direct channel with two readers; behind one of them a queue."""

    @slet
    def sink(item: int) -> None:
        seen.append(item)

    @slet
    def looks(item: int) -> None:
        beside.append(item)

    app = Application("numbers")
    channel, queue = app.channel("c"), app.channel("q", kind="queue", capacity=8)
    app.add("source", _source(), out=channel)
    app.add("middle", _middle(0.0), item=channel, out=queue)
    app.add("sink", sink, item=queue)
    app.add("beside", looks, item=channel)
    return app


def _source() -> Any:
    @slet
    def numbers(count: Count) -> Iterator[int]:
        pause = threading.Event()
        while True:
            count.number += 1
            yield count.number
            if not count.number % 16:
                pause.wait(0.0005)

    return numbers


def _middle(seconds: float) -> Any:
    """A stateful slet that takes a while to open."""

    class Middle(Slet):
        count: Count

        def __enter__(self) -> Middle:
            threading.Event().wait(seconds)
            return self

        @input_port
        def item(self, item: int) -> int:
            """Count."""
            self.count.number += 1
            return item

    return Middle
