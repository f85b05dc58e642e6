"""Windows by time and the punctuations that close them: where none come, the items of each producer name the time."""

from collections.abc import Iterator
from typing import Any

import pytest

from exop import Application, InputPort, Platform, Punctuation, slet
from exop.logs import logger
from exop.runtime.channels import base as channel
from exop.stock.event_time import Watermark
from exop.wiring.changes import channels
from exop.wiring.changes.channels import unopened_graph, unpunctuated
from tests.rig import Gate, Two, collector, eventually, same, source_of


@slet
def marked() -> Iterator[int | Punctuation]:
    """A source that punctuates."""
    yield Punctuation(1)


@slet
def swallowing(item: Any | Punctuation) -> Any:
    """Sees punctuations, and passes none on."""
    return item


@slet
def pulling(item: InputPort[Any]) -> Iterator[Any]:
    """Takes its items by itself."""
    yield from item


@slet
def times(window: list[Any]) -> list[int]:
    """The times in a window."""
    return [one["t"] for one in window]


def missing(rig, app, window):
    """The producers of a window from which no punctuations come."""
    return unpunctuated(unopened_graph(app.build(), rig.manager.kinds), window.name)[0]


@pytest.fixture
def platform():
    """A platform."""
    with Platform() as one:
        yield one


@pytest.fixture
def warnings(monkeypatch):
    """What is logged as a warning."""
    found: list[str] = []
    log = logger("exop.wiring")
    monkeypatch.setattr(channels, "logger", lambda _: log)
    monkeypatch.setattr(log, "warning", lambda text, **_: found.append(text), raising=False)
    return found


def test_punctuations_come_from_outputs_that_name_them_and_pass_slets_to_all_of_whose_inputs_they_come(rig):
    """Each way of a punctuation, and each place where one ends, as far as the types show."""
    app = Application("app")
    plain, loud = app.add("plain", source_of([])), app.add("loud", marked)
    cases = {
        "plain": (plain, False),
        "loud": (loud, True),
        "same": (app.add("same", same, item=loud), True),
        "one": (app.add("one", Two, left=loud, right=plain), False),
        "both": (app.add("both", Two, left=loud, right=loud), True),
        "swallowed": (app.add("swallowed", swallowing, item=loud), False),
        "pulled": (app.add("pulled", pulling, item=loud), True),
        "watermark": (app.add("watermark", "stock:watermark", item=plain, time="t"), True),
    }
    back = app.channel("back", kind="queue")
    turn = app.add("turn", Two, left=loud, right=back)
    cases["cycle"] = (app.add("cycle", same, item=turn, out=back), False)
    for name, (_, comes) in cases.items():
        window = app.channel(f"w-{name}", kind="window", seconds=1, time="t")
        app.add(f"into-{name}", same, item=cases[name][0], out=window)
        app.add(f"from-{name}", times, window=window)
        assert missing(rig, app, window) == ([] if comes else [f"into-{name}.out"]), name


def test_behind_a_window_that_follows_its_items_punctuations_come(rig):
    """One warning is enough: the punctuations that the first window makes of items close the second, too."""
    app = Application("app")
    first, second = (app.channel(name, kind="window", seconds=1, time=time) for name, time in (("a", "t"), ("b", "0")))
    app.add("items", source_of([]), out=first)
    app.add("times", times, window=first, out=second)
    app.add("end", collector([]), item=second)
    assert missing(rig, app, first) == ["items.out"]
    assert missing(rig, app, second) == []


def test_without_punctuations_each_producer_names_the_time_of_its_own_items(rig, warnings):
    """Of two sources the slower one holds the windows open; nothing of it is late. A warning names the cure."""
    seen: list[list[int]] = []
    gate, app = Gate(), Application("app")

    @slet
    def slower() -> Iterator[dict[str, int]]:
        gate.pass_through()
        yield from ({"t": number} for number in range(0, 40, 2))

    window = app.channel("w", kind="window", seconds=10, time="t")
    app.add("fast", source_of([{"t": number} for number in range(1, 40, 2)]), out=window)
    app.add("slow", slower, out=window)
    app.add("sink", collector(seen), item=app.add("times", times, window=window))
    deployment = rig.deploy(app)
    eventually(lambda: deployment.channels["w"].metrics()["taken"] == 20, "the faster source")
    assert seen == []
    gate.open()
    assert deployment.wait(60)
    assert [sorted(one) for one in seen] == [[*range(start, start + 10)] for start in range(0, 40, 10)]
    assert deployment.channels["w"].metrics()["late"] == 0
    assert len(warnings) == 1
    assert "no punctuations come from fast.out, slow.out" in warnings[0]
    assert "'stock:watermark', item=…, time='t', delay=…" in warnings[0]


