"""An update of a bundle is a plan over all hosts of an application, and its home can always go on from it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from exop import Application
from exop.cli.commands.state import examine, state_check
from exop.errors import BundleError, BundleInUse, PlanError, StateError, WiringError
from exop.stock.slets import count_up
from tests.change.tools import endless
from tests.hosts.hosts_rig import PlanTime
from tests.hosts.updating import CHECK, NODES, OPENS, RECORDS, SHUT, Hosts, line, marks
from tests.rig import eventually

ONE, TWO = {"marks@1.0.0:check"}, {"marks@2.0.0:check"}


@pytest.fixture
def there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hosts]:
    """Two platforms, with the first version at the home `a`."""
    with ExitStack() as stack:
        yield Hosts(tmp_path, stack, monkeypatch)


@pytest.mark.parametrize("places", ["", "ba", "bbb"])
def test_an_update_reaches_every_host(there: Hosts, places: str):
    """Also where a node has been at another host and is back, or where the home runs no node of the bundle."""
    there.a.apply(line("app", there.a, **dict(zip(("first", "second", "third"), places or "b", strict=False))))
    if not places:
        there.a.apply(there.a.mesh("app").move("first", to=None))
    facts = there.update(2)
    assert facts["replaced"] == ["app.first", "app.second", "app.third"]
    assert facts["stopped"] == ["marks@1.0.0"]
    assert there.agrees() == TWO
    # What a move has sent to a host stays there when the node leaves.
    assert there.started() == {"a": ["marks@2.0.0"], "b": ["marks@2.0.0" if places else "marks@1.0.0"]}
    there.a.apply(there.a.mesh("app").configure("first", unit="y"))
    assert there.agrees() == TWO
    assert there.update(1)["stopped"] == ["marks@2.0.0"]
    for name in "ba":
        there.all[name].close()
        stored = examine(there.folder / name)["applications"]
        there.back(name)
    assert there.agrees() == ONE
    assert there.a.history("app")[-1]["revision"] == there.a.mesh("app").revision == stored[0]["revision"]
    steps = [step for one in there.a.history("app") for step in one.get("steps", ()) if step.startswith("replace")]
    assert len(steps) == 6


def test_what_imports_from_it_is_taken_along_on_every_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Also on a host that runs no slet of the bundle: its slets import the class of the items, which gets a field."""
    with ExitStack() as stack:
        there = Hosts(tmp_path, stack, monkeypatch, slets=RECORDS)
        there.a.apply(line("app", there.a, records=True, first="b", third="b"))
        assert there.agrees() == there.slets_of(1)
        for version in (2, 3):
            facts = there.update(version)
            assert facts["replaced"] == ["app.first", "app.make", "app.second", "app.third"]
            assert there.agrees() == there.slets_of(version)
            assert all(step for one in there.all["b"].history("app") for step in one["steps"])
            names = [f"checks@1.0.0+marks.{version}.0.0", f"marks@{version}.0.0"]
            assert there.started() == {"a": names, "b": names}
        for name in "ba":
            there.all[name].close()
            there.back(name)
        assert there.agrees() == there.slets_of(3)


def test_another_host_does_not_get_items_with_fields_that_its_class_lacks(tmp_path: Path, monkeypatch: Any):
    """Here a change that replaces one slet alone: it is refused, since no item of it could be decoded there."""
    with ExitStack() as stack:
        there = Hosts(tmp_path, stack, monkeypatch, slets=RECORDS)
        there.a.apply(line("app", there.a, records=True, first="b"))
        there.a.bundles.start(there.a.bundles.install(marks(tmp_path, 2, RECORDS))["bundle"])
        alone = there.a.mesh("app").replace("make", there.a.slets()["marks@2.0.0:make"])
        with pytest.raises(WiringError, match=r"cannot feed first.item .* the field 'f1' \(int\) is not expected"):
            there.a.apply(alone)
        assert there.agrees() == there.slets_of(1)


def test_an_update_warns_of_a_sink_on_another_host(tmp_path: Path, monkeypatch: Any):
    """Only that host could tell whether its table has a column for a field that the class of the items gets."""
    with ExitStack() as stack:
        there = Hosts(tmp_path, stack, monkeypatch, slets=RECORDS)
        app = Application("app", plugins=there.a.plugins)
        items = app.add("make", "marks@1.0.0:make", item=app.add("numbers", endless))
        app.on("b").add("far", "stock:write_sqlite", item=items, path=tmp_path / "far")
        app.on("b").add("log", "stock:write_sqlite", item=app.add("others", count_up), path=tmp_path / "log")
        there.a.apply(app.build())
        (warning,) = there.update(2)["warnings"]
        assert warning == "warning: far: its items change; look on b whether it takes them"


def test_the_home_needs_the_bundle_of_every_host(there: Hosts):
    """It restores the whole mesh: a bundle that only another host runs is in use at the home."""
    there.a.apply(line("app", there.a, first="b", second="b", third="b"))
    with pytest.raises(BundleInUse, match=r"app\.first, app\.second, app\.third"):
        there.a.bundles.stop("marks")


