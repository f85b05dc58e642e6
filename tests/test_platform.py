"""The platform: embedded, several side by side, restarting by itself from its state directory, light."""

import gc
import importlib
import json
import math
import os
import subprocess
import sys
import threading
import weakref
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from exop import Application, Platform, slet
from exop.errors import (
    ComponentFailed,
    MeshError,
    PlanError,
    PluginError,
    SettingError,
    StaleMesh,
    StateError,
    UnknownName,
)
from exop.runtime.durable.store import Store
from exop.stock.slets import count_up
from tests.change.tools import chain, count_to, endless, plain, plain_too, writing
from tests.rig import PATIENCE, Gate, collector, eventually, threads_leave


@pytest.fixture(autouse=True)
def no_thread_stays():
    """A platform that is closed leaves no thread behind."""
    with threads_leave():
        yield


def stock(name="numbers", to=None, path=None):
    """An application of stock slets alone: any platform can resolve them."""
    app = Application(name)
    at = app.add("numbers", "stock:count_up", **({} if to is None else {"to": to}))
    app.add("sink", "stock:write_lines", path=path, item=at)
    return app.build()


@pytest.fixture
def state(tmp_path):
    """A state directory."""
    return tmp_path / "state"


@pytest.fixture
def out(tmp_path):
    """Where lines are written."""
    return tmp_path / "out.txt"


def opened(state, **more):
    """A platform with a state directory, without a socket."""
    return Platform(state=state, control=False, **more)


# Running and asking


def test_a_relative_state_directory_is_that_of_now(tmp_path, monkeypatch):
    """Engines are given folders in it, and their processes have other working directories; paths stay, too."""
    monkeypatch.chdir(tmp_path)
    with opened("state") as platform:
        platform.apply(stock(to=1, path=Path("out")))
        assert platform.state == tmp_path / "state"
        assert platform.components.engines.folder("numbers", "node", "place").is_relative_to(tmp_path)
        assert platform.mesh("numbers").nodes["sink"].settings["path"] == tmp_path / "out"


def test_a_mesh_is_deployed_and_gets_a_revision(out):
    """`apply` returns the mesh as it runs."""
    with Platform() as platform:
        mesh = platform.apply(stock(to=3, path=out))
        assert mesh.revision == 1
        assert platform.wait("numbers", PATIENCE)
        assert platform.mesh("numbers") == mesh
        assert platform.applications() == ["numbers"]
        assert platform.remove("numbers")
        assert platform.applications() == []
    assert out.read_text().split() == ["0", "1", "2"]


def test_what_does_not_run_is_named_with_what_does(out):
    """Every question about an application that is not there answers with those that are."""
    with Platform(name="here") as platform:
        platform.apply(stock(path=out))
        for ask in (platform.mesh, platform.deployment, platform.wait, platform.end, platform.remove, platform.metrics):
            with pytest.raises(UnknownName, match="'here' has no application 'nubmers'; did you mean 'numbers'"):
                ask("nubmers")


def test_a_platform_that_is_not_started_says_so(out):
    """Neither before it is entered nor after it was closed."""
    platform = Platform()
    with pytest.raises(PlanError, match="not running; use `with Platform"):
        platform.apply(stock(path=out))
    with platform:
        pass
    with pytest.raises(PlanError, match="not running"):
        platform.apply(stock(path=out))
    platform.close()


def test_an_outdated_mesh_is_refused(out):
    """Somebody else has applied meanwhile: the error names both revisions and the cure."""
    with Platform() as platform:
        mesh = platform.apply(stock(path=out))
        platform.apply(mesh.configure("numbers", step=2))
        with pytest.raises(StaleMesh, match="this mesh is revision 1, the running one 2") as stale:
            platform.apply(mesh.configure("numbers", step=3))
        assert (stale.value.revision, stale.value.current) == (1, 2)


def test_a_finished_application_can_be_applied_again(out):
    """It is deployed anew, with the next revision."""
    with Platform() as platform:
        platform.apply(stock(to=2, path=out))
        assert platform.wait("numbers", PATIENCE)
        out.unlink()
        again = platform.apply(stock(to=3, path=out))
        assert again.revision == 2
        assert platform.wait("numbers", PATIENCE)
    assert out.read_text().split() == ["0", "1", "2"]


