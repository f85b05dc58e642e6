"""The way into a group: an item, a list and columns go by the same partitions, and stay in order for each key."""

from collections import OrderedDict
from types import MappingProxyType
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from exop.errors import MeshError, SettingError, UnknownName
from exop.model.items import Punctuation
from exop.model.meshes.mesh import ChannelSpec
from exop.model.meshes.partitions import partition_of, ranges
from exop.runtime.channels import BUILT_IN, REMOTE
from exop.runtime.channels.base import DirectChannel
from exop.runtime.channels.partitioned import Partitioning, route
from exop.runtime.component_manager import make_channel
from exop.runtime.dataflow.entry import NOWHERE, InFlight, Unwind
from tests.runtime.rig import Log

KEYS = st.integers(-5, 5)
ROWS = st.lists(KEYS, max_size=8)


def logs(*names: str) -> dict[str, Log]:
    """Ends of ways, by name."""
    return {name: Log() for name in names}


def into(*groups: dict[str, Log], by: str = "k", partitions: int = 8, refused: list[Any] | None = None) -> Any:
    """The way into groups of these."""
    members = [{name: log.entry for name, log in group.items()} for group in groups]
    found = [] if refused is None else refused
    return route(Partitioning("c", by, partitions), members, lambda method, payload, error: found.append(payload))


@given(st.lists(st.tuples(st.sampled_from(["item", "list", "columns"]), ROWS)), st.integers(1, 4), st.integers(1, 20))
def test_items_lists_and_columns_go_the_same_way_in_order(pushes, members, partitions):
    """Whatever is mixed: a member has exactly the items of its range, each key in the order in which it came."""
    group, alone = logs(*"abcd"[:members]), logs("x")
    entry = into(group, alone, partitions=partitions)
    sent: list[dict[str, int]] = []
    for form, keys in pushes:
        rows = [{"k": key, "n": len(sent) + at} for at, key in enumerate(keys)]
        sent += rows
        if form == "item":
            for row in rows:
                entry.push(row)
        elif form == "list":
            entry.push_batch(rows)
        else:
            entry.push_batch(pa.RecordBatch.from_pylist(rows, schema=pa.schema({"k": pa.int64(), "n": pa.int64()})))
    for name, owned in ranges(group, partitions).items():
        wanted = [row for row in sent if partition_of(row["k"], partitions) in owned]
        assert sorted(group[name].seen, key=lambda row: row["n"]) == wanted
        for key in range(-5, 6):
            assert [r for r in group[name].seen if r["k"] == key] == [r for r in wanted if r["k"] == key]
    assert sorted(alone["x"].seen, key=lambda row: row["n"]) == sent


def test_control_items_go_to_all_members():
    """The time of a stream is that of all its partitions."""
    group = logs("a", "b")
    into(group).control(Punctuation(3))
    assert group["a"].seen == group["b"].seen == [Punctuation(3)]


def test_fields_of_tuples_objects_and_dictionaries_are_keys():
    """By their number, as attributes, or as entries."""
    group = logs("a", "b")
    into(group, by="1").push(("x", 7))
    into(group, by="real").push(7)
    into(group, by="k").push({"k": 7})
    assert [len(log.seen) for log in group.values()] in ([3, 0], [0, 3])


def test_any_mapping_has_a_field():
    """Also one whose class has an attribute of that name, and one that is keyed by digits; alone and in a list."""
    group = logs("a", "b")
    mappings = [OrderedDict(items=7), MappingProxyType({"items": 7})]
    entry = into(group, by="items")
    for one in mappings:
        entry.push(one)
    entry.push_batch([{"items": 7}, *mappings])
    into(group, by="1").push({"1": 7})
    assert [len(log.seen) for log in group.values()] in ([6, 0], [0, 6])


def test_what_has_no_partition_is_refused_and_the_rest_of_its_list_goes_on():
    """An item without the field, or with a key of another type; columns without the column as a whole. Says why."""
    group, refused = logs("a", "b"), list[Any]()
    members = {name: log.entry for name, log in group.items()}
    entry = route(
        Partitioning("c", "k", 8), [members], lambda method, payload, error: refused.append((payload, str(error)))
    )
    columns = pa.RecordBatch.from_pylist([{"n": 1}])
    entry.push_batch([{"k": 1}, {"n": 2}, {"k": [3]}, {"k": 4}])
    entry.push_batch(columns)
    entry.push(("x", 5))
    reasons = (
        "the item has no field 'k'; it has n",
        "[3] is a list, and belongs to no partition",
        "no column 'k'; it has n",
    )
    assert [payload for payload, _ in refused] == [{"n": 2}, {"k": [3]}, columns, ("x", 5)]
    assert all(reason in told for reason, (_, told) in zip((*reasons, "it has 0, 1"), refused, strict=True))
    assert sorted(one["k"] for log in group.values() for one in log.seen) == [1, 4]


def test_the_rest_of_a_list_is_assigned_anew_when_its_driver_goes_on():
    """A member may be another one by then."""

    def unwinds(batch: Any) -> None:
        raise Unwind("waits", lambda: True, InFlight(NOWHERE, "push_batch", batch))

    keys = next((one, other) for one in range(9) for other in range(9) if partition_of(one, 2) < partition_of(other, 2))
    group = {"a": Log(unwinds), "b": Log()}
    entry = into(group, partitions=2)
    with pytest.raises(Unwind) as unwound:
        entry.push_batch([{"k": key} for key in keys])
    assert [(work.entry, work.payload) for work in unwound.value.in_flight[1:]] == [(entry, [{"k": keys[1]}])]
    assert group["b"].seen == []


def test_the_number_of_partitions_is_bounded():
    """The error says the bounds."""
    with pytest.raises(MeshError, match="'c' has 0 partitions; give a number from 1 to 65536"):
        DirectChannel("c", by="k", partitions=0)


@pytest.mark.parametrize("kind", [*BUILT_IN, *REMOTE])
@pytest.mark.parametrize("settings", [{}, {"by": "k"}, {"by": "k", "partitions": 7}])
def test_a_plan_knows_the_partitions_by_which_items_are_routed(kind, settings):
    """Those of the channel that is made, for every kind: the number is a default of the kind, if none is given."""
    needed = {"table": {"key": "k"}, "window": {"count": 1}, "outbox": _HALF, "inbox": _HALF, "reader": _READER}
    spec = ChannelSpec("c", kind.kind, {**needed.get(kind.kind, {}), **settings})
    try:
        made = make_channel({kind.kind: kind}, spec).partitioning
    except (SettingError, UnknownName):
        return  # a kind without partitions
    assert kind.partitions_of(spec) == (made and (made.by, made.partitions))


_HALF = {"peer": "b", "key": "a/b"}
_READER = {"peer": "b", "channel": "c", "reads": "table"}


def test_the_field_has_a_name():
    """None at all leaves out the partitions; an empty one is a mistake."""
    with pytest.raises(MeshError, match="'c' is partitioned by no field; name one, or leave out by=''"):
        DirectChannel("c", by="")


def test_ways_are_remembered_for_so_many_keys(monkeypatch):
    """A stream of ever new keys does not fill the memory."""
    monkeypatch.setattr("exop.runtime.channels.partitioned.REMEMBERED", 3)
    group = logs("a", "b")
    entry = into(group)
    for key in range(10):
        entry.push({"k": key})
    assert len(entry.push.__globals__["owners"]) <= 3
    assert sum(len(log.seen) for log in group.values()) == 10
