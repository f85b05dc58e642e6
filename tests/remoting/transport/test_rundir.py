"""Where sockets live, whose they are, and what becomes of leftovers."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from exop.errors import AddressUnusable
from exop.remoting import ControlClient, ControlServer, control_address, find_platforms, operations
from exop.remoting.transport.rundir import find_entries, private_directory, run_directory, socket_path
from exop.remoting.transport.sockets import LONGEST_NAME, listen
from tests.remoting.desk import Desk


def test_run_directory(run_directory: Path) -> None:
    """The run directory is made below XDG_RUNTIME_DIR, for its owner only."""
    from exop.remoting.transport import rundir

    assert rundir.run_directory() == run_directory
    assert run_directory.stat().st_mode & 0o777 == 0o700


def test_run_directory_without_xdg(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without XDG_RUNTIME_DIR it is a directory of the user's number below TMPDIR."""
    monkeypatch.delenv("XDG_RUNTIME_DIR")
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    assert run_directory() == tmp_path / f"exop-{os.geteuid()}"


def test_run_directory_of_another_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An XDG_RUNTIME_DIR that belongs to another user, as after su, is not used."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(os, "geteuid", lambda: 4242)
    with pytest.raises(AddressUnusable, match=r"no directory of your own; .*XDG_RUNTIME_DIR"):
        run_directory()
    assert (tmp_path / "exop-4242").exists()
    assert not (tmp_path / "exop").exists()


def test_link_in_its_place(tmp_path: Path) -> None:
    """A link that somebody has put in the place of the run directory is refused."""
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "exop").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(AddressUnusable, match="no directory of your own"):
        run_directory()


def test_open_run_directory_is_closed(tmp_path: Path) -> None:
    """A run directory of our own that others may enter is closed to them."""
    (tmp_path / "exop").mkdir(mode=0o755)
    assert private_directory(tmp_path / "exop").stat().st_mode & 0o777 == 0o700


def test_file_in_its_place(tmp_path: Path) -> None:
    """A file in the place of a directory is named."""
    (tmp_path / "exop").write_text("")
    with pytest.raises(AddressUnusable, match="cannot be used"):
        run_directory()


def test_shared_state_directory(tmp_path: Path, desk: Desk) -> None:
    """A state directory that everybody may write to is refused with the cure; one that others may read is kept."""
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o777)
    with pytest.raises(AddressUnusable, match="chmod o-w"):
        ControlServer(operations(desk), control_address(shared)).start()
    shared.chmod(0o755)
    with ControlServer(operations(desk), control_address(shared)):
        assert shared.stat().st_mode & 0o777 == 0o755


def test_addresses(tmp_path: Path) -> None:
    """A socket is named by its path, with or without unix:, or by its state directory."""
    assert socket_path(tmp_path) == tmp_path / "control.sock"
    assert socket_path(f"unix:{tmp_path}/a.sock") == tmp_path / "a.sock"
    assert socket_path("state/a.sock") == Path.cwd() / "state/a.sock"


def test_server_without_state(desk: Desk, run_directory: Path) -> None:
    """Without a state directory a platform listens under its process number, and a second one beside it."""
    with ControlServer(operations(desk)) as first, ControlServer(operations(desk)) as second:
        assert first.address == run_directory / f"{os.getpid()}.sock"
        assert second.address == run_directory / f"{os.getpid()}-2.sock"
        assert ControlClient(second.address).call("ready") is True
        assert {platform.address for platform in find_platforms()} == {first.address, second.address}
    assert find_platforms() == []


def test_all_platforms_are_in_the_run_directory(desk: Desk, tmp_path: Path) -> None:
    """Platforms with a state directory are found as well, at their own address."""
    addresses = [control_address(tmp_path / name) for name in ("one", "two")]
    with ControlServer(operations(desk), addresses[0]), ControlServer(operations(desk), addresses[1]):
        assert [platform.address for platform in find_platforms()] == addresses
    assert find_platforms() == []