def test_a_failed_deployment_leaves_nothing(tmp_path, out):
    """What could not be opened is not there; the name can be used at once."""
    with Platform() as platform:
        with pytest.raises(ComponentFailed, match="sink failed while opening"):
            platform.apply(stock(path=tmp_path / "missing" / "out.txt"))
        assert platform.applications() == []
        platform.apply(stock(to=1, path=out))
        assert platform.wait("numbers", PATIENCE)


def test_status_and_metrics_are_plain_data(out):
    """Everything that is shown can be printed as JSON."""
    with Platform() as platform:
        platform.apply(stock(to=100, path=out))
        assert platform.wait("numbers", PATIENCE)
        status = json.loads(json.dumps(platform.status()))
        assert status["applications"]["numbers"]["state"] == "finished"
        figures = json.loads(json.dumps(platform.metrics("numbers")))
        assert figures["nodes"]["numbers"]["items_out"] == 100


def test_the_services_of_the_platform_are_in_its_registry():
    """The ComponentManager and the WiringController are services like any other."""
    with Platform() as platform:
        assert platform.registry.find("ComponentManager")
        assert platform.registry.find("WiringController")


def test_closing_takes_running_applications_away(out):
    """Their threads leave, their slets are closed; closing twice is once."""
    platform = Platform().start()
    platform.apply(stock(path=out))
    eventually(lambda: platform.deployment("numbers").components["numbers"].driver.count > 10)
    platform.close()
    platform.close()
    assert out.read_text()


def test_platforms_live_side_by_side():
    """Two in one process share nothing: not their registry, their applications, their plugins or their drivers."""
    seen = {"one": [], "other": []}
    gate = Gate()

    @slet
    def waiting() -> Iterator[int]:
        yield 1
        gate.pass_through()
        yield 2

    def application(to):
        app = Application("same")
        app.add("sink", collector(to), item=app.add("waiting", waiting))
        return app.build()

    with Platform(name="one") as one, Platform(name="other") as other:
        one.apply(application(seen["one"]))
        other.apply(application(seen["other"]))
        assert one.registry is not other.registry
        assert one.plugins is not other.plugins
        eventually(lambda: seen == {"one": [1], "other": [1]})
        one.remove("same", timeout=0.1)  # its source is blocked
        assert other.applications() == ["same"]
        gate.open()
        assert other.wait("same", PATIENCE)
    assert seen["other"] == [1, 2]


def test_a_closed_platform_can_be_forgotten(out):
    """Nothing global keeps it: it goes with its last name."""
    platform = Platform()
    with platform:
        platform.apply(stock(to=1, path=out))
        platform.wait("numbers", PATIENCE)
    gone = weakref.ref(platform)
    del platform
    # A thread that has just ended its work may still have it, on a busy machine.
    eventually(lambda: gc.collect() >= 0 and gone() is None, "it is gone")


