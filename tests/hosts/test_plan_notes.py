"""What a plan over several hosts says of each of them, before anything has happened."""

from __future__ import annotations

from typing import Any

import pytest

from exop import Application
from exop.hosts.moves.transfer import Moves
from exop.hosts.plan_notes import cycles_over_hosts, notes_by_host, slow_connectors
from exop.model.meshes.fragments import Placement
from exop.model.meshes.mesh import Mesh
from exop.wiring.changes.arrivals import MoveCost
from tests.hosts.hosts_rig import check, collect, double, hosts, keyless, numbers, rows


def spanning() -> Mesh:
    """Numbers on a, doubled on b, checked and collected on a; others on c."""
    app = Application("app")
    twice = app.on("b").add("double", double, item=app.add("numbers", numbers, upto=10_000_000))
    app.add("collect", collect, item=app.add("check", check, item=twice), into="first")
    far = app.on("c")
    far.add("far", collect, item=far.add("beyond", numbers), into="second")
    return app.build()


def notes(before: Mesh, after: Mesh) -> list[str]:
    """The notes of a change at home `a`, where every state has 1204 bytes."""
    cost = MoveCost(ahead=0, cut=1204, seconds=0.02, whole="")
    return [*notes_by_host(Moves(Placement(before, "a"), Placement(after, "a")), lambda host, node: cost)]


def test_a_cycle_over_hosts_is_named():
    """Once, with its hosts and the cure; a cycle on one host is not."""
    app = Application("app")
    again = app.channel("again", "queue")
    source = app.add("numbers", numbers, out=again)
    twice = app.on("b").add("double", double, item=source)
    app.add("check", check, item=twice, out=again)
    app.add("collect", collect, item=twice)
    mesh = app.build()
    (note,) = cycles_over_hosts(Placement(mesh, "a"))
    assert note.startswith("the cycle double → check → double is on several hosts (a, b): ")
    assert note.endswith('connector={"mode": "offline"}')
    assert [*cycles_over_hosts(Placement(mesh.move("double", to="a"), "a"))] == []
    assert [*cycles_over_hosts(Placement(spanning(), "a"))] == []


def test_a_plan_warns_of_what_the_change_brings():
    """A cycle over hosts is named when it comes about, and by no later plan."""
    app = Application("app")
    again = app.channel("again", "queue")
    app.add("numbers", numbers, upto=1, out=again)
    app.add("double", double, item=again)
    app.add("check", check, item="double", out=again)
    with hosts("a", "b") as (a, _):
        plan = a.plan(a.apply(app.build()).move("double", to="b"))
        warning = "warning: the cycle double → check → double is on several hosts"
        assert warning in str(plan)
        plan.apply()
        assert "cycle" not in str(a.plan(a.mesh("app").configure_channel("again", capacity=50)))


def durable(connector: dict[str, Any], every: float | None = 2.0) -> Placement:
    """Numbers that go from a to b, past a connector with these settings."""
    app = Application("app")
    if every is not None:
        app.durable(every=every)
    app.add("numbers", numbers, out=(out := app.channel("numbers", connector=connector)))
    app.on("b").add("check", check, item=out)
    return Placement(app.build(), "a")


@pytest.mark.parametrize(
    ("connector", "why", "cure"),
    [
        ({"mode": "sync"}, "each item waits until a checkpoint has it", {"mode": "async"}),
        ({"capacity": 10}, "at most 10 items wait until a checkpoint has them", {"capacity": 1024}),
        ({"ack": "stable", "mode": "sync", "capacity": 10}, "each item waits", {"mode": "async", "capacity": 1024}),
    ],
)
def test_a_connector_as_slow_as_the_checkpoints_is_named(connector: dict[str, Any], why: str, cure: dict[str, Any]):
    """With the reason, and the cure by which the warning goes; without checkpoints, or acknowledged before, none is."""
    (note,) = slow_connectors(durable(connector))
    assert note.startswith("'numbers' is slow from a to b, with a checkpoint every 2 s: ")
    assert why in note
    assert str({one: cure[one] for one in [*cure][:1]}).replace("'", '"') in note
    for other in (durable(connector | cure), durable(connector, None), durable(connector | {"ack": "done"})):
        assert [*slow_connectors(other)] == []


def test_where_streams_meet_before_a_connector_is_named():
    """An item is sent when a checkpoint of its host has it; the cure is a weaker acknowledgement."""

    def meeting(**connector: Any) -> list[str]:
        app = Application("app")
        app.durable(every=2.0)
        both = app.channel("both", connector=connector)
        app.add("one", numbers, out=both)
        app.add("other", numbers, out=both)
        app.on("b").add("check", check, item=both)
        return [*slow_connectors(Placement(app.build(), "a"))]

    (note,) = meeting()
    assert "several streams meet at the channel 'both', so that an item is sent when a checkpoint has it" in note
    cure = 'give the channel connector={"ack": "done"}, with which a crash of a host may lose, double or replace items'
    assert note.endswith(cure)
    assert meeting(ack="done") == []


def test_dead_letters_that_come_from_several_drivers_are_named():
    """A slet sets aside its own failures, and what the table behind it refuses, in an order that no restart repeats."""

    def refused(*, shared: bool) -> list[str]:
        app = Application("app")
        app.durable(every=2.0)
        table = app.channel("table", "table", key="n")
        app.add("one", keyless, item=app.add("source", numbers), out=table, dead_letters=app.channel("dead"))
        if shared:
            app.add("other", rows, out=table)
        app.on("b").add("look", "stock:pass_on", item="dead")
        return [*slow_connectors(Placement(app.build(), "a"))]

    (note,) = refused(shared=True)
    assert "dead letters of one come from several drivers, since others fill 'table', too" in note
    assert refused(shared=False) == []


