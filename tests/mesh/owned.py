"""Stations whose slets own something, so that only one instance of each can be open, and only that one works."""

import errno
import os
from collections.abc import Iterator
from typing import Any, Self

from exop import EndOfStream, Punctuation, Slet, input_port
from tests.mesh import stations
from tests.mesh.stations import Count, Station

#: The kinds of stations that there are with it: those that are classes, and some that are made one here.
CLASSES = ("two", "fork", "engine", "late_engine", "engine_source", "picker")
OWNED = (*CLASSES, "one", "source", "seeing")


def owned(station: Station, kind: str) -> Any:
    """A slet that does what one of this kind does, and owns what its station has."""
    owners, name = station.notes.owners, station.name
    base = getattr(stations, kind)(station) if kind in CLASSES else globals()[f"_{kind}"](station)

    class Owned(base, exclusive=True):  # type: ignore[misc]
        def __enter__(self) -> Self:
            if name in owners:
                raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))
            owners[name] = self
            return super().__enter__()  # type: ignore[no-any-return]

        def __exit__(self, *exc: object) -> None:
            super().__exit__(*exc)
            if owners.get(name) is self:
                del owners[name]

    return Owned


def _working(station: Station, one: Any) -> None:
    if station.notes.owners.get(station.name) is not one:
        station.notes.wrong.append(f"{station.name} works though it is closed")


def _one(station: Station) -> Any:
    class One(Slet):
        count: Count

        @input_port
        def item(self, item: Any) -> Any:
            """Exactly one result."""
            _working(station, self)
            station.take("item", [item])
            return station.give(self.count, "out", item["ttl"])[0]

    return One


def _source(station: Station) -> Any:
    function = stations.source(station)

    class Source(Slet):
        count: Count

        def __iter__(self) -> Iterator[Any]:
            for made in function(self.count):
                _working(station, self)
                yield made

    return Source


def _seeing(station: Station) -> Any:
    function = stations.seeing(station)

    class Seeing(Slet):
        @input_port
        def item(self, item: Any | Punctuation | EndOfStream) -> None:
            """Takes everything, and control items too."""
            _working(station, self)
            function(item)

    return Seeing
