"""A platform to talk to: in this process for the contract, in one of its own for the attacks."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from exop import Application, Platform, connect
from exop.remoting import ControlClient, ControlServer, operations
from exop.remoting.api.remote_platform import RemotePlatform
from exop.stock.slets import count_up, pass_on
from tests.remoting.desk import Desk
from tests.remoting.target import SHORT, Target


@pytest.fixture
def desk() -> Iterator[Desk]:
    """The operations of the tests, and what they were asked."""
    desk = Desk()
    yield desk
    desk.open.set()


@pytest.fixture(autouse=True)
def run_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run directory that no other test and no running platform shares."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    return tmp_path / "exop"


@pytest.fixture
def server(desk: Desk, tmp_path: Path) -> Iterator[ControlServer]:
    """A running control server with short deadlines."""
    with ControlServer(operations(desk), tmp_path / "state" / "control.sock", name="desk", limits=SHORT) as server:
        yield server


@pytest.fixture
def client(server: ControlServer) -> Iterator[ControlClient]:
    """A connected client of it."""
    with ControlClient(server.address) as client:
        yield client


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    """A platform in a process of its own, of which the memory can be watched."""
    with Target.start(sys.executable, tmp_path_factory.mktemp("target") / "control.sock") as target:
        yield target


@pytest.fixture
def remote(tmp_path: Path) -> Iterator[RemotePlatform]:
    """A platform with an application of stock slets, seen over its socket."""
    app = Application("numbers")
    passed = app.add("pass", pass_on, item=app.add("numbers", count_up))
    app.add("sink", "stock:write_lines", item=passed, path=tmp_path / "out")
    with Platform(state=tmp_path / "state", name="there") as platform:
        platform.apply(app.build())
        with connect(tmp_path / "state") as remote:
            yield remote
