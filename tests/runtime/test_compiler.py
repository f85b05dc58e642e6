"""The compiled entries of slets: every shape of result, items and batches, with a slet that raises in the middle."""

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from exop import Application, Batch, EndOfStream, Memento, OutputPort, Punctuation, Slet, input_port, slet
from exop.errors import ComponentFailed
from exop.runtime.lifecycle import State
from exop.runtime.supervision import failure_policy as failure
from tests.rig import Two, batches_of, collector, eventually, line, marked, parked, seeing, source_of

#: What the slet under test raises for, the first time.
BAD = (3, 4, 9)
ITEMS = list(range(10))
POLICIES = ("suspend", "retry", "dead-letter", "skip")


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    """Tries again at once."""
    monkeypatch.setattr(failure, "BACK_OFF", 0.0)


class Once:
    """Raises for each bad item the first time; counts the calls."""

    def __init__(self, bad=BAD):
        self.bad = set(bad)
        self.calls = 0

    def check(self, item):
        """Raise if the item is bad and comes for the first time."""
        self.calls += 1
        if item in self.bad:
            self.bad.remove(item)
            raise ValueError(f"{item} is bad")


def one(once):
    """Exactly one result."""

    @slet
    def shape(item: int) -> int:
        once.check(item)
        return 10 * item

    return shape


def optional(once):
    """One result, or none."""

    @slet
    def shape(item: int) -> int | None:
        once.check(item)
        return 10 * item if item % 3 else None

    return shape


def many(once):
    """Any number; raises behind the first one."""

    @slet
    def shape(item: int) -> Iterator[int]:
        for number in range(item % 4):
            yield 10 * item + number
            once.check(item)
        if not item % 4:
            once.check(item)

    return shape


def mixed(once):
    """Items and punctuations."""

    @slet
    def shape(item: int) -> Iterator[int | Punctuation]:
        yield 10 * item
        once.check(item)
        yield Punctuation(item)

    return shape


def further(once):
    """A second output port, pushed to before it is known whether the item is good."""

    class Shape(Slet):
        more: OutputPort[int]

        @input_port
        def item(self, item: int) -> int:
            """Push and return."""
            self.more.push(-item)
            once.check(item)
            return 10 * item

    return Shape


def batches(once):
    """Batches, from single items."""

    @slet
    def shape(item: int) -> Batch[int]:
        once.check(item)
        return Batch([10 * item, 10 * item + 1])

    return shape


SHAPES = {"one": one, "optional": optional, "many": many, "mixed": mixed, "further": further, "batches": batches}
RESULTS = {
    "one": lambda item: [10 * item],
    "optional": lambda item: [10 * item] if item % 3 else [],
    "many": lambda item: [10 * item + number for number in range(item % 4)],
    "mixed": lambda item: [10 * item],
    "further": lambda item: [10 * item],
    "batches": lambda item: [10 * item, 10 * item + 1],
}
FORMS = {"items": source_of(ITEMS), "batches": batches_of(ITEMS[:6], [], ITEMS[6:])}


def running(rig, shape, policy, form, seen, once):
    """Deploy source → the slet → a sink."""
    it = (SHAPES[shape](once), {"on_error": policy})
    app = line("shapes", source=FORMS[form], it=it, sink=collector(seen))
    if shape == "further":
        app.add("more", collector(seen_more := []), item=app.output("it", "more"))
        rig.more = seen_more
    return rig.deploy(app)


def finish(deployment):
    """Wait for the end; resume and count suspended slets."""
    resumed = 0
    while True:
        try:
            assert deployment.wait(60)
            return resumed
        except ComponentFailed:
            for component in deployment.components.values():
                if component.status is State.FAILED:
                    resumed += 1
                    component.resume()


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("shape", SHAPES)
def test_a_slet_that_raises_loses_nothing_and_nothing_of_it_has_left(rig, shape, policy, form):
    """Rule 8 for every shape: what was before the item leaves first, then the policy deals with it, then the rest."""
    seen, once = [], Once()
    deployment = running(rig, shape, policy, form, seen, once)
    resumed = finish(deployment)
    again = policy in ("suspend", "retry")
    expected = [result for item in ITEMS if again or item not in BAD for result in RESULTS[shape](item)]
    assert seen == expected
    assert resumed == (len(BAD) if policy == "suspend" else 0)
    it = deployment.components["it"]
    assert it.metrics.errors == len(BAD)
    assert it.metrics.skipped == (len(BAD) if policy == "skip" else 0)
    assert [letter.item for letter in it.trouble.dead] == (list(BAD) if policy == "dead-letter" else [])
    if shape == "further":
        assert rig.more == [-item for item in ITEMS if again or item not in BAD]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("policy", POLICIES)
