"""`exop serve`: what it keeps up, logs, and notifies its supervisor of."""

import os
import shutil
import socket
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from exop import Application
from exop.cli import main
from exop.cli.commands import serving
from exop.cli.commands.looking import ps
from exop.cli.commands.serving import Keeper, Supervisor
from exop.cli.loading import load_mesh
from exop.cli.report import Stopping
from exop.errors import PlanError
from exop.hosts.fragment_change import FragmentChange
from exop.logs import set_up
from exop.platform import Platform
from exop.runtime.durable.store import Store
from exop.stock.slets import count_up, pass_on
from tests.cli.shell import answer_of, eventually, running


@contextmanager
def kept_up(platform: Platform) -> Iterator[Keeper]:
    """The keeper of a platform, which is closed at the end."""
    with closing(platform):
        yield Keeper(platform, Stopping())


def activated(state: Path) -> None:
    """Let the application be started again by the next platform, as after a crash."""
    store = Store(state)
    store.set_active("counting", active=True)
    store.close()


def told(keeper: Keeper, capsys: pytest.CaptureFixture[str], word: str) -> str:
    """Look until *word* is logged."""
    said = ""

    def heard() -> bool:
        nonlocal said
        keeper.look()
        said += capsys.readouterr().err
        return word in said

    eventually(heard)
    return said


def test_finished_applications_rest(counting, tmp_path, capsys):
    """An application that finishes under `serve` is told once, and is not started again."""
    assert main(["run", str(counting), "to=3", "output=out", "--state", "state", "--quiet"]) == 0
    activated(tmp_path / "state")
    set_up()
    with kept_up(Platform(state=tmp_path / "state", control=False)) as keeper:
        keeper.start([])
        said = told(keeper, capsys, "finished [")
        assert said.count("finished [") == 1
        assert "started anew (not durable)" in said
        keeper.look()
        assert capsys.readouterr().err == ""
    with Platform(state=tmp_path / "state", control=False) as again:
        assert again.applications() == []


def test_a_node_that_leaves_for_another_host_is_not_called_removed(capsys):
    """The log says what is true of this platform, whether the node has moved or the application is removed."""
    set_up()
    app = Application("counting")
    app.add("passes", pass_on, item=app.add("numbers", count_up))
    home = Platform(name="home", control=False)
    with kept_up(Platform(name="other", listen="inproc:other", control=False)) as keeper, home:
        keeper.start([])
        home.remoting.connect("inproc:other")
        home.apply(app.build())
        home.apply(home.mesh("counting").move("passes", to="other"))
        told(keeper, capsys, "running")
        home.apply(home.mesh("counting").move("passes", to="home"))
        assert "removed" not in told(keeper, capsys, "no part of it runs here any more")


def test_an_application_that_another_host_refuses_is_not_said_to_run(capsys):
    """While a plan begins it here, it is opening; when a host has refused the plan, nothing has run."""
    set_up()
    app, prepare, seen = Application("counting"), FragmentChange._prepare, []
    app.on("other").add("passes", pass_on, item=app.add("numbers", count_up))

    def refuses(change: FragmentChange, *given: Any) -> None:
        if change._here.name == "home":
            prepare(change, *given)
            return
        told(keeper, capsys, "opening")
        eventually(lambda: "counting" in home._applications.deployed)
        seen.append(home._applications.deployed["counting"].opens)
        raise PlanError("it is not wanted")

    other = Platform(name="other", listen="inproc:other", control=False)
    with kept_up(Platform(name="home", control=False)) as keeper, other:
        keeper.start([])
        (home := keeper.platform).remoting.connect("inproc:other")
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(FragmentChange, "_prepare", refuses)
            with pytest.raises(PlanError, match="it is not wanted"):
                home.apply(app.build())
        keeper.look()
        assert (seen, "running" in capsys.readouterr().err) == ([True], False)
        home.apply(app.build())
        told(keeper, capsys, "running")


def test_watching_a_quiet_platform_is_cheap(monkeypatch):
    """As long as no application changes its state, no status is put together: that of a large one takes long."""
    app = Application("counting")
    app.add("passes", pass_on, item=app.add("numbers", count_up))
    with kept_up(Platform(control=False)) as keeper:
        keeper.start([])
        keeper.platform.apply(app.build())
        keeper.look()
        monkeypatch.setattr(serving, "application_status", None)
        keeper.look()


def test_failures_are_told_with_the_cure(counting, tmp_path, capsys):
    """A slet that is suspended under `serve` is logged with its error and what to do; so is its repair."""
    mesh, catalog, _ = load_mesh("./counting", ["to=4", "output=out", "missing=mended"], (), ())
    set_up()
    with kept_up(Platform(plugins=catalog.plugins, control=False)) as keeper:
        keeper.start([])
        keeper.platform.apply(mesh)
        said = told(keeper, capsys, "suspended")
        assert "no halves today" in said
        assert "exop resume counting.NODE" in said
        Path("mended").touch()
        keeper.platform.resume("counting", "half")
        told(keeper, capsys, "finished")
        keeper.platform.remove("counting")
        told(keeper, capsys, "removed")


