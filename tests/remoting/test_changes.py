"""Plans and changes of a platform in another process: what crosses, and what is refused."""

from pathlib import Path

import pytest

from exop import Application, Platform, connect, slet
from exop.errors import (
    MementoError,
    MeshError,
    PlanError,
    RequestInvalid,
    SettingError,
    StaleMesh,
    UnknownName,
)
from exop.hooks import Plugins
from exop.model.meshes.mesh import Mesh
from exop.model.meshes.shadow import Shadow
from exop.remoting.api import service
from exop.remoting.api.remote_platform import RemotePlatform
from exop.remoting.api.service import MOST_PLANS
from exop.remoting.api.wire_types import as_proof
from exop.runtime.catalog import Catalog, in_use
from exop.stock.slets import count_up, pass_on, show
from exop.wiring.changes.plan import Plan
from tests.rig import eventually


def test_plan_and_apply(remote: RemotePlatform) -> None:
    """A remote plan is printed, looked at and applied as a local one, and gives the mesh that runs."""
    mesh = remote.mesh("numbers")
    plan = remote.plan(mesh.configure("numbers", step=2))
    assert bool(plan)
    assert str(plan).startswith("numbers: revision 1 → 2\n  configure numbers: step: 1 → 2")
    assert [(one.verb, one.node) for one in plan.steps] == [("configure", "numbers")]
    assert remote.mesh("numbers").revision == 1
    after = plan.apply()
    assert (after.revision, after.node("numbers").settings["step"]) == (2, 2)
    assert remote.mesh("numbers") == after
    last = remote.status("numbers")["last_change"]
    assert last["revision"] == 2
    assert last["paused_ms"] > 0
    assert not remote.plan(after)


def test_a_client_that_lacks_the_code(remote: RemotePlatform) -> None:
    """It sees the mesh by the descriptions of its slets, edits it, and sends it back; it does not run it."""
    with in_use(Catalog(Plugins())):
        mesh = remote.mesh("numbers")
        assert not any(node.slet.is_here for node in mesh.nodes.values())
        schema = remote.status("numbers")["channels"]["numbers"]["schema"]
        out = mesh.node("numbers").slet.ports["out"].type
        assert schema == {"type": "int", "fields": {}, "fingerprint": out.fingerprint}
        with pytest.raises(UnknownName, match="did you mean 'step'"):
            mesh.configure("numbers", stepp=2)
        after = remote.plan(mesh.configure("numbers", step=2)).apply()
        assert remote.mesh("numbers") == after
    assert remote.mesh("numbers").node("numbers").settings["step"] == 2
    with (
        Platform() as here,
        pytest.raises(MeshError, match="the code of stock:.* is not here; install the plugin stock"),
    ):
        here.apply(mesh)


def test_a_client_that_lacks_the_code_of_slets_with_ports_of_their_own() -> None:
    """It sees the ports of each node, whether its settings or the mesh name them, and sends the mesh back."""
    app = Application("ports")
    numbers = app.add("numbers", count_up, to=3)
    for name in ("big", "small"):
        app.add(f"split-{name}", "stock:split", item=numbers, conditions={name: "item > 1"})
    big = app.output("split-big", "big")
    app.add("join", "stock:join", sides={"big": big, "rest": numbers}, by="real", time="real", within=1)
    with Platform(name="there", control=True) as platform, connect("there") as remote:
        platform.apply(app.build())
        here = remote.mesh("ports")
        with in_use(Catalog(Plugins())):
            mesh = remote.mesh("ports")
            assert not any(node.slet.is_here for node in mesh.nodes.values())
            assert {name: node.ports for name, node in mesh.nodes.items()} == {
                name: node.ports for name, node in here.nodes.items()
            }
            assert mesh.node("join").inputs() == {"sides.big": "split-big.big", "sides.rest": "numbers"}
            assert Mesh.from_toml(mesh.to_toml(), {}).at(mesh.revision) == mesh
            plan = remote.plan(mesh.rewire("join", **{"sides.rest": None, "sides.small": "split-small.small"}))
    assert "replace join: by itself, with the port sides.small, without sides.rest; the state" in str(plan)


