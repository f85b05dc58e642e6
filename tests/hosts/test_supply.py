"""The code that a host lacks: a bundle travels there, and anything else is refused in the plan."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from exop import Application, Platform
from exop.errors import BundleError, BundleInUse, ConnectionLost, PeerUnreachable, PlanError
from exop.hosts.supply import Supply
from exop.model.meshes.mesh import Mesh
from tests.bundle.folders import SLETS, manifest, speeds, started, states, write
from tests.hosts.hosts_rig import SEEN, collect, hosts, numbers
from tests.rig import PATIENCE


def summing(a: Platform, tmp_path: Path) -> Mesh:
    """Numbers on a, added up on b by a slet of a bundle that only a has, collected on a."""
    started(a, speeds(tmp_path))
    app = Application("app")
    source = app.add("numbers", numbers, upto=4)
    app.add("collect", collect, item=app.on("b").add("sum", a.slets()["speeds@1.0.0:add_up"], number=source))
    return app.build()


def test_a_bundle_that_the_host_lacks_travels_along(tmp_path: Path):
    """It is installed and started before the host opens its slets; one that is there already is not sent again."""
    with hosts("a", "b") as (a, b):
        mesh = summing(a, tmp_path)
        a.apply(mesh)
        assert states(b) == {"speeds@1.0.0": "started"}
        assert a.wait("app", PATIENCE)
        assert SEEN["all"] == [1, 3, 6, 10]
        a.remove("app")


def test_a_bundle_imports_there_what_it_imports_here(tmp_path: Path):
    """Also where the host has started a higher version, as an update leaves it whose home died; and so on downwards."""
    with hosts("a", "b") as (a, b):
        started(b, speeds(tmp_path, "2.0.0"))
        started(a, speeds(tmp_path))
        for name, needed in (("middle", "speeds"), ("top", "middle")):
            text = manifest(name=name, more=f'requires.bundles = ["{needed}"]')
            slets = SLETS.replace("speeds.helpers", f"{needed}.{'helpers' if needed == 'speeds' else 'slets'}")
            started(a, write(tmp_path / name, {"bundle.toml": text, "slets.py": slets}))
        app = Application("app", plugins=a.plugins)
        app.on("b").add("sum", "top@1.0.0:add_up", number=app.add("numbers", numbers, upto=4))
        a.apply(app.build())
        found = {row["bundle"]: row["imports_from"] for row in b.bundles.list()}
        assert (found["top@1.0.0"], found["middle@1.0.0"]) == (["middle@1.0.0"], ["speeds@1.0.0"])
        a.remove("app")


def test_the_plan_names_the_bundle_that_travels(tmp_path: Path):
    """Nothing is sent before the change is made."""
    with hosts("a", "b") as (a, b):
        mesh = a.apply(summing(a, tmp_path).move("sum", to=None))
        plan = a.plan(mesh.move("sum", to="b"))
        assert "the bundle speeds@1.0.0 travels to b, which lacks speeds@1.0.0:add_up" in str(plan)
        assert states(b) == {}
        a.remove("app")


def test_a_host_that_takes_no_bundle_refuses_the_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The error names the host, the bundle and the cure, and nothing runs anywhere."""
    with hosts("a", "b") as (a, b):
        mesh = summing(a, tmp_path)

        def refuse(archive: bytes, name: str) -> None:
            raise BundleError(bundle=name, problem="is not permitted", cure="ask its admin")

        monkeypatch.setattr(b.bundles, "install_archive", refuse)
        with pytest.raises(
            PlanError, match=r"b lacks the bundle speeds@1.0.0, and does not take it from a: .*permitted"
        ):
            a.apply(mesh)
        assert a.applications() == b.applications() == []


