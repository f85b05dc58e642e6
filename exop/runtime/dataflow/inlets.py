"""Inlets: unfinished work in front of the place where it goes on, done by the driver that runs that place.

The running stream bypasses the inlets: compiled code calls what follows it directly. An inlet fills when a driver goes
back to its safe point with calls still to be made, or when another thread posts work for the place. A driver enters
compiled code from its loop only while all inlets that it runs are empty, so work in front is always the oldest.
"""

from __future__ import annotations

import itertools
import threading
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Protocol, TypeAlias

from exop.model.items import CONTROL
from exop.runtime.dataflow.entry import Entry, InFlight


class Runner(Protocol):
    """A driver, as far as inlets know it."""

    name: str
    held_by: str | None

    def prompt(self) -> None:
        """Make the driver look into its inlets as soon as possible; any thread may call this."""


#: The drivers that are parked; `None`: all of the application.
Parked: TypeAlias = "Collection[Runner] | None"


class Inlet:
    """The work in front of one place, in order.

    Attributes:
        runner: The driver that runs the place, and takes from the inlet; others only append.
        items: The work, with rising stamps.
    """

    __slots__ = ("items", "runner")

    def __init__(self, runner: Runner) -> None:
        self.runner = runner
        self.items: deque[InFlight] = deque()


