"""The relay: a node without code, whose input is the entry of its output channel."""

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from exop import Application, Batch, EndOfStream, Punctuation, slet
from exop.model.slets.relay import RELAY
from tests.rig import collector, source_of

#: Kinds before and behind a relay, with settings under which what is pushed is what arrives.
KINDS: dict[str, dict[str, Any]] = {
    "direct": {},
    "queue": {"capacity": 3},
    "latch": {"key": "n"},
    "table": {"key": "n"},
    "log": {},
}


def relayed(rig, source, sink, before="direct", behind="direct", **settings):
    """Run a source and a sink with a relay between; returns the deployment."""
    app = Application("relayed")
    first = app.channel("first", kind=before, **KINDS.get(before, settings))
    second = app.channel("second", kind=behind, **KINDS.get(behind, settings))
    app.add("source", source, out=first)
    app.add("first.to.b", RELAY, item=first, out=second)
    app.add("sink", sink, item=second)
    return rig.run(app)


def counts(deployment, node):
    """Items in and out of a node."""
    found = deployment.components[node].metrics.counts()
    return [items for _, items in sorted(found.items())]


@pytest.mark.parametrize("before", KINDS)
@pytest.mark.parametrize("behind", KINDS)
def test_items_pass_between_channels_of_every_kind(rig, before, behind):
    """Once, in order, and counted at the node as at its neighbours."""
    seen: list[Any] = []
    items = [{"n": number} for number in range(300)]
    deployment = relayed(rig, source_of(items), collector(seen), before, behind)
    assert seen == items
    assert counts(deployment, "first.to.b") == [300, 300]
    assert counts(deployment, "sink") == [300]


@pytest.mark.parametrize("kind", ["direct", "queue"])
def test_batches_stay_whole(rig, kind):
    """A relay does not call anything for the items of a batch, and counts them."""
    sizes = []

    @slet
    def source() -> Iterator[Batch[int]]:
        for number in range(50):
            yield Batch([number] * 7)

    @slet
    def sink(item: Batch[int]) -> None:
        sizes.append(len(item))

    deployment = relayed(rig, source, sink, kind, kind)
    assert sizes == [7] * 50
    assert counts(deployment, "first.to.b") == [350, 350]
    assert counts(deployment, "sink") == [350]


def test_record_batches_stay_columns(rig):
    """The same object arrives: nothing is converted on the way."""
    batch, seen = pa.record_batch({"n": [1, 2, 3]}), []

    @slet
    def source() -> Iterator[pa.RecordBatch]:
        yield batch

    @slet
    def sink(item: pa.RecordBatch) -> None:
        seen.append(item)

    deployment = relayed(rig, source, sink)
    assert seen[0] is batch
    assert counts(deployment, "first.to.b") == [3, 3]


def test_control_items_keep_their_place(rig):
    """Punctuations and the end pass the relay between the items, as at any node."""
    seen: list[Any] = []

    @slet
    def source() -> Iterator[int | Punctuation]:
        for number in range(20):
            yield number
            yield Punctuation(number)

    @slet
    def sink(item: int | Punctuation | EndOfStream) -> None:
        seen.append(item)

    relayed(rig, source, sink, "queue")
    expected = [one for number in range(20) for one in (number, Punctuation(number))]
    assert seen == [*expected, EndOfStream()]


def test_a_counted_item_passes_without_a_call(rig):
    """The driver of a queue calls the slet behind the relay directly."""
    seen: list[Any] = []
    deployment = relayed(rig, source_of([]), collector(seen), "queue")
    queue, sink = deployment.channels["first"], deployment.entries["sink.item"]
    assert queue.deliver.uncounted is sink.uncounted
