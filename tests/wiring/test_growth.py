"""What a change costs does not depend on the size of the application: counted in calls, not in time."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from threading import Event

import pytest

from exop import Application, Platform, slet

ENDING = Event()


@slet
def silent() -> Iterator[int]:
    """Emit nothing."""
    ENDING.wait()
    yield from ()


@slet
def passed(item: int) -> int:
    """Pass an item on."""
    return item


@slet
def passed_too(item: int) -> int:
    """Do the same in other words."""
    return +item


@slet
def dropped(item: int) -> None:
    """Drop an item."""


def branches(number):
    """So many streams side by side, each of a source, three slets and a sink."""
    app = Application("grown")
    for branch in range(number):
        channel = app.add(f"source-{branch}", silent)
        for place in range(3):
            channel = app.add(f"slet-{branch}-{place}", passed, item=channel)
        app.add(f"sink-{branch}", dropped, item=channel)
    return app.build()


@pytest.fixture
def running() -> Iterator[Callable[[int], Platform]]:
    """Runs so many streams."""
    platforms = []

    def run(number: int) -> Platform:
        platforms.append(Platform().start())
        platforms[-1].apply(branches(number))
        return platforms[-1]

    ENDING.clear()
    yield run
    ENDING.set()
    for platform in platforms:
        platform.close()


def calls(work):
    """How many functions of ExoP and of C *work* calls in this thread."""
    count = 0

    def note(frame, event, argument):
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(None)
    return count


EDITS = {
    "replace": lambda mesh: mesh.replace("slet-0-1", passed_too),
    "suspend": lambda mesh: mesh.suspend("sink-0"),
    "rewire": lambda mesh: mesh.rewire("sink-0", item="slet-0-0"),
    "remove": lambda mesh: mesh.remove("sink-0"),
}


def test_a_replacement_shares_all_that_stays(running):
    """The mesh shares the entries of before, and the wiring graph its vertices and edges."""
    platform = running(40)

    def kept():
        mesh, graph = platform.mesh("grown"), platform.wiring.current(platform.deployment("grown")).graph
        vertices = {name: id(vertex) for name, vertex in graph.nodes.items() if name != "slet-0-1"}
        edges = [id(graph.producers[name]) for name in graph.channels if not name.startswith("slet-0")]
        return [id(mesh.nodes.base), id(mesh.channels.base), vertices, edges]

    before = kept()
    platform.apply(platform.mesh("grown").replace("slet-0-1", passed_too))
    assert kept() == before


@pytest.mark.parametrize("edit", EDITS)
def test_an_edit_and_its_plan_cost_the_same_at_any_size(running, edit):
    """At 20 slets and at 200 they make as many calls, but for a tenth."""

    def planned(platform):
        return calls(lambda: platform.plan(EDITS[edit](platform.mesh("grown"))))

    small, large = planned(running(4)), planned(running(40))
    assert large < small * 1.1
