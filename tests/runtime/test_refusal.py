"""An item that a channel refuses is a failure of its sender, handled by the policy of that; no driver ends."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from exop import Application, Batch, Platform, slet
from exop.model.slets.spec import POLICIES
from exop.runtime.channels.table import TableChannel
from exop.runtime.supervision.failure_policy import guarded_entry
from tests.change.tools import Position, changed, finish, suspended, writing
from tests.rig import PATIENCE, threads_leave

KINDS: dict[str, dict[str, Any]] = {
    "table": {"key": "id"},
    "latch": {"key": "id"},
    "window": {"seconds": 10, "time": "id"},
}
ROWS = [{"id": 1}, {"id": 2}, {"other": 3}, {"id": 4}]


@slet
def rows(position: Position, *, batches: bool = False) -> Iterator[dict[str, int] | None]:
    """Emit rows, one of which has no id."""
    while position.number < len(ROWS):
        position.number += 1
        yield ROWS[position.number - 1]


@slet
def batches(position: Position) -> Iterator[Batch[dict[str, int]]]:
    """The same in one batch."""
    if not position.number:
        position.number = len(ROWS)
        yield Batch(ROWS)


@slet
def passes(row: dict[str, int]) -> dict[str, int]:
    """Pass on."""
    return row


@pytest.fixture
def platform():
    """A platform; all its threads leave."""
    with threads_leave(), Platform() as made:
        yield made


def deployed(platform: Platform, kind: str, policy: str, seen: list[Any], source: Any = rows) -> Any:
    """Rows go through `b` into a channel with a key, and what leaves there is written down."""
    app = Application("app")
    keyed = app.channel("keyed", kind=kind, **KINDS[kind])
    app.add("b", passes, row=app.add("a", source), out=keyed, on_error=policy)
    app.add("c", writing(seen), x=keyed)
    platform.apply(app.build())
    return platform.deployment("app").components["b"]


def ids(seen: list[Any]) -> list[int]:
    """The ids of what has come out of the channel."""
    return [row["id"] for one in seen for row in (one if isinstance(one, list) else [one])]


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("kind", KINDS)
def test_an_item_without_its_key(platform, kind, policy):
    """It is left out and counted, or kept; the others go through, once and in order."""
    seen: list[Any] = []
    component = deployed(platform, kind, policy, seen)
    if policy in ("suspend", "retry"):
        suspended(platform, "app", "b")
        kept = platform.status("app")["nodes"]["b"]["kept"]
        assert (kept["port"], kept["item"]) == ("out", "{'other': 3}")
        assert f"in the channel 'keyed' ({kind}), behind b.out, for the item" in kept["traceback"]
        assert not platform.deployment("app").crashed()
        return
    assert platform.wait("app", PATIENCE)
    assert ids(seen) == [1, 2, 4]
    assert component.metrics.errors == 1
    assert component.metrics.skipped == (policy == "skip")
    assert [letter.item for letter in platform.dead_letters("app", "b")] == [{"other": 3}] * (policy == "dead-letter")


@pytest.mark.parametrize("kind", KINDS)
def test_of_a_batch_the_others_are_taken(platform, kind):
    """Only the item without a key is left out, and nothing is stored twice."""
    seen: list[Any] = []
    component = deployed(platform, kind, "skip", seen, batches)
    assert platform.wait("app", PATIENCE)
    assert ids(seen) == [1, 2, 4]
    assert component.metrics.skipped == 1


def test_it_goes_on_when_the_channel_takes_it(platform, monkeypatch):
    """The kept item is tried again when the slet is resumed: a log that had no room has some now."""
    seen: list[Any] = []
    deployed(platform, "table", "suspend", seen)
    suspended(platform, "app", "b")
    channel = platform.deployment("app").channels["keyed"]
    monkeypatch.setattr(channel, "_key", lambda row: row.get("id"))
    platform.resume("app", "b")
    finish(platform, "app")
    assert seen == ROWS


def test_it_is_left_out_when_the_policy_becomes_so(platform):
    """An application that says `skip` from now on gets rid of the kept item, and of it alone."""
    seen: list[Any] = []
    component = deployed(platform, "table", "suspend", seen)
    suspended(platform, "app", "b")
    changed(
        platform,
        "app",
        lambda mesh: replace(mesh, nodes={**mesh.nodes, "b": replace(mesh.node("b"), on_error="skip")}),
    )
    if component.status == "failed":
        platform.resume("app", "b")
    finish(platform, "app")
    assert ids(seen) == [1, 2, 4]


def test_a_field_of_an_index_is_needed_as_well(platform):
    """A row that lacks it is not half stored."""
    app = Application("app")
    table = app.channel("table", kind="table", key="id", index=["other"])
    app.add("a", rows, out=table, on_error="skip")
    app.add("c", writing([]), x=table)
    platform.apply(app.build())
    assert platform.wait("app", PATIENCE)
    assert platform.deployment("app").channels["table"].scan() == []


def test_what_a_latch_keeps_can_be_pulled_after_its_end(platform):
    """It is read by those who come later too: the end of the stream is no end of what is kept."""
    from exop import InputPort
    from exop.model.meshes.mesh import ChannelSpec, Node
    from exop.model.slets.slet import spec_of
    from tests.change.tools import Tap, count_to
    from tests.rig import eventually

    @slet
    def reads(kept: InputPort[int]) -> Iterator[int]:
        yield from kept.pull()
        yield from kept

    seen: list[int] = []
    tap = Tap()
    app = Application("app")
    app.add("c", writing([]), x=app.add("a", count_to, to=3, out=app.channel("last", kind="latch")))
    app.add("z", writing([]), x=app.add("y", tap.source()))
    platform.apply(app.build())
    eventually(lambda: platform.status("app")["nodes"]["a"]["state"] == "ended")
    reader = Node("r", spec_of(reads), {}, {"kept": "last", "out": "read"})
    writer = Node("w", spec_of(writing(seen)), {}, {"x": "read"})
    changed(platform, "app", lambda mesh: mesh.add(reader, ChannelSpec("read")).add(writer))
    eventually(lambda: seen == [3, 3])
    tap.shut()
    finish(platform, "app")


def test_the_item_of_a_producer_that_is_removed_goes_with_it(capsys):
    """Without a producer there is no policy: the item is logged as it goes, and no driver breaks."""
    table = TableChannel("keyed", key="id")
    entry = guarded_entry(table, table.entry([]), "channel keyed", list)
    entry.push({"other": 3})
    entry.push({"id": 1})
    assert table.scan() == [{"id": 1}]
    assert "{'other': 3}" in capsys.readouterr().err