@pytest.mark.parametrize("length", [LONGEST_NAME - 1, LONGEST_NAME, LONGEST_NAME + 1, 150, 1000])
def test_long_paths(desk: Desk, tmp_path: Path, length: int) -> None:
    """A state directory of any length works, for the server, its clients and those who look for platforms."""
    state = tmp_path
    while (missing := length - len(str(state / "control.sock"))) > 0:
        state /= "d" * min(100, max(1, missing - 1))
    address = control_address(state)
    assert len(str(address)) >= length
    with ControlServer(operations(desk), address) as server:
        assert ControlClient(state).call("ready") is True
        assert [platform.address for platform in find_platforms()] == [server.address]
    assert not address.exists()


def test_leftovers_are_removed(desk: Desk, tmp_path: Path) -> None:
    """What dead processes have left is removed when platforms are looked for; the living are kept."""
    runs = run_directory()
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(runs / "111.sock"))
    (runs / "222.sock").symlink_to(tmp_path / "gone" / "control.sock")
    (runs / "333.sock").write_text("")
    with ControlServer(operations(desk)) as server:
        assert [platform.address for platform in find_platforms()] == [server.address]
        assert sorted(path.name for path in runs.glob("*.sock")) == [server.address.name]


def test_link_to_a_successor(desk: Desk, tmp_path: Path) -> None:
    """The link that a killed platform has left leads to its successor: that one is listed once, under its own name."""
    address = control_address(tmp_path / "state")
    (run_directory() / "111.sock").symlink_to(address)
    with ControlServer(operations(desk), address):
        assert [*find_entries().values()] == [os.getpid()]


def test_killed_platform(tmp_path: Path) -> None:
    """After kill -9 nothing stands in the way: the dead one is not listed, and the next takes its address."""
    path = control_address(tmp_path / "state")
    command = [sys.executable, "-m", "tests.remoting.target", str(path)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "listening\n"
    assert [(platform.pid, platform.name) for platform in find_platforms()] == [(process.pid, "target")]
    process.kill()
    process.communicate()
    assert path.is_socket()
    assert find_platforms() == []
    assert list(run_directory().glob("*.sock")) == []
    with ControlServer(operations(Desk()), path) as server:
        assert ControlClient(server.address).call("ready") is True


def test_child_of_a_dead_platform(tmp_path: Path) -> None:
    """A forked child that holds the socket of a dead platform open stands in nobody's way."""
    path = tmp_path / "control.sock"
    code = (
        "import os, sys; from pathlib import Path; from exop.remoting.transport.sockets import listen\n"
        "listener = listen(Path(sys.argv[1]))\n"
        "if os.fork() == 0:\n"
        "    print('held', flush=True)\n"
        "    sys.stdin.read()\n"
        "os._exit(0)\n"
    )
    command = [sys.executable, "-c", code, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        process.wait(60)
        with ControlServer(operations(Desk()), path) as server:
            assert ControlClient(server.address).call("ready") is True


def test_others_socket_is_not_removed(tmp_path: Path) -> None:
    """Closing removes the own socket, not one that has been put in its place."""
    listener = listen(tmp_path / "a.sock")
    (tmp_path / "a.sock").unlink()
    other = listen(tmp_path / "a.sock")
    listener.close()
    assert (tmp_path / "a.sock").is_socket()
    other.close()
    assert not (tmp_path / "a.sock").exists()


def test_unusable_run_directory_does_not_stop_a_platform_with_state(desk: Desk, tmp_path: Path) -> None:
    """Whoever squats the run directory keeps platforms with a state directory from being listed, not from running."""
    (tmp_path / "exop").write_text("")
    with ControlServer(operations(desk), control_address(tmp_path / "state")) as server:
        assert ControlClient(server.address).call("ready") is True


def test_unwritable_place(tmp_path: Path, desk: Desk) -> None:
    """A directory that cannot be made is named with the system's reason."""
    with pytest.raises(AddressUnusable, match="take a directory that you may write to"):
        ControlServer(operations(desk), Path("/proc/nothing/control.sock")).start()


def test_find_entries_keeps_what_it_cannot_judge(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An entry that cannot be asked about, for want of descriptors say, is not removed on suspicion."""
    from exop.remoting.transport import rundir

    runs = run_directory()
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(runs / "111.sock"))

    def fail(path: Path) -> None:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(rundir, "holder", fail)
    assert [*find_entries().values()] == [111]
    assert (runs / "111.sock").exists()
