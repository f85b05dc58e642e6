"""Operations on one node, asked of the home: the platform that runs the node carries them out."""

from __future__ import annotations

import pytest

from exop import Application
from exop.cli.status_text import problem_lines
from exop.errors import ComponentFailed, LifecycleError, PeerUnreachable, UnknownName
from exop.report import totals_of, whole
from tests.change.tools import endless
from tests.hosts.hosts_rig import SEEN, Last, check, collect, hosts, keyless, numbers
from tests.rig import PATIENCE, eventually


def test_the_state_of_a_node_on_another_host():
    """Its memento, and the cost of a move, are those that the other platform has."""
    with hosts("a", "b") as (a, b):
        app = Application("app")
        app.on("b").add("check", check, item=app.add("numbers", numbers, upto=7))
        a.apply(app.build())
        a.wait("app", PATIENCE)
        found = a.memento("app", "check")
        assert isinstance(found, Last)
        assert found.number == 7
        assert a.move_cost("app", "check")["cut"] == b.move_cost("app", "check")["cut"] > 0
        assert a.export_memento("app", "check")[0] == "json"
        with pytest.raises(UnknownName, match="has no node 'chekc'"):
            a.memento("app", "chekc")


def test_a_failed_node_on_another_host_is_seen_and_resumed():
    """The item that it keeps is listed and exported at the home, and tried again by the other platform."""
    with hosts("a", "b") as (a, _):
        app = Application("app")
        app.on("b").add("collect", collect, item=app.add("numbers", numbers, upto=2), into="broken")
        SEEN["broken"] = None  # type: ignore[assignment]
        a.apply(app.build())
        with pytest.raises(ComponentFailed):
            a.wait("app", PATIENCE)
        assert "'NoneType' object has no attribute 'append'" in a.failed_items("app", "collect")["kept"]["error"]
        with pytest.raises(UnknownName, match="has no node 'colect'; did you mean 'collect'"):
            a.failed_items("app", "colect")
        SEEN["broken"] = []
        a.resume("app", "collect")
        eventually(lambda: SEEN["broken"] == [1, 2], "it is tried again")
        a.remove("app")


@pytest.mark.parametrize("policy", ["suspend", "dead-letter"])
def test_what_a_channel_on_another_host_refuses(policy):
    """The relay in front of it applies the policy of the producer; its items are listed and tried again at the home."""
    with hosts("a", "b") as (a, _):
        app = Application("app")
        kept = app.on("b").channel("kept", "table", key="n")
        app.add("keyless", keyless, item=app.add("numbers", endless), out=kept, on_error=policy)
        a.apply(app.build())
        cure = "exop resume" if policy == "suspend" else "exop item list"
        eventually(lambda: f"`{cure} app.kept.from.a`" in "".join(problem_lines(a.status("app"))), "it is told")
        found = a.failed_items("app", "kept.from.a")
        assert [one["item"] for one in (found["kept"], *found["dead_letters"]) if one] == ["{'m': 5}"]
        if policy == "suspend":
            a.resume("app", "kept.from.a")
        else:
            assert a.retry_dead_letters("app", "kept.from.a") == 1
        eventually(lambda: a.failed_items("app", "kept.from.a")["kept" if policy == "suspend" else "count"])
        counted = whole(a.status("app"))
        assert [*counted["nodes"]] == ["numbers", "keyless"]
        assert totals_of(counted)["items"] == counted["nodes"]["numbers"]["metrics"]["items_out"]
        with pytest.raises(UnknownName):
            a.resume("app", "kept.from.b")


def test_a_suspended_node_on_another_host_is_resumed_by_a_change():
    """The mesh at the home says that it is suspended, so the home changes it; a node that runs refuses."""
    with hosts("a", "b") as (a, _):
        app = Application("app")
        app.on("b").add("collect", collect, item=app.add("numbers", numbers, upto=3))
        mesh = a.apply(app.build().suspend("collect"))
        assert mesh.node("collect").suspended
        a.resume("app", "collect")
        assert not a.mesh("app").node("collect").suspended
        assert a.wait("app", PATIENCE)
        assert SEEN["all"] == [1, 2, 3]
        with pytest.raises(LifecycleError):
            a.resume("app", "collect")


def test_a_host_that_is_lost_is_named():
    """The error names the platform that runs the node; nothing waits for it."""
    with hosts("a", "b") as (a, b):
        app = Application("app")
        app.on("b").add("check", check, item=app.add("numbers", numbers, upto=7))
        a.apply(app.build())
        b.close()
        with pytest.raises(PeerUnreachable, match="b"):
            a.memento("app", "check")
