"""The figures of a component: counts are exact, however the item goes and whatever is changed meanwhile."""

import shutil
from collections.abc import Iterator
from typing import Any
from unittest import mock

import pytest

from exop import Application, Batch, EndOfStream, InputPort, OutputPort, Platform, Slet, input_port, slet, status
from exop.hooks import Plugins, hookimpl
from exop.model.meshes.shadow import Shadow
from exop.runtime.dataflow.metrics import ComponentMetrics, Flow, Tally
from exop.runtime.supervision import failure_policy as failure
from tests.change.tools import Tap, end, endless, finish, grows, plain, summing, summing_too, suspended, writing
from tests.rig import PATIENCE, batches_of, collector, eventually, line, same


@slet
def third(item: int) -> int | None:
    """Drop every third item."""
    return item if item % 3 else None


@slet
def echoed(item: int) -> Iterator[int]:
    """Put out an item as often as its last digit but one says."""
    for _ in range(item // 10 % 4):
        yield item


def numbers(to: int, size: int = 0) -> Any:
    """A source of 1, 2, 3, …, singly or in batches."""

    @slet
    def single() -> Iterator[int]:
        yield from range(1, to + 1)

    return batches_of(*(Batch(range(at, min(at + size, to + 1))) for at in range(1, to + 1, size))) if size else single


def counts(figures: dict[str, Any]) -> dict[str, tuple[int, int]]:
    """The items in and out of each node."""
    return {name: (node["items_in"], node["items_out"]) for name, node in figures["nodes"].items()}


@pytest.mark.parametrize("size", [0, 7])
def test_a_long_chain_counts_every_slet(size):
    """Each slet of a chain that is longer than one fused function, in single items and in batches."""
    app = Application("long")
    at = app.add("source", numbers(1000, size))
    expected = [*range(1, 1001)]
    wanted = {"source": (0, 1000)}
    for number in range(40):
        work = {10: third, 20: echoed}.get(number, same)
        at = app.add(f"n{number}", work, item=at)
        before, results = len(expected), {10: lambda x: x % 3 > 0, 20: lambda x: x // 10 % 4}
        expected = [x for x in expected for _ in range(int(results.get(number, lambda _: 1)(x)))]
        wanted[f"n{number}"] = (before, len(expected))
    app.add("sink", collector(seen := []), item=at)
    assert counts(app.run()) == wanted | {"sink": (len(expected), 0)}
    assert seen == expected


@pytest.mark.parametrize("kind", ["direct", "queue"])
@pytest.mark.parametrize("size", [0, 7])
@pytest.mark.parametrize("policy", ["skip", "dead-letter", "retry", "suspend"])
def test_an_item_that_fails_is_counted_once(monkeypatch, policy, size, kind):
    """It has come in, and goes out when a later try succeeds; until then the one that is kept has not come in."""
    monkeypatch.setattr(failure, "BACK_OFF", 0.0001)
    failed: set[int] = set()

    @slet(on_error=policy)
    def fails(item: int) -> int:
        if item % 10 == 0 and item not in failed:
            failed.add(item)
            raise ValueError(item)
        return item

    app = Application("app")
    there = app.channel("there", kind=kind)
    app.add("source", numbers(100, size), out=there)
    app.add("sink", collector(seen := []), item=app.add("fails", fails, item=app.add("before", same, item=there)))
    with Platform() as platform:
        platform.apply(app.build())
        if policy == "suspend":
            suspended(platform, "app", "fails")
            eventually(lambda: counts(platform.metrics("app"))["fails"] == (9, 9), "the driver's way back")
        for _ in range(10 if policy == "suspend" else 0):
            suspended(platform, "app", "fails")
            platform.resume("app", "fails")
        finish(platform, "app")
        out = 90 if policy in ("skip", "dead-letter") else 100
        figures = platform.metrics("app")
        assert counts(figures) == {"source": (0, 100), "before": (100, 100), "fails": (100, out), "sink": (out, 0)}
        assert figures["nodes"]["fails"]["errors"] == 10
        assert len(seen) == out
        if policy == "dead-letter" and kind == "direct":
            assert platform.status("app")["nodes"]["fails"]["dead_letters"]["count"] == 10


def test_dead_letters_that_are_tried_again_count_once():
    """They had come in before; now they leave."""
    tap, mended = Tap(), []

    @slet(on_error="dead-letter")
    def even(item: int) -> int:
        if item % 2 and not mended:
            raise ValueError(item)
        return item

    app = line(source=tap.source(), even=even, sink=collector(seen := []))
    with Platform() as platform:
        platform.apply(app.build())
        tap.let(10)
        eventually(lambda: len(seen) == 5 and tap.waiting.is_set())
        assert counts(platform.metrics("app"))["even"] == (10, 5)
        mended.append(True)
        assert platform.retry_dead_letters("app", "even") == 5
        tap.shut()
        finish(platform, "app")
        assert counts(platform.metrics("app"))["even"] == (10, 10)


def test_every_port_counts():
    """Inputs that are pushed and pulled, a result and further outputs, the slet's own driver: each port has a count."""

    class Both(Slet):
        more: OutputPort[int]

        @input_port
        def left(self, item: int) -> int:
            """Two for one."""
            self.more.push(item)
            self.more.push(item)
            return item

        @input_port
        def right(self, item: int) -> int | None:
            """Nothing."""
            return None

    class Engine(Slet, own_driver=True):
        out: OutputPort[int]

        @input_port
        def item(self, item: int | EndOfStream) -> None:
            """One single, and a batch of two."""
            if isinstance(item, EndOfStream):
                self.out.end()
                return
            self.out.push(item)
            self.out.push_batch([item, item])

    @slet
    def pulls(item: InputPort[int]) -> Iterator[int]:
        for one in item:
            if one % 2:
                yield one

    app = Application("ports")
    both = app.add("both", Both, left=app.add("a", numbers(10)), right=app.add("b", numbers(20)))
    app.add("engine", Engine, item=app.output("both", "more"))
    app.add("pulls", pulls, item=both)
    report = app.run()
    assert {name: report["nodes"][name]["metrics"]["items"] for name in ("both", "engine", "pulls")} == {
        "both": {"left": 10, "right": 20, "more": 20, "out": 10},
        "engine": {"item": 20, "out": 60},
        "pulls": {"item": 10, "out": 5},
    }


@pytest.mark.parametrize("kind", ["direct", "queue"])
def test_a_replacement_goes_on_counting(kind):
    """The counts of a node are those of all its slets; what a successor does on trial is none of its figures."""
    app, seen = Application("app"), list[int]()
    first, second = app.channel("first", kind=kind), app.channel("second", kind=kind)
    app.add("a", endless, out=first)
    app.add("b", summing, x=first, out=second)
    app.add("c", writing(seen), x=second)
    with Platform() as platform:
        platform.apply(app.build())
        for node, successor, shadow in (("b", summing_too, None), ("b", summing, 300), ("a", endless, None)):
            grows(seen)
            mesh = platform.mesh("app").replace(node, successor)
            platform.plan(mesh).apply(**({"shadow": Shadow(items=shadow, seconds=PATIENCE)} if shadow else {}))
        grows(seen)
        end(platform, "app")
        number = len(seen)
        assert counts(platform.metrics("app")) == {"a": (0, number), "b": (number, number), "c": (number, 0)}


def test_a_rebuilt_successor_counts_no_replay():
    """The predecessor counted the items that it replays from the log."""
    app, seen = Application("app"), list[int]()
    kept = app.channel("kept", kind="log", keep="all")
    app.add("source", endless, out=kept)
    app.add("sink", writing(seen), x=app.add("sum", summing, x=kept))
    with Platform() as platform:
        platform.apply(app.build())
        grows(seen, 1000)
        platform.apply(platform.mesh("app").replace("sum", summing_too, rebuild="log"))
        grows(seen)
        end(platform, "app")
        assert counts(platform.metrics("app"))["sum"] == (len(seen), len(seen))


def test_checkpoints_keep_the_counts(tmp_path):
    """A recovery goes on from the counts of its checkpoint; rates are those since the recovery."""

    class Offered:
        @hookimpl
        def register_slets(self) -> list[Any]:
            """Both."""
            return [endless, plain]

    def opened(name: str) -> Platform:
        plugins = Plugins()
        plugins.register("offered", Offered())
        return Platform(state=tmp_path / name, control=False, plugins=plugins)

    app = Application("app")
    app.durable(every=3600)
    queue = app.channel("queue", kind="queue", capacity=5)
    app.add("source", endless, out=queue)
    app.add("last", plain, x=app.add("middle", plain, x=queue))
    with opened("before") as platform:
        platform.apply(app.build())
        eventually(lambda: platform.metrics("app")["nodes"]["last"]["items_in"] > 1000)
        platform.checkpoint("app")
        with platform.deployment("app").changing:
            shutil.copytree(tmp_path / "before", tmp_path / "after")
    with opened("after") as platform:
        end(platform, "app")
        deployment, figures = platform.deployment("app"), platform.metrics("app")
        number = deployment.components["source"].state.number
        assert counts(figures) == {"source": (0, number), "middle": (number, number), "last": (number, number)}
        assert figures["channels"]["queue"]["items"] == number
        assert 1000 < figures["nodes"]["last"]["recovered"]["items_in"] <= number


def test_what_a_flow_has_led_to_a_place_stays_there():
    """A place derives its count from the flows into it: those of now, and those of before."""
    passed, first, second = [0], Tally(), Tally()
    flow = Flow(lambda: passed[0])
    for target, more in ((first, 3), (second, 4), (first, 5), (None, 6)):
        flow.lead_into(target)
        passed[0] += more
    assert (first.passed, second.passed, first.sources) == (8, 4, ())


def test_what_is_dropped_in_front_of_a_slet_that_has_ended_is_counted():
    """A queue whose only consumer has ended has no room for it: it is counted as dropped."""

    @slet
    def takes_two(item: InputPort[int]) -> None:
        item.pull(1)
        item.pull(1)

    app = Application("app")
    queue = app.channel("queue", kind="queue", capacity=3)
    app.add("source", numbers(100), out=queue)
    app.add("sink", takes_two, item=queue)
    report = app.run()
    figures = report["channels"]["queue"]
    assert (report["nodes"]["source"]["metrics"]["items_out"], report["nodes"]["sink"]["metrics"]["items_in"]) == (
        100,
        2,
    )
    assert figures["items"] == 100
    assert 98 - figures["capacity"] <= figures["dropped"] <= 98


def test_what_a_window_takes_is_held_or_late_or_gone():
    """Per port: items taken are held, late, or evicted."""
    app = Application("app")
    window = app.channel("window", kind="window", count=4, slide=2)
    app.add("source", numbers(101), out=window)
    app.add("sink", collector([]), item=window)
    assert {**app.run()["channels"]["window"], "kind": "", "schema": ""} == {
        "kind": "", "schema": "", "items": 4, "late": 0, "taken": 101, "evicted": 97
    }  # fmt: skip


def test_counts_are_read_again_when_the_stream_goes_on_meanwhile():
    """A reading is taken when two in a row are the same, so that figures of one moment stand together."""
    app = line(source=numbers(3), sink=collector([]))
    with Platform() as platform:
        platform.apply(app.build())
        finish(platform, "app")
        found = [{("in", "item"): number} for number in (1, 2, 2, 3)]
        with mock.patch.object(ComponentMetrics, "counts", side_effect=found):
            figures = status.component_figures(platform.deployment("app").components["sink"])
        assert figures["items_in"] == 2