@pytest.mark.parametrize("away", [True, False])
def test_what_an_undone_change_leaves_on_a_host_is_told(away: bool):
    """The host is killed while the change is made, or while it gets a bundle: with the commands for its return."""
    lost = ConnectionLost(address="h", operation="install_bundle", problem="reset")
    peer = Mock(uninstall_bundle=Mock(side_effect=PeerUnreachable(address="h", problem="refused")))
    peer.list_bundles.return_value = [{"bundle": "c@1.0.0", "state": "installed"}]
    peer.stop_bundle.side_effect = BundleInUse(bundle="c@1.0.0", event="stopped", users=["other.node"])
    peer.start_bundle.side_effect = [{}, lost if away else {}]
    links = {"h": Mock(platform=Mock(return_value=peer))}
    wires: dict[str, tuple[str, ...]] = {"c@1.0.0": (), "b@2.0.0": ("c@1.0.0",)}
    code = {name: {"imports_from": found, "archive": bytes} for name, found in wires.items()}
    supply = Supply("a", lambda: links, lambda name: code)  # type: ignore[arg-type,return-value]
    with (
        pytest.raises(PlanError, match="does not take .*(reset).*repeat this when" if away else "undone") as told,
        supply.sent("app", {"h": {"b@2.0.0": ["b@2.0.0:slet"]}}),
    ):
        raise PlanError("undone")
    first, second = told.value.__notes__
    assert "b@2.0.0, which the change needed, stays on h (no platform answers at h: refused;" in first
    assert first.endswith("`exop bundle uninstall b@2.0.0 --on h`")
    assert second.endswith("`exop bundle stop c@1.0.0 --on h`")


def test_a_bundle_of_other_files_or_imports_does_not_count():
    """A host that has started other files of the same version, or of what they import, lacks it; or tells no digest."""

    class Link:
        """A host that has the slet."""

        def __init__(self, *rows: dict[str, Any]) -> None:
            self.rows = rows

        def call(self, operation: str) -> Any:
            """Answer."""
            return self.rows if operation == "list_bundles" else [{"slet": "b@1.0.0:s"}]

    wires = {"d@1.0.0": [], "c@1.0.0": ["d@1.0.0"], "b@1.0.0": ["c@1.0.0"]}
    here = {name: {"digest": "1", "imports_from": found} for name, found in wires.items()}
    same = [{"bundle": name, **facts} for name, facts in here.items()]
    for number, change, unknown in (
        (2, {}, set()),
        (2, {"digest": "2"}, {"b@1.0.0:s"}),
        (2, {"imports_from": ["c@2.0.0"]}, {"b@1.0.0:s"}),
        (1, {"imports_from": ["d@2.0.0"]}, {"b@1.0.0:s"}),
        (2, {"imports_from": ["c@1.0.0", "e@1.0.0"]}, set()),  # starting it again would change nothing there
        (0, {"digest": "2"}, {"b@1.0.0:s"}),
    ):
        rows = [row | change if place == number else row for place, row in enumerate(same)]
        supply = Supply("a", lambda rows=rows: {"h": Link(*rows)}, lambda name: here)  # type: ignore[misc]
        assert supply._unknown("h", {"b@1.0.0:s"}) == unknown
    supply = Supply("a", lambda: {"h": Link({"bundle": "b@1.0.0"})}, lambda name: here)  # type: ignore[dict-item]
    assert supply._unknown("h", {"b@1.0.0:s"}) == set()


def test_code_in_no_bundle_is_refused_in_the_plan():
    """A plugin does not travel: the plan names the slet, the host and what to install there."""
    with hosts("a", "b") as (a, b):
        app = Application("app")
        app.add("collect", collect, item=app.add("numbers", numbers, upto=4))
        mesh = a.apply(app.build())
        b.catalog.slets = {name: one for name, one in b.catalog.slets.items() if not name.endswith(":collect")}
        with pytest.raises(
            PlanError, match=r"app: on b, the code of test:collect is not here; install the plugin test"
        ):
            a.plan(mesh.move("collect", to="b"))
        a.remove("app")