def test_a_window_that_comes_to_be_by_time_is_warned_of(platform, warnings):
    """By new settings, or by those that are pending at a point in the stream: when they are given."""
    app = Application("app")
    window = app.channel("w", kind="window", count=3, time="t")
    gate = Gate()

    @slet
    def gated() -> Iterator[dict[str, int]]:
        gate.pass_through()
        yield {"t": 1}

    app.add("items", gated, out=window)
    app.add("sink", collector([]), item=window)
    platform.apply(app.build())
    timed = {"count": None, "seconds": 5.0}
    for edit in (
        lambda mesh: mesh.configure("w", when="item.t > 5", **timed),
        lambda mesh: mesh.configure("w", count=4),
        lambda mesh: mesh.configure("w", **timed),
        lambda mesh: mesh.configure("w", seconds=6.0),
    ):
        platform.apply(edit(platform.mesh("app")))
    assert len(warnings) == 2
    assert all("the window 'w' is by time, and no punctuations come from items.out" in one for one in warnings)
    gate.open()
    assert platform.wait("app", 60)


def test_a_change_looks_at_the_windows_that_it_touches(platform, monkeypatch):
    """Among many windows, at those whose punctuations pass what changes."""
    looked: list[str] = []
    monkeypatch.setattr(
        channels, "unpunctuated", lambda graph, name: (looked.append(name), unpunctuated(graph, name))[1]
    )
    app, gate = Application("app"), Gate()

    @slet
    def gated() -> Iterator[dict[str, int]]:
        gate.pass_through()
        yield from ()

    for branch in range(20):
        window = app.channel(f"w{branch}", kind="window", seconds=5, time="t")
        queue = app.channel(f"q{branch}", kind="queue")
        source = app.add(f"source{branch}", gated)
        app.add(f"into{branch}", same, item=app.add(f"first{branch}", same, item=source, out=queue), out=window)
        app.add(f"times{branch}", times, window=window)
    platform.apply(app.build())
    assert len(looked) == 20
    looked.clear()
    edits = {
        "upstream of a queue": lambda mesh: mesh.replace("first7", Watermark, lose_state=True, time="t"),
        "behind the window": lambda mesh: mesh.replace("times8", times),
        "suspended": lambda mesh: mesh.suspend("into9"),
        "resumed": lambda mesh: mesh.resume("into9"),
    }
    for edit in edits.values():
        platform.apply(edit(platform.mesh("app")))
    assert {*looked} <= {"w7", "w8", "w9"}
    assert platform.deployment("app").channels["w7"].unpunctuated == frozenset()
    gate.open()
    assert platform.wait("app", 60)


def test_an_idle_source_does_not_hold_the_windows_of_the_others(rig, monkeypatch):
    """It is passed over, what it sends of the closed windows is late there, and then it is waited for again."""
    seconds = [0.0]
    monkeypatch.setattr(channel, "clock", lambda: seconds[0])
    gates = {name: [Gate(), Gate(), Gate()] for name in ("busy", "idle")}
    seen: list[list[int]] = []
    app = Application("app")
    window = app.channel("w", kind="window", seconds=10, time="t")

    def gated(name: str, *pieces: list[int]) -> Any:
        @slet
        def given() -> Iterator[dict[str, int]]:
            for gate, piece in zip(gates[name], pieces, strict=True):
                gate.pass_through()
                yield from ({"t": time} for time in piece)

        return given

    for name, pieces in {"busy": ([1, 12, 14], [25], [44]), "idle": ([2], [8, 26], [45])}.items():
        source = app.add(name, gated(name, *pieces))
        app.add(f"{name}-timed", "stock:watermark", item=source, time="t", idle=30, out=window)
    app.add("sink", collector(seen), item=app.add("times", times, window=window))
    deployment = rig.deploy(app)
    taken = deployment.channels["w"].metrics

    def go(name: str, gate: int, so_many: int) -> None:
        gates[name][gate].open()
        gates[name][gate + 1].somebody_waits()
        eventually(lambda: taken()["taken"] == so_many, f"{so_many} items in the windows")

    go("idle", 0, 1)
    go("busy", 0, 4)
    assert seen == []
    seconds[0] = 31
    go("busy", 1, 5)  # the idle one is at 2 for longer than it allows
    eventually(lambda: [sorted(one) for one in seen] == [[1, 2], [12, 14]], "the windows before 25")
    go("idle", 1, 7)
    assert taken()["late"] == 1
    gates["busy"][2].open()
    eventually(lambda: taken()["taken"] == 8, "the last item of the busy source")
    gates["idle"][2].open()
    assert deployment.wait(60)
    assert [sorted(one) for one in seen[2:]] == [[25, 26], [44, 45]]