class Inlets:
    """The inlets of one application, by place; one for each driver holds work that leads to no place.

    The stamps on the work of one driver give the order in which it would have gone on, across its inlets. Stamps of two
    drivers cannot be compared: work that comes together from several is ordered by how far downstream it is.

    Attributes:
        entries: The compiled entry at each place.
        runner: Returns the driver that runs a place.
    """

    def __init__(self) -> None:
        self.entries: Mapping[str, Entry] = {}
        self.runner: Callable[[str], Runner | None] = lambda endpoint: None
        self._inlets: dict[str | Runner, Inlet] = {}
        self._by_runner: dict[Runner, dict[str | Runner, Inlet]] = {}
        self._in_front, self._behind = itertools.count(-1, -1), itertools.count()  # the stamps
        self._lock = threading.RLock()

    def first(self, driver: Runner) -> Inlet | None:
        """Return the inlet whose first item is the next thing that *driver* has to do."""
        filled = [one for one in self._run_by(driver) if one.items]
        return min(filled, key=lambda one: one.items[0].stamp, default=None)

    def filled(self, driver: Runner) -> bool:
        """Whether *driver* has anything to do; any thread may ask."""
        return any(one.items for one in self._run_by(driver))

    def waiting(self, drivers: Parked = None) -> list[tuple[Runner, InFlight]]:
        """Return all work, or that of these drivers, in order, with its driver; they are parked."""
        runners = [runner for runner in list(self._by_runner) if drivers is None or runner in drivers]
        return [(runner, work) for runner in runners for work in self._of(runner)]

    def at(self, endpoint: str) -> list[InFlight]:
        """Return the work in front of a place; it may change meanwhile."""
        inlet = self._inlets.get(endpoint)
        while inlet is not None:
            try:
                return list(inlet.items)
            except RuntimeError:  # it has changed while it was read
                continue
        return []

    def keep(self, driver: Runner, left: Iterable[InFlight]) -> None:
        """Put the calls that *driver* has still to make, in order, before all that waits with it."""
        for leaf in reversed([leaf for work in left for leaf in _leaves(work)]):
            self._inlet(driver, leaf).items.appendleft(replace(leaf, stamp=next(self._in_front)))

    def post(self, given: Iterable[InFlight], *, first: bool = False) -> None:
        """Have each thing done by the driver that runs its place, behind all that waits with it, or before that.

        Each goes to where it leads now; it is dropped where that place, and all that stood behind it, is gone.
        """
        with self._lock:
            found = [leaf for work in given for leaf in self._current(work)]
            for work in reversed(found) if first else found:
                runner = self.runner(work.entry.endpoint)
                if runner is None:
                    continue
                items = self._inlet(runner, work).items
                if first:
                    items.appendleft(replace(work, stamp=next(self._in_front)))
                else:
                    items.append(replace(work, stamp=next(self._behind)))
                runner.prompt()

    def assign(self, depth: Callable[[str], float], leaving: Collection[Runner] = (), drivers: Parked = None) -> None:
        """Give the work of *drivers*, which are parked, to the drivers that run its places now; everything is bound.

        Args:
            depth: How far downstream a place is, in direct calls.
            leaving: Drivers that do nothing more.
            drivers: All that have run a place of which the driver is another one now; `None`: all of the application.
        """
        with self._lock:
            given: dict[Runner, list[tuple[Runner, InFlight]]] = {}
            for giver, work in self.waiting(drivers):
                for leaf in self._current(work):
                    runner = self.runner(leaf.entry.endpoint) if leaf.entry.endpoint else giver
                    if runner is not None and runner not in leaving:
                        given.setdefault(runner, []).append((giver, leaf))
            for endpoint, inlet in list(self._inlets.items()):
                if drivers is None or inlet.runner in drivers:
                    del self._inlets[endpoint]
                    self._by_runner.pop(inlet.runner, None)
            for runner, found in given.items():
                givers = {giver for giver, _ in found}
                if len(givers) > 1:
                    found.sort(key=lambda pair: depth(pair[1].entry.endpoint), reverse=True)
                for _, work in found:
                    self._inlet(runner, work).items.append(replace(work, stamp=next(self._behind)))
                if givers != {runner}:
                    runner.prompt()

    def put_in_order(self, depth: Callable[[str], float], driver: Runner) -> None:
        """Order the work of *driver*, which is parked: what is farther downstream left its source earlier."""
        with self._lock:
            found = sorted(self._of(driver), key=lambda work: depth(work.entry.endpoint), reverse=True)
            for inlet in self._run_by(driver):
                inlet.items.clear()
            for work in found:
                self._inlet(driver, work).items.append(replace(work, stamp=next(self._behind)))

    def exchange(
        self, concerned: Callable[[str], bool], drivers: Collection[Runner], change: Callable[[Any], Any]
    ) -> None:
        """Apply *change* to every payload that waits for *drivers*, which are parked, at the places concerned."""
        for endpoint, inlet in list(self._inlets.items()):
            if inlet.runner in drivers and isinstance(endpoint, str) and concerned(endpoint):
                inlet.items = deque(replace(one, payload=change(one.payload)) for one in inlet.items)

    def drop_marks(self, endpoints: Collection[str]) -> None:
        """Drop the control items at these places: another stream comes there now."""
        for endpoint in endpoints:
            if (inlet := self._inlets.get(endpoint)) is not None:
                inlet.items = deque(one for one in inlet.items if not isinstance(one.payload, CONTROL))

    def _run_by(self, driver: Runner) -> list[Inlet]:
        return list(self._by_runner.get(driver, {}).values())

    def _of(self, driver: Runner) -> list[InFlight]:
        found = [work for one in self._run_by(driver) for work in list(one.items)]
        return sorted(found, key=lambda work: work.stamp)

    def _inlet(self, driver: Runner, work: InFlight) -> Inlet:
        endpoint = work.entry.endpoint or driver
        with self._lock:
            inlet = self._inlets.setdefault(endpoint, Inlet(driver))
            if inlet.runner is not driver:
                if inlet.items:
                    raise RuntimeError(f"{work.entry.endpoint} is run by {inlet.runner.name!r} and by {driver.name!r}")
                self._by_runner[inlet.runner].pop(endpoint)
                inlet.runner = driver
            self._by_runner.setdefault(driver, {})[endpoint] = inlet
        return inlet

    def _current(self, work: InFlight) -> Iterator[InFlight]:
        """The places where *work* leads now."""
        endpoint, entry = work.entry.endpoint, work.entry
        if endpoint and endpoint not in self.entries:
            behind = () if isinstance(work.payload, CONTROL) else (*entry.targets, *entry.behind)
            for one in behind:
                yield from self._current(replace(work, entry=one))
            if behind or entry.store is None:
                return
        yield from _leaves(replace(work, entry=self.entries.get(endpoint, entry)))


def _leaves(work: InFlight) -> Iterator[InFlight]:
    """Resolve a fan-out into its targets, in the order of the calls; a queue stores its share now, full or not.

    Several drivers may run a fan-out, and push into a queue; every other place has one runner.
    """
    entry = work.entry
    if work.wait is None and entry.store is not None:
        entry.store(work.method, work.payload)
    elif work.wait is None and entry.targets:
        for target in entry.targets:
            yield from _leaves(replace(work, entry=target))
    else:
        yield work
