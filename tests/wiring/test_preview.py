"""The queues that the wiring would insert, known before anything runs."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from exop.app import Application
from exop.errors import WiringError
from exop.model.meshes.mesh import ChannelSpec, Mesh, Node
from exop.model.slets.ports import InputPort
from exop.model.slets.slet import slet
from exop.platform import Platform
from exop.runtime.channels import BUILT_IN, REMOTE
from exop.stock.slets import WriteLines, count_up, pass_on, show
from exop.wiring.changes.channels import preview
from tests.rig import Two

KINDS = {kind.kind: kind for kind in BUILT_IN}


@slet
def total(items: InputPort[int]) -> Iterator[int]:
    """Pull everything, and add it up."""
    yield sum(items)


def straight() -> Application:
    """Nothing meets anything."""
    app = Application("straight")
    app.add("sink", Two, left=(numbers := app.add("numbers", count_up, to=3)), right=numbers)
    return app


def meeting() -> Application:
    """Two sources drive one slet."""
    app = Application("meeting")
    app.add("sink", Two, left=app.add("a", count_up, to=3), right=app.add("b", count_up, to=3))
    return app


def table() -> Application:
    """Two sources push into a channel that keeps something."""
    app = Application("table")
    kept = app.channel("kept", kind="log")
    app.add("a", count_up, to=3, out=kept)
    app.add("b", count_up, to=3, out=kept)
    app.add("sink", pass_on, item=kept)
    return app


def pulling() -> Application:
    """A slet pulls from a channel that is no queue of its own."""
    app = Application("pulling")
    numbers = app.add("numbers", count_up, to=3)
    app.add("total", total, items=numbers)
    app.add("sink", pass_on, item=numbers)
    return app


def pulling_alone() -> Application:
    """A slet that pulls is alone at a queue."""
    app = Application("pulling-alone")
    queue = app.channel("queue", kind="queue", capacity=10)
    app.add("numbers", count_up, to=3, out=queue)
    app.add("total", total, items=queue)
    return app


@pytest.mark.parametrize("make", [straight, meeting, table, pulling, pulling_alone])
def test_as_deployed(make: object) -> None:
    """The preview names the same places as the wiring does when the mesh is deployed."""
    mesh = make().build()  # type: ignore[operator]
    foreseen, _ = preview(mesh, KINDS)
    with Platform() as platform:
        platform.apply(mesh)
        platform.wait(mesh.name)
        found = platform.status(mesh.name)["inserted"]
    assert set(foreseen) == set(found)
    assert all(foreseen.values())


def test_nothing_is_opened(tmp_path: Path) -> None:
    """No slet is opened, and no channel: a file that a sink would write is not made."""
    app = Application("dry")
    app.add("sink", WriteLines, item=app.add("numbers", count_up, to=3), path=tmp_path / "out")
    assert preview(app.build(), KINDS) == ({}, [])
    assert not (tmp_path / "out").exists()


def test_a_mesh_that_cannot_be_is_refused() -> None:
    """The preview checks first: a cycle without a queue has no execution."""
    spec = pass_on.__slet__  # type: ignore[attr-defined]
    sink = show.__slet__  # type: ignore[attr-defined]
    nodes = {
        "a": Node("a", spec, {}, {"item": "y", "out": "x"}),
        "b": Node("b", spec, {}, {"item": "x", "out": "y"}),
        "sink": Node("sink", sink, {}, {"item": "x"}),
    }
    mesh = Mesh("cycle", nodes, {name: ChannelSpec(name) for name in "xy"})
    with pytest.raises(WiringError, match="contains no queue"):
        preview(mesh, KINDS)


def test_a_mesh_over_several_hosts_is_previewed_host_by_host() -> None:
    """Where a connector arrives, items wait already: two sources on other hosts need no queue in front of a slet."""
    kinds = {**KINDS, **{kind.kind: kind for kind in REMOTE}}
    assert list(preview(meeting().build(), kinds)[0]) == ["a -> sink.left", "b -> sink.right"]
    assert preview(meeting().build().move("sink", to="edge"), kinds) == ({}, [])