def test_a_sink_that_raises_takes_each_item_once(rig, policy, form):
    """The same for a slet that returns nothing."""
    seen, once = [], Once()

    @slet
    def sink(item: int) -> None:
        once.check(item)
        seen.append(item)

    finish(rig.deploy(line("sink", source=FORMS[form], sink=(sink, {"on_error": policy}))))
    assert seen == [item for item in ITEMS if policy in ("suspend", "retry") or item not in BAD]


def test_what_leaves_before_the_failing_item_of_a_batch_leaves_at_once(rig):
    """A batch stops at the failing item, and what it had made until then is downstream already."""
    seen, once = [], Once([3])
    deployment = running(rig, "one", "suspend", "batches", seen, once)
    with pytest.raises(ComponentFailed):
        deployment.wait(60)
    assert seen == [0, 10, 20]
    finish(deployment)
    assert seen == [10 * item for item in ITEMS]


def test_a_failed_item_is_not_tried_twice_when_its_policy_sets_it_aside(rig):
    """Also when the results before it are refused downstream at the same moment."""
    seen, once, refuse = [], Once([3]), Once([10])

    @slet
    def refusing(item: int) -> None:
        refuse.check(item)
        seen.append(item)

    deployment = rig.deploy(line("both", source=batches_of(ITEMS), it=(one(once), {"on_error": "skip"}), sink=refusing))
    assert finish(deployment) == 1
    assert seen == [10 * item for item in ITEMS if item != 3]
    assert once.calls == len(ITEMS)
    assert deployment.components["it"].metrics.skipped == 1


def test_a_slet_that_raises_stop_iteration_does_not_end_the_batch(rig):
    """StopIteration from a slet is an error like any other, not the end of what it was given."""
    seen = []

    @slet
    def careless(item: int) -> int:
        if item == 3:
            next(iter(()))
        return item

    rig.run(line("stop", source=batches_of(ITEMS), it=(careless, {"on_error": "skip"}), sink=collector(seen)))
    assert seen == [item for item in ITEMS if item != 3]


def test_batches_in_and_out(rig):
    """A port typed Batch gets a list whatever is pushed; a batch passes through an item slet as a batch."""
    sizes, seen = [], []

    @slet
    def sized(item: Batch[int]) -> Batch[int]:
        sizes.append(len(item))
        return Batch(item)

    rig.run(line("batches", source=batches_of([1, 2, 3], [4]), add=one(Once(())), sized=sized, sink=collector(seen)))
    assert sizes == [3, 1]
    assert seen == [10, 20, 30, 40]


def test_single_items_enter_a_batch_port_as_lists_of_one(rig):
    """Nothing waits for a batch to fill."""
    seen = []

    @slet
    def batch(item: Batch[int]) -> None:
        seen.append(item)

    rig.run(line("single", source=source_of([1, 2]), sink=batch))
    assert seen == [[1], [2]]


def test_columns_and_rows_are_joined_in_both_directions(rig):
    """A slet on columns stands between slets on items; the platform converts."""
    seen = []

    @slet
    def doubled(item: pa.RecordBatch) -> pa.RecordBatch:
        column = [2 * x.as_py() for x in item.column("x")]
        return pa.record_batch({"x": column})

    rig.run(line("columns", source=batches_of([{"x": 1}, {"x": 2}]), doubled=doubled, sink=collector(seen)))
    assert seen == [{"x": 2}, {"x": 4}]