def test_a_refused_update_leaves_nothing_on_any_host(there: Hosts):
    """Not the new version either: corrected files with the same version are taken by all hosts."""
    there.a.apply(line("app", there.a, second="b"))
    SHUT.append("")
    try:
        with pytest.raises(PlanError, match="no room; nothing was changed on any host"):
            there.update(2, OPENS)
    finally:
        SHUT.clear()
    assert there.agrees() == ONE
    failed = there.a.history("app")[-1]
    assert (failed["steps"], failed["outcome"].partition(":")[0]) == ([f"replace {node}" for node in NODES], "NotNow")
    assert {name: [row["bundle"] for row in one.bundles.list()] for name, one in there.all.items()} == {
        "a": ["marks@1.0.0"],
        "b": ["marks@1.0.0"],
    }
    shutil.rmtree(there.folder / "marks-2")
    there.update(2)
    assert there.agrees() == TWO


def test_other_files_of_the_same_version_are_not_taken_for_it(there: Hosts):
    """As an update leaves them that was interrupted before its decision, if its files are edited then."""
    there.a.apply(line("app", there.a, second="b"))
    b = there.all["b"].bundles
    b.install(marks(there.folder, 2, CHECK.replace("+ 1", "+ 2")))
    shutil.rmtree(there.folder / "marks-2")
    with pytest.raises(PlanError, match="installed already, with other files.*`exop bundle uninstall marks@2.0.0`"):
        there.update(2)
    assert there.agrees() == ONE
    b.uninstall("marks@2.0.0")
    there.update(2)
    assert there.agrees() == TWO


def test_a_host_that_is_away_refuses_the_update(there: Hosts):
    """The update begins when all hosts are reached, as any other change."""
    there.a.apply(line("app", there.a, second="b"))
    there.all["b"].close()
    with pytest.raises(PlanError, match="b cannot be reached"):
        there.update(2)
    there.back("b")
    assert there.agrees() == ONE


def test_an_update_is_given_to_the_home(there: Hosts):
    """Another host refuses it with the home; beside an application of its own, it names what it leaves alone."""
    there.a.apply(line("app", there.a, second="b"))
    with pytest.raises(BundleError, match=r"would replace only app\.second, .*`--on a`"):
        there.all["b"].bundles.update(marks(there.folder, 2))
    assert there.started() == {"a": ["marks@1.0.0"], "b": ["marks@1.0.0"]}
    there.all["b"].apply(line("own", there.all["b"]))
    facts = there.all["b"].bundles.update(marks(there.folder, 2))
    assert facts["elsewhere"] == {"app.second": "a"}
    assert facts["replaced"] == ["own.first", "own.second", "own.third"]
    assert facts["stopped"] == []
    assert there.agrees() == ONE
    there.update(2)
    assert there.agrees() == TWO
    assert there.started() == {"a": ["marks@2.0.0"], "b": ["marks@2.0.0"]}


def test_applications_on_several_hosts_are_updated_one_after_the_other(there: Hosts):
    """Together with others it is refused, before anything has happened; the cure of the error is followed."""
    there.a.apply(line("app", there.a, second="b"))
    there.a.apply(line("other", there.a))
    there.a.apply(line("third", there.a))
    with pytest.raises(BundleError, match=r"app, other, third in one step: .*FILE --application app`"):
        there.update(2)
    assert there.started() == {"a": ["marks@1.0.0"], "b": ["marks@1.0.0"]}
    facts = there.update(2, application="app")
    assert facts["replaced"] == ["app.first", "app.second", "app.third"]
    assert facts["stopped"] == []
    assert there.started() == {"a": ["marks@1.0.0", "marks@2.0.0"], "b": ["marks@2.0.0"]}
    assert there.update(2)["stopped"] == ["marks@1.0.0"]
    assert there.agrees() == TWO
    assert {node.slet.plugin for name in ("other", "third") for node in there.a.mesh(name).nodes.values()} == {
        "marks@2.0.0",
        "test",
    }


def test_a_fragment_is_not_changed_without_its_home(there: Hosts):
    """Whatever asks for it: here, a plan that was not made by the home."""
    there.a.apply(line("app", there.a, second="b"))
    for one in there.all.values():
        fragment = one.deployment("app").mesh
        plan = one._applications.plan(fragment.suspend("first" if one is there.a else "second"))
        with pytest.raises(PlanError, match="change the application at its home"):
            plan.apply()
    assert there.agrees() == ONE
    there.a.apply(there.a.mesh("app").move("second", to=None))
    b = there.all["b"]
    eventually(lambda: b.applications() == [], "it has left")
    own = b.apply(line("app", b))  # another one of this name
    assert b.apply(own.configure("first", unit="y")).revision == 2


@pytest.mark.parametrize(
    ("name", "record", "after", "slets"),
    [
        ("a", "Committed", False, ONE),
        ("a", "Committed", True, TWO),
        ("b", "Prepared", True, ONE),
        ("b", "Settled", False, TWO),
        ("b", "Settled", True, TWO),
    ],
)
def test_a_platform_dies_in_an_update(
    there: Hosts, monkeypatch: pytest.MonkeyPatch, name: str, record: str, after: bool, slets: Any
):
    """All hosts have the new version when it is back, or none has; the next update goes on from that."""
    there.a.apply(line("app", there.a, second="b"))
    there.agrees()
    there.update_while(2, name, record, after=after, plan_time=PlanTime(monkeypatch))
    assert there.agrees() == slets
    there.update(3)
    assert there.agrees() == {"marks@3.0.0:check"}