def test_appliers_are_served_one_after_the_other(out):
    """Several threads deploy at once: each application runs, and none is half there."""
    broken = []

    def deploy(number):
        try:
            platform.apply(stock(f"app{number}", to=10, path=out.with_name(f"{number}.txt")))
            platform.wait(f"app{number}", PATIENCE)
        except Exception as error:  # noqa: BLE001 (shown below)
            broken.append(error)

    with Platform() as platform:
        threads = [threading.Thread(target=deploy, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE)
        assert not broken
        assert len(platform.applications()) == 8


# A state directory


def test_applications_start_again_by_themselves(state, out):
    """What ran when the platform was left runs again with the next one, with its configuration."""
    with opened(state) as platform:
        platform.apply(stock(path=out))
        eventually(lambda: platform.deployment("numbers").components["numbers"].driver.count)
    with opened(state) as platform:
        assert platform.applications() == ["numbers"]
        assert platform.mesh("numbers").nodes["sink"].settings["path"] == out
        eventually(lambda: platform.deployment("numbers").components["numbers"].driver.count)


def test_what_has_finished_or_was_removed_does_not_start_again(state, out):
    """Waited for or not, an application that has come to its end stays ended."""
    with opened(state) as platform:
        platform.apply(stock("waited", to=1, path=out))
        platform.wait("waited", PATIENCE)
        platform.apply(stock("unwatched", to=1, path=out))
        eventually(platform.deployment("unwatched").finished.is_set)
        platform.apply(stock("removed", path=out))
        platform.remove("removed")
    with opened(state) as platform:
        assert platform.applications() == []


def test_a_change_is_what_starts_again(state, out):
    """Wiring, configuration and activity as they were last: also that a node was suspended."""
    with opened(state) as platform:
        mesh = platform.apply(stock(path=out))
        mesh = platform.apply(mesh.configure("numbers", step=5))
        platform.apply(mesh.suspend("sink"))
    with opened(state) as platform:
        mesh = platform.mesh("numbers")
        assert mesh.nodes["numbers"].settings["step"] == 5
        assert mesh.nodes["sink"].suspended
        assert platform.status("numbers")["nodes"]["sink"]["state"] == "suspended"


PLUGIN = '''
from collections.abc import Iterator
from exop import hookimpl, slet

@slet
def three(*, first: int = 3, second: int = 3) -> Iterator[int]:
    """Emit numbers, without end."""
    while True:
        yield 3

@hookimpl
def register_slets():
    return [three]
'''


def test_a_plugin_folder_is_loaded_again(state, out, tmp_path):
    """An application of a loaded folder starts again by itself, with the defaults of the code that is there then."""
    folder = tmp_path / "threes"
    folder.mkdir()
    (folder / "__init__.py").write_text(PLUGIN)
    with opened(state) as platform:
        assert platform.load(folder) == "threes"
        from threes import three

        app = Application("threes")
        app.add("sink", "stock:write_lines", path=out, item=app.add("three", three, second=3))
        platform.apply(app.build())
    (folder / "__init__.py").write_text(PLUGIN.replace("int = 3", "int = 14"))
    code = (
        "import sys; from exop import Platform\n"
        f"with Platform(state={str(state)!r}, control=False) as platform:\n"
        "    print(platform.applications(), platform.failed_to_restart)\n"
        "    print(platform.mesh('threes').node('three').settings)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.splitlines() == ["['threes'] {}", "{'first': 14, 'second': 3}"]


def test_a_plugin_folder_that_is_gone_keeps_nobody_from_starting(state, out, tmp_path):
    """It is named, and so is the application that needs it; the others start."""
    folder = tmp_path / "fours"
    folder.mkdir()
    (folder / "__init__.py").write_text(PLUGIN.replace("three", "four"))
    with opened(state) as platform:
        platform.load(folder)
        from fours import four

        app = Application("fours")
        app.add("sink", "stock:write_lines", path=out, item=app.add("four", four))
        platform.apply(app.build())
        platform.apply(stock("numbers", path=out))
    (folder / "__init__.py").unlink()
    code = (
        "import json; from exop import Platform\n"
        f"with Platform(state={str(state)!r}, control=False) as platform:\n"
        "    print(json.dumps([platform.applications(), sorted(platform.failed_to_restart),"
        " sorted(platform.plugins.broken)]))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    applications, failed, broken = json.loads(done.stdout.strip().splitlines()[-1])
    assert (applications, failed) == (["numbers"], ["fours"])
    assert "fours" in broken


def test_a_slet_that_no_platform_could_find_again_is_refused_with_the_cure(state):
    """With a state directory every slet has to stand in a plugin; nothing is stored or started otherwise."""

    @slet
    def local(item: int) -> None:
        """Stand in a test."""

    app = Application("local")
    app.add("local", local, item=app.add("numbers", count_up))
    with opened(state) as platform:
        with pytest.raises(MeshError, match=r"local: the slet 'local' .* is in no plugin.*exop bundle new local"):
            platform.apply(app.build())
        assert platform.applications() == []
    store = Store(state)
    assert store.applications() == []
    store.close()
    with Platform() as platform:
        platform.apply(app.build())


def test_an_application_that_cannot_start_again_is_named_and_kept(state, tmp_path, out):
    """The reason is shown, the others start, and the next platform tries again."""
    place = tmp_path / "mounted"
    place.mkdir()
    with opened(state) as platform:
        platform.apply(stock("disk", path=place / "out.txt"))
        platform.apply(stock("fine", path=out))
    (place / "out.txt").unlink()
    place.rmdir()
    with opened(state) as platform:
        assert platform.applications() == ["fine"]
        assert "sink failed while opening" in str(platform.failed_to_restart["disk"])
        assert "disk" in platform.status()["failed_to_restart"]
    place.mkdir()
    with opened(state) as platform:
        assert platform.applications() == ["disk", "fine"]


def test_a_state_directory_that_cannot_be_used_keeps_nothing_open(state, out):
    """The platform does not start; after the cure the same directory is fine."""
    with opened(state), pytest.raises(StateError, match="in use by the platform with process id"):
        opened(state).start()
    with opened(state) as platform:
        platform.apply(stock(to=1, path=out))


def test_without_a_state_directory_nothing_is_written(tmp_path, monkeypatch, out):
    """In memory: no file appears."""
    monkeypatch.chdir(tmp_path)
    with Platform() as platform:
        platform.apply(stock(to=1, path=out))
        platform.wait("numbers", PATIENCE)
    assert sorted(path.name for path in Path().iterdir()) == ["out.txt"]


def test_a_folder_that_is_no_package_is_refused_by_name(tmp_path):
    """Loading a plugin by hand tells its mistakes at once."""
    (tmp_path / "empty").mkdir()
    with Platform() as platform, pytest.raises(PluginError, match="empty"):
        platform.load(tmp_path / "empty")


# Wrong calls: refused before anything happens


@pytest.mark.parametrize("timeout", [math.inf, 1e300, math.nan, -1, "x", True], ids=repr)
def test_a_timeout_that_is_none(timeout):
    """The value is named, nothing is deployed, and nothing is changed."""
    with Platform() as platform:
        mesh = chain("app", endless, plain, writing([])).build()
        with pytest.raises(SettingError, match="apply: the setting 'timeout' does not fit: .* is no number of seconds"):
            platform.apply(mesh, timeout=timeout)
        assert platform.applications() == []
        plan = platform.plan(platform.apply(mesh).replace("b", plain_too))
        with pytest.raises(SettingError, match="'timeout'"):
            plan.apply(timeout=timeout)
        assert platform.mesh("app").revision == 1


@pytest.mark.parametrize("ask", ["apply", "plan"])
@pytest.mark.parametrize("given", [3, "app", None], ids=repr)
def test_what_is_no_mesh(ask, given):
    """What is meant is said, with where to get it."""
    with Platform() as platform, pytest.raises(PlanError, match=rf"{ask} takes a mesh, as app.build\(\)"):
        getattr(platform, ask)(given)


def test_waiting_for_no_time():
    """A time that is over is one to wait for; what is no time is none."""
    with Platform() as platform:
        platform.apply(chain("app", count_to, plain, writing([])).build())
        for timeout in ("x", math.nan):
            with pytest.raises(SettingError, match="wait"):
                platform.wait("app", timeout)
        assert platform.wait("app")
        assert platform.wait("app", -1.0)


def test_a_host_without_a_usable_name_gets_one(monkeypatch):
    """The kernel may have `(none)`; only a given name is refused."""
    monkeypatch.setattr(os, "uname", lambda: SimpleNamespace(nodename="(none)"))
    assert Platform(control=False).name == "-none-"
    with pytest.raises(MeshError, match="is no name for a host"):
        Platform(control=False, name="(none)")


def test_each_cure_for_a_durable_application_of_a_test_helps(tmp_path, monkeypatch):
    """Without a state directory, and where its package is not loaded: as the errors say, it then runs."""
    folder = tmp_path / "ticking"
    folder.mkdir()
    (folder / "__init__.py").write_text(
        "from collections.abc import Iterator\nfrom exop import Application, hookimpl, slet\n\n"
        "@slet\ndef tick() -> Iterator[int]:\n    yield 1\n\n@slet\ndef note(item: int) -> None:\n    pass\n\n"
        "def build(durable=True):\n    app = Application('ticking')\n    app.durable() if durable else None\n"
        "    app.add('note', note, item=app.add('tick', tick))\n    return app\n\n"
        "@hookimpl\ndef register_slets():\n    return [tick, note]\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    build = importlib.import_module("ticking").build
    with pytest.raises(MeshError, match=r"give one, Platform\(state=…\) .*, and load its package by `platform.load\(F"):
        build().run()
    with opened(tmp_path / "state") as platform:
        for durable in (True, False):
            with pytest.raises(MeshError, match=r"in a package that the platform loads, `platform.load\(FOLDER\)`"):
                build(durable=durable).run(platform)
        platform.load(folder)
        build().run(platform)
    build(durable=False).run()