def test_what_does_not_fit_columns_is_the_failure_of_that_slet(rig):
    """An item that cannot be converted for a slet is dealt with by that slet's policy."""
    seen = []

    @slet
    def wanting(item: pa.RecordBatch) -> None:
        seen.append(item.to_pylist())

    deployment = rig.run(
        line("unfit", source=source_of([{"x": 1}, 5, {"x": 2}]), it=(wanting, {"on_error": "dead-letter"}))
    )
    assert seen == [[{"x": 1}], [{"x": 2}]]
    assert [letter.item for letter in deployment.components["it"].trouble.dead] == [[5]]


class Times(Memento):
    """The items that a slet has seen."""

    seen: int = 0


def test_control_items_are_shown_to_those_who_name_them(rig):
    """A port whose type names punctuations and the end gets them; the slet decides what leaves."""
    seen, marks = [], []

    @slet
    def summing(item: int | Punctuation | EndOfStream, times: Times) -> Iterator[int | Punctuation]:
        if isinstance(item, int):
            times.seen += item
        elif isinstance(item, Punctuation):
            yield times.seen
            yield Punctuation(item.time * 10)
        else:
            yield -1

    @slet
    def sink(item: int | Punctuation | EndOfStream) -> None:
        (seen if isinstance(item, int) else marks).append(item)

    rig.run(line("control", source=marked(1, Punctuation(1), 2, Punctuation(2)), it=summing, sink=sink))
    assert seen == [1, 3, -1]
    assert marks == [Punctuation(10), Punctuation(20), EndOfStream()]


def test_a_slet_that_fails_on_a_control_item_gets_it_again(rig):
    """A punctuation, and the end of the stream, are kept like an item; the end goes on behind them."""
    seen, once = [], Once()
    once.bad = {Punctuation(1), EndOfStream()}

    @slet
    def sink(item: int | Punctuation | EndOfStream) -> None:
        once.check(item)
        seen.append(item)

    assert finish(rig.deploy(line("control-again", source=marked(1, Punctuation(1)), sink=sink))) == 2
    assert seen == [1, Punctuation(1), EndOfStream()]


def test_what_leaves_is_the_minimum_of_all_inputs(rig):
    """Past a slet that does not see them, punctuations are forwarded as the minimum over its inputs."""
    marks = []

    app = Application("minimum")
    both = app.add(
        "both",
        Two,
        left=app.add("a", marked(Punctuation(1), Punctuation(5))),
        right=app.add("b", marked(Punctuation(3))),
    )
    app.add("sink", seeing(marks), item=both)
    rig.run(app)
    times = [mark.time for mark in marks if isinstance(mark, Punctuation)]
    assert times == sorted(times)
    assert times[-1] in (3, 5)
    assert marks[-1] == EndOfStream()


def test_a_kept_item_is_shown_with_its_port_and_traceback(rig):
    """A suspended slet shows its item, and the error."""
    deployment = running(rig, "one", "suspend", "items", [], Once([3]))
    it = deployment.components["it"]
    eventually(lambda: it.status is State.FAILED)
    kept = it.trouble.kept
    assert (kept.port, kept.item) == ("item", 3)
    assert "ValueError: 3 is bad" in kept.text
    assert "in the slet 'it', port 'item', for the item 3" in kept.text
    finish(deployment)


def test_an_item_whose_repr_breaks_is_dealt_with_all_the_same(rig):
    """An error message is no reason to lose an item."""

    class Odd:
        def __repr__(self):
            raise RuntimeError("no repr")

    @slet
    def refuses(item: Any) -> None:
        raise ValueError("never")

    deployment = rig.run(line("odd", source=source_of([Odd(), Odd()]), it=(refuses, {"on_error": "dead-letter"})))
    assert len(deployment.components["it"].trouble.dead) == 2


def test_retry_gives_up_after_some_tries_and_suspends(rig, monkeypatch):
    """A slet that never succeeds is suspended after its tries, and then tried again as often."""
    calls = []

    @slet(on_error="retry")
    def refuses(item: int) -> None:
        calls.append(item)
        if len(calls) <= 2 * (failure.TRIES + 1):
            raise ValueError("not yet")

    deployment = rig.deploy(line("retry", source=source_of([1]), it=refuses))
    assert finish(deployment) == 2
    assert len(calls) == 2 * (failure.TRIES + 1) + 1