def removed(there: Hosts, name: str, bundle: str) -> None:
    """Close a platform, and remove a bundle from its state directory."""
    there.all[name].close()
    shutil.rmtree(there.folder / name / "bundles" / bundle)


@pytest.mark.parametrize("first", ["a", "b"])
def test_what_the_home_cannot_restore_is_down_by_name(there: Hosts, first: str, capsys: pytest.CaptureFixture[str]):
    """The platform starts, and so do other applications; the cure that `exop state check` prints is followed."""
    there.a.apply(line("app", there.a, first=first, second="b", third="b"))
    removed(there, "a", "marks@1.0.0")
    assert state_check(there.folder / "a") == 1
    assert (
        "app: its bundle marks@1.0.0 is not installed here; start the platform, `exop bundle" in capsys.readouterr().out
    )
    home = there.back("a")
    assert "the platform has no slet 'marks@1.0.0:check'" in home.status()["failed_to_restart"]["app"]
    assert home.applications() == []
    for ask in (home.mesh, home.status, lambda name: home.apply(line(name, there.all["b"]))):
        with pytest.raises(StateError, match="'app' is down, because"):
            ask("app")
    with pytest.raises(StateError, match=r"install the bundle marks 1\.0\.0 \(`exop bundle install FILE`\)"):
        home.restart("app")
    home.bundles.start(home.bundles.install(marks(there.folder, 1))["bundle"])
    home.restart("app")
    assert there.agrees() == ONE
    assert there.update(2)["stopped"] == ["marks@1.0.0"]
    assert there.agrees() == TWO
    home.close()
    assert state_check(there.folder / "a") == 0
    assert "nothing is damaged" in capsys.readouterr().out


def test_what_is_down_can_be_removed_on_all_hosts(there: Hosts):
    """The home knows the hosts, though not the mesh."""
    there.a.apply(line("app", there.a, second="b"))
    removed(there, "a", "marks@1.0.0")
    home = there.back("a")
    eventually(lambda: home.remoting.peers["b"].connected, "linked")
    assert home.remove("app")
    eventually(lambda: there.all["b"].applications() == [], "removed there")
    home.close()
    assert there.back("a").failed_to_restart == {}


def test_a_host_that_cannot_restore_its_fragment_has_it_down(
    there: Hosts, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    """Also the one that a plan has made while the host was away: it is restored when its code is back."""
    there.a.apply(line("app", there.a, second="b"))
    there.agrees()
    back = Hosts.back

    def without(self: Hosts, name: str) -> Any:
        shutil.rmtree(self.folder / name / "bundles" / "marks@2.0.0")
        return back(self, name)

    with monkeypatch.context() as patch:
        patch.setattr(Hosts, "back", without)
        there.update_while(2, "b", "Settled", after=False, plan_time=PlanTime(monkeypatch))
    b = there.all["b"]
    eventually(lambda: "app" in b.failed_to_restart, "down")
    with pytest.raises(StateError, match="marks@2.0.0"):
        b.restart("app")
    b.bundles.start(b.bundles.install(marks(there.folder, 2))["bundle"])
    b.restart("app")
    assert there.agrees() == TWO


def test_a_bundle_that_is_not_started_is_found_by_the_check(there: Hosts, capsys: pytest.CaptureFixture[str]):
    """It is there, and the next platform would not load it."""
    there.a.apply(line("app", there.a))
    there.a.close()
    (there.folder / "a" / "bundles" / "started.json").write_text("{}")
    assert state_check(there.folder / "a") == 1
    assert "not started here; start the platform, `exop bundle start marks@1.0.0`, then `exop resume app`" in (
        capsys.readouterr().out
    )
    home = there.back("a")
    home.bundles.start("marks@1.0.0")
    home.restart("app")
    assert there.agrees() == ONE


@pytest.mark.parametrize("host", ["a", "b"])
def test_a_bundle_that_another_one_requires_is_found_by_the_check(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], host: str
):
    """Also at a host whose nodes are not of it; what the check and the error of the next start say is followed."""
    with ExitStack() as stack:
        there = Hosts(tmp_path, stack, monkeypatch, slets=RECORDS)
        there.a.apply(line("app", there.a, records=True, first="b"))
        removed(there, host, "marks@1.0.0")
        assert state_check(tmp_path / host) == 1
        assert "app: its bundle marks>=1 is not installed here; start the platform, " in capsys.readouterr().out
        one = there.back(host)
        one.bundles.start(one.bundles.install(marks(tmp_path, 1, RECORDS))["bundle"])
        with pytest.raises(StateError, match="fits.; then start it: `exop bundle start checks@1.0.0`"):
            one.restart("app")
        one.bundles.start("checks@1.0.0")
        one.restart("app")
        assert there.agrees() == there.slets_of(1)