def test_relative_paths_are_meant_from_the_client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a mesh, a topology file and an edit; what runs with a relative path, and a default, stay as they are."""

    @slet
    def reads(item: int, *, path: Path, more: list[Path] | None = None, other: Path = Path("default")) -> int:
        return item

    monkeypatch.chdir(tmp_path)
    with Platform(name="there", control=True) as platform, connect("there") as remote:
        platform.catalog.slets["here:reads"] = reads.__slet__.of("here")
        mesh = Application("paths")
        numbers = mesh.add("numbers", "stock:count_up")
        mesh.add("own", reads, item=numbers, path="own")
        platform.apply(mesh.build())
        text = platform.mesh("paths").to_toml()
        text = text.replace(platform.mesh("paths").nodes["own"].slet.identity, "here:reads")
        assert 'path = "own"' in text

        def settings(node: str) -> dict[str, object]:
            return dict(platform.mesh("paths").nodes[node].settings)

        edit = {"edit": "configure", "node": "own", "settings": {"more": '["a", "/b"]'}}
        remote.plan_edits("paths", [edit]).carry_out()
        assert settings("own") == {"path": Path("own"), "more": [tmp_path / "a", Path("/b")], "other": Path("default")}
        add = {"edit": "add", "node": "two", "slet": "here:reads", "given": {"item": "numbers", "path": "two"}}
        remote.plan_edits("paths", [add]).carry_out()
        assert settings("two")["path"] == tmp_path / "two"
        platform.remove("paths")
        remote.apply_topology(text)
        assert settings("own")["path"] == tmp_path / "own"
        assert not remote.plan_topology(text)
        remote.plan_topology(text.replace('path = "own"', 'path = "new"')).carry_out()
        assert settings("own")["path"] == tmp_path / "new"


def test_notes_cross(remote: RemotePlatform) -> None:
    """What a plan warns of is known on this side too."""
    mesh = remote.mesh("numbers")
    notes = remote.plan(mesh.remove("sink").remove("pass")).notes
    assert notes == (
        "no port reads numbers then: its items are dropped",
        "the state of sink (Written) is lost",
    )


def test_an_outdated_mesh(remote: RemotePlatform) -> None:
    """`StaleMesh` both when the plan is made, and when something was applied after it was."""
    mesh = remote.mesh("numbers")
    plan = remote.plan(mesh.configure("numbers", step=2))
    remote.apply(mesh.configure("numbers", step=3))
    with pytest.raises(StaleMesh, match="this mesh is revision 1, the running one 2"):
        plan.apply()
    with pytest.raises(StaleMesh):
        remote.plan(mesh)
    with pytest.raises(StaleMesh):
        remote.apply(mesh.configure("numbers", step=4))


def test_what_cannot_be_is_refused_there(remote: RemotePlatform) -> None:
    """A plan that cannot be is an error of its own class; so is one that fails when it is made."""
    mesh = remote.mesh("numbers")
    with pytest.raises(MeshError, match="another name|no slet|is connected"):
        remote.plan(mesh.remove("numbers").remove("pass").remove("sink"))
    with pytest.raises(UnknownName, match="nobody"):
        remote.plan(Mesh("nobody", mesh.nodes, mesh.channels, 1))
    plan = remote.plan(mesh.configure("numbers", to=10**9))
    with pytest.raises(PlanError, match="no plan 'x'"):
        remote.ask("carry_out", plan="x")
    plan.apply()
    with pytest.raises(PlanError, match=r"\(any more\); make it again"):
        plan.apply()


def test_code_does_not_travel(remote: RemotePlatform) -> None:
    """A slet that is in no plugin is refused on this side, with what makes it travel."""

    def own(item: int) -> int:
        return item

    mesh = remote.mesh("numbers").replace("pass", slet(own), lose_state=True)
    with pytest.raises(MeshError, match="is in no plugin, and code does not travel"):
        remote.plan(mesh)
    with pytest.raises(MeshError, match="code does not travel"):
        remote.apply(mesh)


def test_marks_travel(remote: RemotePlatform) -> None:
    """What is said of the next change alone (to lose the state) is said on the other side too, and then forgotten."""
    mesh = remote.mesh("numbers")
    with pytest.raises(MementoError, match="it keeps no state"):
        remote.plan(mesh.replace("sink", show))
    plan = remote.plan(mesh.replace("sink", show, lose_state=True))
    assert "the state (Written) is lost, as requested" in str(plan)
    after = plan.apply()
    assert after.node("sink").lose_state is False


@pytest.mark.parametrize(
    ("request_", "said"),
    [
        ({"application": "numbers", "edits": []}, "length >= 1"),
        ({"application": "numbers", "edits": [{"edit": "explode", "node": "pass"}]}, "Invalid value 'explode'"),
        ({"application": "numbers", "edits": [{"edit": "suspend"}]}, "missing required field `node`"),
        ({"application": "numbers", "edits": [{"edit": "suspend", "node": "pass", "x": 1}]}, "unknown field `x`"),
        ({"application": "numbers", "edits": [{"edit": "configure", "node": "a", "settings": {"a": 1}}]}, "`str`"),
        ({"application": "numbers", "edits": [{"edit": "suspend", "node": "pass"}] * 101}, "length <= 100"),
    ],
)
def test_edits_are_checked_by_type(remote: RemotePlatform, request_: dict[str, object], said: str) -> None:
    """An edit of another form is refused before it is looked at."""
    with pytest.raises(RequestInvalid, match=said):
        remote._client.call("plan_edits", request_)


def test_points_in_the_stream_travel(tmp_path: Path) -> None:
    """Pending lines of nodes and channels, and that windows are to be closed; edits as text name channels, too."""
    app = Application("pieces")
    pieces = app.channel("cut", kind="window", count=10)
    app.add("pass", pass_on, item=app.add("numbers", count_up), out=pieces)
    app.add("sink", "stock:write_lines", item=pieces, path=tmp_path / "out")
    with Platform(state=tmp_path / "state", name="there") as platform:
        platform.apply(app.build())
        with connect(tmp_path / "state") as remote:
            mesh = remote.apply(remote.mesh("pieces").configure("cut", count=3, when="item < 0", close_windows=True))
            assert remote.status("pieces")["channels"]["cut"]["pending"] == [
                "count=3, open windows closed when item < 0"
            ]
            plan = remote.plan(mesh.configure("cut", close_windows=True))
            assert "the open windows are closed; no longer pending" in str(plan)
            assert not plan.apply().channels["cut"].close_windows
            edit = {"edit": "configure", "node": "channel:cut", "settings": {"count": "4"}, "when": "item > 1"}
            remote.plan_edits("pieces", [edit]).apply()
            eventually(lambda: remote.mesh("pieces").channels["cut"].settings == {"count": 4})
            assert remote.mesh("pieces").revision == 5
            request = {"mesh": {"toml": mesh.to_toml(), "revision": None, "marks": {"pass": {"close_windows": True}}}}
            with pytest.raises(UnknownName, match="mark"):
                remote._client.call("plan", request)


def test_edits_as_text(remote: RemotePlatform) -> None:
    """Several edits make one plan; their texts are converted by the annotations of the settings there."""
    plan = remote.plan_edits(
        "numbers",
        [
            {"edit": "configure", "node": "numbers", "settings": {"step": "5"}},
            {"edit": "add", "node": "more", "slet": "stock:pass_on", "given": {"item": "numbers"}},
            {"edit": "suspend", "node": "more"},
        ],
    )
    assert {one.verb for one in plan.steps} == {"configure", "add"}
    after = plan.apply()
    assert after.node("numbers").settings["step"] == 5
    assert after.node("more").suspended
    with pytest.raises(SettingError, match="'step' does not fit") as caught:
        remote.plan_edits("numbers", [{"edit": "configure", "node": "numbers", "settings": {"step": "five"}}])
    assert "the settings of stock:count_up: " in caught.value.__notes__[0]


def test_plans_are_bounded(remote: RemotePlatform) -> None:
    """A plan is carried out once, and the oldest makes room."""
    mesh = remote.mesh("numbers").configure("numbers", step=2)
    plans = [remote.plan(mesh) for _ in range(MOST_PLANS + 1)]
    plans[-1].apply()
    for gone in (plans[0], plans[-1]):
        with pytest.raises(PlanError, match="the platform has no plan"):
            gone.apply()


def test_a_change_that_takes_long(remote: RemotePlatform, monkeypatch: pytest.MonkeyPatch) -> None:
    """A change is begun by one call and asked for by others, so that none of them is long."""
    monkeypatch.setattr(service, "PATIENCE", 0.001)
    mesh = remote.mesh("numbers")
    for step in (2, 3):
        mesh = remote.plan(mesh.configure("numbers", step=step)).apply()
    assert mesh.revision == 3


def test_a_diverted_path_is_meant_from_the_client(remote: RemotePlatform, monkeypatch: pytest.MonkeyPatch) -> None:
    """As text, as a path, by node; other settings stay as they are, also those of a node that has no such path."""
    offered = []
    monkeypatch.setattr(Plan, "proven", lambda plan, shadow, keep: offered.append(shadow) or plan)
    kept = {"numbers.step": 2, "other": "z", "numbers.path": "w", "gone.path": "v"}
    shadow = Shadow(items=5, divert={"path": "x", "sink.path": Path("y"), **kept})
    proof = as_proof(shadow, None)
    assert proof is not None
    remote.plan_edits("numbers", [{"edit": "suspend", "node": "sink"}], proof={**proof, "folder": "/client"})
    (made,) = offered
    assert made.divert == {"path": Path("/client/x"), "sink.path": Path("/client/y"), **kept}


def test_a_proof_travels(remote: RemotePlatform) -> None:
    """A shadow is data, except for a comparison of the caller's; a plan that replaces nothing is refused there."""
    mesh = remote.mesh("numbers")
    plan = remote.plan(mesh.configure("numbers", step=2))
    with pytest.raises(PlanError, match="replaces no slet and moves none: there is nothing to compare"):
        plan.apply(shadow=Shadow(items=5, divert={"path": Path("x")}))
    with pytest.raises(PlanError, match="a comparison is code, and code does not travel"):
        plan.apply(shadow=Shadow(items=5, compare=lambda one, other: True))
    with pytest.raises(RequestInvalid, match=">= 1"):
        remote.plan_edits("numbers", [{"edit": "suspend", "node": "sink"}], proof={"items": 0})
    with pytest.raises(PlanError, match="no predecessor to keep"):
        remote.plan(mesh.configure("numbers", step=2)).apply(keep=5.0)
