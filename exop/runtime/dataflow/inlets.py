"""Inlets: in-flight items wait in order before an endpoint, until the driver that runs the endpoint passes them on.

The running stream bypasses the inlets: compiled code calls the next entry directly. An inlet receives items when a
driver unwinds to its safe point with in-flight items, or when another thread posts an item. A driver enters compiled
code from its loop only while all of its inlets are empty, so that items in inlets are always the oldest.
"""

from __future__ import annotations

import itertools
import threading
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeAlias

from exop.model.items import CONTROL, EndOfStream
from exop.runtime.dataflow.entry import Entry, InFlight

if TYPE_CHECKING:
    from exop.runtime.drivers.base import Driver

#: The drivers that are parked; `None` for all drivers of the application.
Parked: TypeAlias = "Collection[Driver] | None"


class Inlets:
    """The inlets of one application, by endpoint; one inlet of each driver has the items that lead to no endpoint.

    The driver that runs an endpoint takes items from the inlet; other drivers only append.
    The stamps of the items of one driver give the order in which it would have passed them on, across all of its
    inlets. Stamps of two drivers cannot be compared: items of several drivers are ordered by their depth.

    Attributes:
        entries: The compiled entry at each endpoint.
        runner: Returns the driver that runs an endpoint.
        pushers: Returns the drivers that push into a queue; with what tells a sleeping driver, all that may fill it.
        kept_out: The drivers that wait for room in a queue.
    """

    def __init__(self) -> None:
        self.entries: Mapping[str, Entry] = {}
        self.runner: Callable[[str], Driver | None] = lambda endpoint: None
        self.pushers: Callable[..., Collection[Driver]] = lambda queue, tell=None: ()
        self.kept_out: set[Driver] = set()
        self._runners: dict[str | Driver, Driver] = {}
        self._inlets: dict[Driver, dict[str | Driver, deque[InFlight]]] = {}  # by runner and endpoint
        self._in_front, self._behind = itertools.count(-1, -1), itertools.count()  # the stamps
        self._lock = threading.RLock()

    def first(self, driver: Driver) -> deque[InFlight] | None:
        """Return the inlet whose first item *driver* passes on next."""
        return min(filter(None, self._run_by(driver)), key=lambda inlet: inlet[0].stamp, default=None)

    def filled(self, driver: Driver) -> bool:
        """Whether *driver* has in-flight items; any thread may call this."""
        return any(self._run_by(driver))

    def waiting(self, drivers: Parked = None) -> list[tuple[Driver, InFlight]]:
        """Return the in-flight items of *drivers*, which are parked, in order and each with its driver."""
        runners = [runner for runner in list(self._inlets) if drivers is None or runner in drivers]
        return [(runner, item) for runner in runners for item in self._of(runner)]

    def at(self, endpoint: str) -> list[InFlight]:
        """Return a snapshot of the items that wait before an endpoint. Other threads may change the inlet meanwhile."""
        runner = self._runners.get(endpoint)
        return list(self._inlets.get(runner, {}).get(endpoint, ())) if runner is not None else []

    def ends_at(self, endpoint: str) -> bool:
        """Whether the end of a stream waits before an endpoint."""
        return any(isinstance(one.payload, EndOfStream) for one in self.at(endpoint))

    def keep(self, driver: Driver, left: Iterable[InFlight]) -> None:
        """Insert items that *driver* has not passed on, in order, before all other items that wait for it."""
        for leaf in reversed([leaf for item in left for leaf in _leaves(item)]):
            self._inlet(driver, leaf).appendleft(replace(leaf, stamp=next(self._in_front)))

    def post(self, given: Iterable[InFlight], *, first: bool = False) -> None:
        """Pass each item to the driver that runs its endpoint, after all items that wait for that driver, or *first*.

        An item is dropped if its endpoint and all endpoints downstream were removed.
        """
        with self._lock:
            found = [leaf for item in given for leaf in self._current(item)]
            add, stamps = (deque.appendleft, self._in_front) if first else (deque.append, self._behind)
            for item in reversed(found) if first else found:
                if (runner := self.runner(item.entry.endpoint)) is not None:
                    add(self._inlet(runner, item), replace(item, stamp=next(stamps)))
                    runner.prompt()

    def assign(self, depth: Callable[[str], float], leaving: Collection[Driver] = (), drivers: Parked = None) -> None:
        """Assign the items of *drivers*, which are parked, to the drivers that run the endpoints after binding.

        *drivers* are all those of which another driver took over an endpoint. Those of *leaving* end; *depth* returns
        how far downstream an endpoint is, in direct calls.
        """
        with self._lock:
            given: dict[Driver, list[tuple[Driver, InFlight]]] = {}
            for giver, item in self.waiting(drivers):
                for leaf in self._current(item):
                    runner = self.runner(leaf.entry.endpoint) if leaf.entry.endpoint else giver
                    if runner is not None and runner not in leaving:
                        given.setdefault(runner, []).append((giver, leaf))
            for endpoint, runner in list(self._runners.items()):
                if drivers is None or runner in drivers:
                    del self._runners[endpoint]
                    self._inlets.pop(runner, None)
            for runner, found in given.items():
                if len(givers := {giver for giver, _ in found}) > 1:
                    found.sort(key=lambda pair: depth(pair[1].entry.endpoint), reverse=True)
                for _, item in found:
                    self._inlet(runner, item).append(replace(item, stamp=next(self._behind)))
                if givers != {runner}:
                    runner.prompt()

    def put_in_order(self, depth: Callable[[str], float], driver: Driver) -> None:
        """Order the items of *driver*, which is parked: those farther downstream left their source earlier."""
        with self._lock:
            found = sorted(self._of(driver), key=lambda item: depth(item.entry.endpoint), reverse=True)
            for inlet in self._run_by(driver):
                inlet.clear()
            for item in found:
                self._inlet(driver, item).append(replace(item, stamp=next(self._behind)))

    def post_in_order(self, depth: Callable[[str], float], work: Iterable[InFlight], drivers: Iterable[Driver]) -> None:
        """Post items behind those that wait at the same endpoints or farther downstream, before all later ones.

        The items of *drivers*, which are parked, are put in order in any case.
        """
        found = [*work]
        self.post(found)
        for runner in {*drivers, *(self.runner(one.entry.endpoint) for one in found)}:
            if runner is not None:
                self.put_in_order(depth, runner)

    def destinations(self, item: InFlight) -> Iterator[str]:
        """Yield the endpoints at which *item* waits after `post`; at a queue, it is stored."""
        endpoint, entry = item.entry.endpoint, item.entry
        if endpoint in self.entries:
            yield endpoint
        elif not (endpoint and isinstance(item.payload, CONTROL)):  # an endpoint that is not there was removed
            for one in (*entry.targets, *(entry.behind if endpoint else ())):
                yield from self.destinations(replace(item, entry=one))

    def exchange(
        self, concerned: Callable[[str], bool], drivers: Collection[Driver], change: Callable[[Any], Any]
    ) -> None:
        """Apply *change* to every payload that waits for *drivers*, which are parked, at the endpoints *concerned*."""
        with self._lock:  # other drivers may post
            for endpoint, runner in list(self._runners.items()):
                if runner in drivers and isinstance(endpoint, str) and concerned(endpoint):
                    changed = deque(replace(one, payload=change(one.payload)) for one in self.at(endpoint))
                    self._inlets[runner][endpoint] = changed

    def drop(self, concerned: Callable[[str], bool], kinds: type | tuple[type, ...] = object) -> list[InFlight]:
        """Drop payloads of these kinds before the endpoints *concerned*, whose drivers are parked; return all there."""
        found: list[InFlight] = []
        with self._lock:  # other drivers may post
            for endpoint, runner in list(self._runners.items()):
                if isinstance(endpoint, str) and concerned(endpoint):
                    there = self.at(endpoint)
                    found += there
                    self._inlets[runner][endpoint] = deque(one for one in there if not isinstance(one.payload, kinds))
        return found

    def _run_by(self, driver: Driver) -> list[deque[InFlight]]:
        return list(self._inlets.get(driver, {}).values())

    def _of(self, driver: Driver) -> list[InFlight]:
        return sorted((item for inlet in self._run_by(driver) for item in list(inlet)), key=lambda item: item.stamp)

    def _inlet(self, driver: Driver, item: InFlight) -> deque[InFlight]:
        endpoint = item.entry.endpoint or driver
        with self._lock:
            if (runner := self._runners.get(endpoint, driver)) is not driver:
                if self._inlets[runner][endpoint]:
                    raise RuntimeError(f"{item.entry.endpoint} is run by {runner.name!r} and by {driver.name!r}")
                del self._inlets[runner][endpoint]
            self._runners[endpoint] = driver
            return self._inlets.setdefault(driver, {}).setdefault(endpoint, deque())

    def _current(self, item: InFlight) -> Iterator[InFlight]:
        """Yield *item* for each endpoint to which its entry leads now."""
        endpoint, entry = item.entry.endpoint, item.entry
        if endpoint and endpoint not in self.entries:
            behind = () if isinstance(item.payload, CONTROL) else (*entry.targets, *entry.behind)
            for one in behind:
                yield from self._current(replace(item, entry=one))
            if behind or entry.store is None:
                return
        yield from _leaves(replace(item, entry=self.entries.get(endpoint, entry)))


def _leaves(item: InFlight) -> Iterator[InFlight]:
    """Resolve a fan-out into its targets, in the order of the calls; a queue stores the item now, even if full.

    Several drivers may run a fan-out, and push into a queue; every other endpoint has one runner.
    """
    entry = item.entry
    if item.wait is None and entry.store is not None:
        entry.store(item.method, item.payload)
    elif item.wait is None and entry.targets:
        for target in entry.targets:
            yield from _leaves(replace(item, entry=target))
    else:
        yield item
