"""The difference between two meshes is a value that leads from one to the other."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given

from exop.model.meshes.diff import Difference, channel_text, difference, setting_changes
from exop.model.meshes.mesh import ChannelSpec, Mesh
from tests.model.sample_meshes import SLETS, line, meshes, node


def applied(mesh: Mesh, change: Difference) -> tuple[dict[str, object], dict[str, object]]:
    """The nodes and channels after a change, made by hand."""
    nodes = dict(mesh.nodes)
    channels = dict(mesh.channels)
    for gone in change.removed:
        assert nodes.pop(gone.name) == gone
    for fresh in change.added:
        assert fresh.name not in nodes
        nodes[fresh.name] = fresh
    for before, after in change.changed:
        assert nodes[before.name] == before
        nodes[after.name] = after
    for lost in change.channels_removed:
        assert channels.pop(lost.name) == lost
    for new in change.channels_added:
        channels[new.name] = new
    for old, other in change.channels_changed:
        assert channels[old.name] == old
        channels[other.name] = other
    return nodes, channels


@given(meshes(), meshes())
def test_a_difference_leads_from_one_mesh_to_the_other(before, after):
    """Applied to the first mesh it gives the second, whatever the two are."""
    assert applied(before, difference(before, after)) == (dict(after.nodes), dict(after.channels))


@given(meshes())
def test_equal_meshes_differ_in_nothing(mesh):
    """No difference is false; a mesh that was read again, with another revision, is the same."""
    same = dataclasses.replace(mesh, revision=mesh.revision + 1)
    assert not difference(mesh, same)
    assert bool(difference(None, mesh)) == bool(mesh.nodes or mesh.channels)


def test_deploying_and_removing_are_differences_too():
    """From nothing to a mesh everything is added; back, everything is removed."""
    mesh = line()
    change = difference(None, mesh)
    assert [one.name for one in change.added] == ["source", "middle", "sink"]
    assert [one.name for one in change.channels_added] == ["a", "b"]
    assert not change.removed
    assert difference(mesh, None) == Difference(removed=change.added, channels_removed=change.channels_added)


def test_each_edit_is_seen():
    """Replaced and configured nodes are changed; new and lost ones, and their channels, are told apart."""
    mesh = line()
    replaced = difference(mesh, mesh.replace("middle", SLETS["triple"]))
    assert [(old.slet.name, new.slet.name) for old, new in replaced.changed] == [("double", "triple")]
    assert [new.suspended for _, new in difference(mesh, mesh.suspend("sink")).changed] == [True]
    added = difference(mesh, mesh.add(node("more", "console", item="c"), ChannelSpec("c")))
    assert ([one.name for one in added.added], [one.name for one in added.channels_added]) == (["more"], ["c"])
    wider = dataclasses.replace(mesh, channels={**mesh.channels, "a": ChannelSpec("a", "queue", {"capacity": 9})})
    assert [new.settings["capacity"] for _, new in difference(mesh, wider).channels_changed] == [9]


def test_every_setting_that_changes_and_why():
    """Set, the successor's default, new, dropped, and set (or not any more) at the value that it has already."""
    before = line().configure("middle", limit=5)
    after = before.replace("middle", SLETS["triple"], tags=["x"])
    changes = setting_changes(before.node("middle"), after.node("middle"))
    assert [str(one) for one in changes] == [
        "tags: ['x'] (new)",
        "limit: 5, dropped: triple has no such setting",
        "mode: <Mode.FAST: 'fast'>, dropped: triple has no such setting",
    ]
    assert [one.why for one in changes] == ["set", "dropped", "dropped"]
    back = line().replace("middle", SLETS["triple"]).node("middle")
    assert [str(one) for one in setting_changes(node("middle", "double"), back)][:2] == [
        "factor: 2.0 → 4.0",
        "tags: None (new, the default of triple)",
    ]
    assert [str(one) for one in setting_changes(back, node("middle", "triple"))] == [
        "factor: 4.0 → 3.0 (the default of triple)"
    ]
    plain, pinned = line().node("middle"), before.node("middle")
    assert [str(one) for one in setting_changes(plain, pinned)] == ["limit: 5, set from now on"]
    assert [str(one) for one in setting_changes(pinned, plain)] == ["limit: 5, follows the default from now on"]


@pytest.mark.parametrize(("kind", "ends"), [("queue", "2"), ("window", "2; the open windows run to their end")])
def test_the_text_of_a_channel_that_changes(kind, ends):
    """Only a channel with windows tells what becomes of them."""
    (text,) = channel_text(ChannelSpec("c", kind, {"count": 1}), ChannelSpec("c", kind, {"count": 2})).split("\n")
    assert text.endswith(f"count: 1 → {ends}")
