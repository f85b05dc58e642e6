"""Applications that span hosts: deployed, awaited and removed as one."""

from __future__ import annotations

from exop import Application
from exop.model.meshes.mesh import Mesh
from tests.hosts.hosts_rig import SEEN, collect, double, hosts, numbers
from tests.rig import PATIENCE


def spanning(upto: int = 1000) -> Mesh:
    """Numbers on a, doubled on b, collected on a."""
    app = Application("app")
    source = app.add("numbers", numbers, upto=upto)
    twice = app.on("b").add("double", double, item=source)
    app.add("collect", collect, item=twice)
    return app.build()


def test_items_flow_through_both_hosts():
    """The home deploys a fragment on each host; it has finished when all fragments have ended."""
    with hosts("a", "b") as (a, b):
        made = a.apply(spanning())
        assert made.revision == 1
        assert a.wait("app", PATIENCE)
        assert b.wait("app", PATIENCE)
        assert SEEN["all"] == [2 * number for number in range(1, 1001)]
        assert a.mesh("app") == made
        assert sorted(made.nodes) == ["collect", "double", "numbers"]
        assert "double" in b.mesh("app").nodes
        assert a.remove("app", PATIENCE)
        assert a.applications() == b.applications() == []