def test_a_slet_that_waits_for_its_next_try_is_at_a_safe_point(rig, monkeypatch):
    """Parking an application does not wait for the back-off of a slet."""
    monkeypatch.setattr(failure, "BACK_OFF", 3600.0)
    calls = []

    @slet(on_error="retry")
    def refuses(item: int) -> None:
        calls.append(item)
        raise ValueError("never")

    deployment = rig.deploy(line("waiting", source=source_of([1]), it=refuses))
    eventually(lambda: calls)
    for _ in range(20):
        with parked(deployment):
            assert not any(driver.busy for driver in deployment.drivers())
    assert deployment.components["it"].status is State.ACTIVE
    assert len(calls) == 1


@pytest.mark.parametrize("batches", [False, True], ids=["items", "batches"])
@pytest.mark.parametrize("annotated", ["int | None", "Any"])
def test_none_is_no_item(rig, batches, annotated):
    """An iterator may yield `None`, and a slet of any result return it: nothing of that goes on, fused or not."""
    result = (int | None) if annotated == "int | None" else Any

    @slet
    def gaps(item: int) -> Iterator[result]:
        yield None
        yield item
        yield None if item % 2 else -item

    @slet
    def odd(item: int) -> result:
        return item if item % 2 else None

    @slet
    def given() -> Iterator[Batch[int]]:
        yield Batch([1, 2, 3])

    seen, other = [], []
    app = Application("gaps")
    numbers = app.add("numbers", given if batches else source_of([1, 2, 3]))
    app.add("sink", collector(seen), item=app.add("gaps", gaps, item=numbers))
    app.add("other", collector(other), item=app.add("odd", odd, item=numbers))
    rig.run(app)
    assert (seen, other) == ([1, 2, -2, 3], [1, 3])


@pytest.mark.parametrize("form", FORMS)
def test_none_among_several_results(rig, form):
    """A slet that yields it fails at the item, by its name and port, unless its annotation leaves it out: the cure."""

    def results(item: int) -> Iterator[int]:
        yield item
        yield None if item == 3 else -item  # type: ignore[misc]

    seen, strict = [], (slet(results), {"on_error": "dead-letter"})
    deployment = rig.run(line("strict", source=FORMS[form], it=strict, sink=collector(seen)))
    assert seen == [one for item in ITEMS if item != 3 for one in (item, -item)]
    (letter,) = deployment.components["it"].trouble.dead
    assert (letter.node, letter.port, letter.item) == ("it", "item", 3)
    assert "it yields None, which is no item: yield nothing, or write `-> Iterator[T | None]`" in letter.error
    seen.clear()
    results.__annotations__["return"] = Iterator[int | None]
    rig.run(line("lenient", source=FORMS[form], it=slet(results), sink=collector(seen)))
    assert seen == [one for item in ITEMS for one in (item, -item) if (item, one) != (3, -3)]


@pytest.mark.parametrize("form", FORMS)
def test_a_generator_where_one_item_is_declared(rig, form):
    """A slet that returns it fails at the item, by its name and port; the annotation in the error is the cure."""

    def both(item: int) -> int:
        return (one for one in (item, -item))  # type: ignore[return-value]

    seen, strict = [], (slet(both), {"on_error": "dead-letter"})
    deployment = rig.run(line("strict", source=FORMS[form], it=strict, sink=collector(seen)))
    assert seen == []
    letters = deployment.components["it"].trouble.dead
    assert [(one.node, one.port, one.item) for one in letters] == [("it", "item", item) for item in ITEMS]
    assert "it returns a generator, which is not an item: write `-> Iterator[T]`" in letters[0].error
    both.__annotations__["return"] = Iterator[int]
    rig.run(line("several", source=FORMS[form], it=slet(both), sink=collector(seen)))
    assert seen == [one for item in ITEMS for one in (item, -item)]