def test_a_move_is_told_at_both_hosts():
    """With the bytes that travel, the connectors that come and go, and the hosts that have nothing to do."""
    assert notes(spanning(), spanning().move("check", to="b")) == [
        "on a (home):",
        "    check leaves for b, with its state: 1,204 bytes in the cut; its stream stops for about 20 ms",
        "    rewire collect: item: check → check.from.b",
        "    connect the channel check from b",
        "    disconnect the channel double from b",
        "on b:",
        "    check arrives from a",
        "    connect the channel check to a",
        "    disconnect the channel double to a",
        "not touched: c",
    ]
    lost = notes(spanning(), spanning().move("check", to="b", lose_state=True))
    assert lost[1] == "    check leaves for b, without its state"


def test_a_channel_is_configured_at_its_host():
    """The other hosts have nothing to do."""
    app = Application("app")
    near, far = (one.channel(name, "queue", capacity=9) for one, name in ((app, "near"), (app.on("b"), "far")))
    app.add("check", check, item=app.add("numbers", numbers, out=near), out=far)
    app.on("b").add("collect", collect, item=far)
    app.add("double", double, item=near)
    mesh = app.build()
    for channel, host, other in (("near", "a (home)", "b"), ("far", "b", "a")):
        text = f"    configure the channel {channel}: capacity: 9 → 50"
        assert set(notes(mesh, mesh.configure_channel(channel, capacity=50))) == {
            f"on {host}:",
            text,
            f"not touched: {other}",
        }
    text = "\n".join(notes(mesh, mesh.configure_channel("far", connector={"mode": "offline"})))
    assert "    configure the channel far: connector: None → {'mode': 'offline'}" in text
    assert "far.to.b" not in text


@pytest.mark.parametrize(
    ("cost", "expected"),
    [
        (
            MoveCost(ahead=104_000_000, cut=0, seconds=0.0612, whole=""),
            "104 MB ahead; its stream stops for about 60 ms",
        ),
        (
            MoveCost(ahead=1_500_000_000, cut=70_000, seconds=0.04, whole="rows"),
            "1.5 GB ahead and 70 KB in the cut; its stream stops for about 40 ms",
        ),
        (
            MoveCost(ahead=0, cut=100_000_000, seconds=1.31, whole="rows"),
            "100 MB in the cut; its stream stops for about 1.3 s: the field 'rows' is one piece",
        ),
        ("b is away", "of unknown size (b is away)"),
    ],
)
def test_the_plan_tells_how_long_a_stream_stops(cost: MoveCost | str, expected: str):
    """With the bytes that travel while it runs and while it stops, and the reason for a long stop."""
    before = spanning()
    moves = Moves(Placement(before, "a"), Placement(before.move("check", to="b"), "a"))
    found = [*notes_by_host(moves, lambda *_: cost)]
    assert f"    check leaves for b, with its state: {expected}" in found


def test_a_change_on_one_host_touches_no_other():
    """A slet without memento travels without state; a replacement stays where it is."""
    before = spanning()
    assert notes(before, before.replace("far", collect, into="third"))[-1] == "not touched: a, b"
    assert "    double leaves for a; it keeps no state" in notes(before, before.move("double", to=None))


def test_a_sink_that_is_removed_commits_what_it_holds():
    """Of a durable application, at its host: one that moves does not, since its state goes along."""
    app = Application("app")
    app.durable(every=1.0)
    app.on("b").add("rows", "stock:write_parquet", item=app.add("numbers", numbers), path="out")
    app.add("collect", collect, item="numbers")
    found = notes(mesh := app.build(), mesh.remove("rows"))
    told = "    rows commits what it holds: a checkpoint is taken while all drivers are parked"
    assert [line for line in found[found.index("on b:") :] if "commits" in line] == [told]
    assert told not in notes(mesh, mesh.move("rows", to="c"))


def test_a_state_that_is_lost_is_told():
    """Of a node that is removed, at its host; one that moves has it there."""
    mesh = spanning()
    told = "    the state of check (Last) is lost"
    assert told in notes(mesh, mesh.remove("check"))
    assert told not in notes(mesh, mesh.move("check", to="third"))


def test_the_channel_and_its_content_are_told():
    """A channel with content is named; a direct one has nothing that travels."""
    app = Application("kept")
    app.add("collect", collect, item=app.add("numbers", numbers, out=app.channel("queue", "queue")))
    found = notes(app.build(), app.build().move("queue", to="b"))
    assert "    the channel queue leaves for b, with its content" in found
    assert "    the channel queue arrives from a" in found


def test_the_plan_of_a_running_application_knows_the_sizes():
    """The hosts are asked when the plan is shown; nothing is changed."""
    with hosts("a", "b", "c") as (a, *_):
        mesh = a.apply(spanning())
        text = str(a.plan(mesh.move("check", to="b")))
        assert "  move check: home → b\n" in text
        assert "check leaves for b, with its state: " in text
        assert " bytes in the cut; its stream stops for about " in text
        assert "  not touched: c" in text
        assert a.mesh("app") == mesh
        a.remove("app")