def test_a_plugin_that_is_gone(counting, tmp_path, capsys):
    """A plugin folder that has vanished keeps no platform from starting; what needs it is named, and kept."""
    assert main(["run", str(counting), "to=3", "output=out", "--state", "state", "--quiet"]) == 0
    activated(tmp_path / "state")
    shutil.rmtree(counting)
    set_up()
    with kept_up(Platform(state=tmp_path / "state")) as keeper:
        keeper.start([])
        assert "not started again" in capsys.readouterr().err
        assert ps() == 0
        assert "not started again" in capsys.readouterr().out
        assert "counting" in keeper.platform.status()["broken_plugins"]
    store = Store(tmp_path / "state")
    assert [one.active for one in store.applications()] == [True]
    store.close()


def test_an_application_that_is_down_is_resumed_or_removed(tmp_path, capsys):
    """Commands say why it is down, and what to do; the platform and its other applications run on."""
    state, place = tmp_path / "state", tmp_path / "mounted"
    place.mkdir()
    with Platform(state=state, control=False) as platform:
        for name in ("counting", "other"):
            app = Application(name)
            app.add("lines", "stock:write_lines", item=app.add("numbers", count_up, to=3), path=place / name)
            platform.apply(app.build())
            platform.wait(name)
    with closing(Store(state)) as store:
        for name in ("counting", "other"):
            store.set_active(name, active=True)
    shutil.rmtree(place)
    with Platform(state=state, control=True):
        assert ps() == 0
        assert "not started again: lines failed while opening" in capsys.readouterr().out
        for command in ("describe", "resume"):
            assert main([command, "counting", "--state", str(state)]) != 0
            told = capsys.readouterr().err
            assert "lines failed while opening" in told
        place.mkdir()
        assert "counting: started again" in answer_of("resume", "counting", "--state", state)
        assert main(["remove", "other", "--state", str(state)]) == 0
        assert main(["resume", "other", "--state", str(state)]) == 2
    with closing(Store(state)) as store:
        assert [one.name for one in store.applications()] == ["counting"]


def test_suspended_nodes_are_named_at_the_end(tmp_path, capsys):
    """A platform that is told to stop waits for nobody, and logs which nodes are suspended."""
    app = Application("app")
    app.add("show", "stock:show", item=app.add("numbers", "stock:count_up"))
    set_up()
    with kept_up(Platform(state=tmp_path / "state", control=False)) as keeper:
        keeper.start([])
        keeper.platform.apply(app.build().suspend("show"))
        keeper.stopping.count = 1
        keeper.until_stopped()
    assert "stops with suspended nodes" in (said := capsys.readouterr().err)
    assert "nodes=['app.show']" in said
    assert "kept=False" in said


@pytest.fixture(params=["path", "abstract"])
def supervisor(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[socket.socket, dict[str, str]]]:
    """The socket of a supervisor, in the file system or abstract, and the environment in which it starts processes."""
    name = str(tmp_path / "notify") if request.param == "path" else f"@{tmp_path.name}{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.bind(f"\0{name[1:]}" if name.startswith("@") else name)
        sock.settimeout(60)
        yield sock, {"NOTIFY_SOCKET": name, "WATCHDOG_USEC": "1000"}


def heard(sock: socket.socket, *words: str) -> str:
    """What the supervisor hears until all of *words* have come."""
    said = ""
    while not all(word in said for word in words):
        said += sock.recv(4096).decode() + "\n"
    return said


def test_a_platform_that_is_served(supervisor, tmp_path):
    """Ready when it runs, with its applications as the status; fed while it is healthy; stopping at SIGTERM."""
    sock, environment = supervisor
    with running("serve", "--state", tmp_path / "state", env={**os.environ, **environment}) as process:
        heard(sock, "READY=1", "WATCHDOG=1", "STATUS=no application runs")
        process.terminate()
        heard(sock, "STOPPING=1")


def test_the_watchdog_goes_hungry_when_a_driver_has_died(supervisor, capsys):
    """A suspended slet is no reason for a restart, a dead driver is, which is logged with what helps: no resuming."""
    sock, environment = supervisor
    app = Application("app")
    app.add("show", "stock:pass_on", item=app.add("numbers", "stock:count_up"))
    with kept_up(Platform(control=False)) as keeper:
        keeper.supervisor = Supervisor(environment)
        keeper.start([])
        keeper.platform.apply(app.build())
        keeper.look()
        heard(sock, "WATCHDOG=1", "STATUS=app running")
        driver = keeper.platform.deployment("app").components["numbers"].driver
        driver.crash = RuntimeError("a mistake of the platform")
        capsys.readouterr()
        keeper.look()
        said = capsys.readouterr().err
        assert "a mistake of the platform; restart the platform: a durable application continues" in said
        assert "resume" not in said
        sock.setblocking(False)
        assert "WATCHDOG" not in drained(sock)
    assert environment == {}


def drained(sock: socket.socket) -> str:
    """What has been sent by now."""
    said = ""
    while True:
        try:
            said += sock.recv(4096).decode() + "\n"
        except BlockingIOError:
            return said


def test_without_a_supervisor(capsys, tmp_path):
    """Nothing happens without one, or where the watchdog is for another process; one that is gone is logged."""
    silent = Supervisor({"WATCHDOG_USEC": "1000", "WATCHDOG_PID": "1"})
    silent.send("READY=1")
    silent.look("running", healthy=True)
    assert capsys.readouterr().err == ""
    Supervisor({"NOTIFY_SOCKET": str(tmp_path / "gone")}).send("STATUS=app:\nhalf")
    assert "the supervisor cannot be notified" in capsys.readouterr().err
