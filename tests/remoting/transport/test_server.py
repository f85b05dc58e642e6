"""The contract of the control connection, between a server and a client of this process."""

import logging
import os
import socket
import stat
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from exop.errors import (
    AddressInUse,
    AddressUnusable,
    CallTimeout,
    ComponentFailed,
    ConnectionLost,
    ExopError,
    MessageTooLarge,
    OperationFailed,
    PeerRefused,
    PeerUnreachable,
    PlatformBusy,
    RequestInvalid,
    UnknownOperation,
)
from exop.remoting import ControlClient, ControlServer, Limits, Operation, PageRequest, operations
from exop.remoting.transport import sockets
from exop.remoting.transport.sockets import Peer
from tests.remoting.desk import Answer, Desk, Size, Upload, Words
from tests.remoting.target import RawPeer, wait_until


def test_typed_call(client: ControlClient) -> None:
    """A call with the reply's type gives a value of it."""
    assert client.call("echo", Words(words=["a", "b"], times=2), Answer) == Answer("a b a b", 2)


def test_plain_call(client: ControlClient) -> None:
    """Request and reply may be plain values."""
    assert client.call("echo", {"words": ["a"]}) == {"text": "a", "count": 1}
    assert client.call("ready") is True


def test_peer_is_named(client: ControlClient) -> None:
    """After the handshake both know with whom they speak."""
    found = client.platform()
    assert (found.name, found.pid) == ("desk", os.getpid())


@pytest.mark.parametrize(
    ("request_", "text"),
    [
        ({}, "missing required field `words`"),
        ({"words": "a"}, "Expected `array`, got `str`"),
        ({"words": ["a"], "other": 1}, "unknown field `other`"),
        ({"words": ["a"] * 1001}, "length <= 1000"),
        ({"words": [["a"]]}, "Expected `str`"),
    ],
)
def test_request_is_checked(client: ControlClient, request_: dict[str, object], text: str) -> None:
    """A request of another type is refused with the place of the mistake, and the connection lives on."""
    with pytest.raises(RequestInvalid, match=text) as caught:
        client.call("echo", request_)
    assert caught.value.operation == "echo"
    assert client.call("ready") is True


def test_unknown_operation(client: ControlClient) -> None:
    """An unknown operation is refused with the nearest known one."""
    with pytest.raises(UnknownOperation, match="did you mean 'ready'") as caught:
        client.call("redy")
    assert "services" in caught.value.known


def test_errors_keep_class_and_facts(client: ControlClient) -> None:
    """An error of ExoP arrives as its own class with its facts as plain values, and its notes."""
    with pytest.raises(ComponentFailed, match="average failed while open: no room") as caught:
        client.call("refuse")
    assert caught.value.node == "average"
    assert sorted(caught.value.port) == ["a", "b"]
    assert caught.value.thing == "<class 'object'>"
    assert caught.value.__notes__ == ["item 17"]


def test_plugin_error_arrives_as_its_parent(client: ControlClient) -> None:
    """A class that the other side does not have arrives as its nearest common parent, with text and facts."""
    with pytest.raises(ExopError, match="the engine is out of oil") as caught:
        client.call("plugin")
    assert type(caught.value) is ExopError
    assert caught.value.engine == "spark"


@pytest.mark.parametrize("operation", ["stumble", "unpackable"])
def test_mistakes_stay_inside(client: ControlClient, caplog: pytest.LogCaptureFixture, operation: str) -> None:
    """What breaks inside reaches the peer as a reference, and the log as a traceback."""
    with caplog.at_level(logging.ERROR, "exop.remoting"), pytest.raises(OperationFailed) as caught:
        client.call(operation)
    assert "secret" not in str(caught.value)
    assert "Traceback" not in str(caught.value)
    assert caught.value.reference in caplog.text
    assert "Traceback" in caplog.text
    assert client.call("ready") is True


def test_handler_cannot_end_the_thread(client: ControlClient) -> None:
    """A handler that raises SystemExit fails alone."""
    with pytest.raises(ExopError):
        client.call("leave")
    assert client.call("ready") is True


def test_many_threads_one_client(client: ControlClient) -> None:
    """Threads share a client: everybody gets the own answer."""
    with ThreadPoolExecutor(8) as pool:
        answers = pool.map(lambda number: client.call("echo", Words(words=[str(number)]), Answer).text, range(200))
    assert list(answers) == [str(number) for number in range(200)]


def test_clients_do_not_wait_for_each_other(server: ControlServer, desk: Desk) -> None:
    """A call that takes long holds nobody else."""
    with ControlClient(server.address) as slow, ControlClient(server.address) as quick, ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(slow.call, "linger")
        assert desk.waiting.acquire(timeout=60)
        assert quick.call("ready") is True
        desk.open.set()
        assert waiting.result(5) == "open"


def test_in_flight_is_bounded(desk: Desk, tmp_path: Path) -> None:
    """Over the bound a request waits for its turn, and is refused when it does not come."""
    limits = Limits(in_flight=1, queue_time=0.05)
    with (
        ControlServer(operations(desk), tmp_path / "control.sock", limits=limits) as server,
        ControlClient(server.address) as first,
        ControlClient(server.address) as second,
        ThreadPoolExecutor(1) as pool,
    ):
        waiting = pool.submit(first.call, "linger")
        assert desk.waiting.acquire(timeout=60)
        with pytest.raises(PlatformBusy, match="try again"):
            second.call("ready")
        desk.open.set()
        assert waiting.result(5) == "open"
        assert second.call("ready") is True


def test_call_ends_in_time(server: ControlServer, desk: Desk) -> None:
    """A call ends at its time; the late answer is taken for nobody's, and the next call gets its own."""
    with ControlClient(server.address) as client:
        client.platform()
        with pytest.raises(CallTimeout, match=r"did not answer 'linger' within 0.05 s; it may still carry it out"):
            client.call("linger", timeout=0.05)
        desk.open.set()
        assert client.call("ready") is True


def test_waiting_for_a_turn_counts(server: ControlServer, desk: Desk) -> None:
    """The time of a call includes waiting for the client that another thread uses."""
    with ControlClient(server.address) as client, ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(client.call, "linger")
        assert desk.waiting.acquire(timeout=60)
        with pytest.raises(CallTimeout):
            client.call("ready", timeout=0.02)
        desk.open.set()
        assert waiting.result(5) == "open"


def test_reply_too_large(client: ControlClient) -> None:
    """A reply over the largest frame is refused with its size and the cure, and the connection lives on."""
    with pytest.raises(MessageTooLarge, match=r"the reply to 'fill' has .* ask for it in pages") as caught:
        client.call("fill", Size(size=5_000_000), bytes)
    assert caught.value.size > 5_000_000
    assert client.call("ready") is True


def test_untyped_reply_is_smaller(client: ControlClient) -> None:
    """Without a declared type a client unpacks no more than 1 MiB; with one it takes what a frame holds."""
    with pytest.raises(MessageTooLarge, match="with the type of the reply"):
        client.call("fill", Size(size=2_000_000))
    assert len(client.call("fill", Size(size=4_000_000), bytes)) == 4_000_000


def test_reply_of_another_type(client: ControlClient) -> None:
    """A reply that is not what the client declared is refused, not passed on."""
    with pytest.raises(PeerRefused, match="of another type"):
        client.call("ready", None, str)


def test_request_sizes(client: ControlClient) -> None:
    """An operation takes small requests, unless it declares more; the frame bounds that too."""
    assert client.call("upload", Upload(data=bytes(3_900_000)), int) == 3_900_000
    with pytest.raises(MessageTooLarge, match=r"the request to 'echo' has .* the bound is 65536"):
        client.call("echo", {"words": ["x" * 70_000]})
    with pytest.raises(MessageTooLarge, match="send less"):
        client.call("upload", Upload(data=bytes(4_300_000)))


def test_pages(client: ControlClient, desk: Desk) -> None:
    """A long list comes in pages, whole and in order, and each page is a short call."""
    names = client.items("services", PageRequest(limit=100), str)
    assert list(names) == desk.names
    with pytest.raises(RequestInvalid, match="<= 1000"):
        client.call("services", {"limit": 100_000})


def test_pages_while_the_list_changes(client: ControlClient, desk: Desk) -> None:
    """What goes away between two pages hides nothing else."""
    names = client.items("services", PageRequest(limit=100), str)
    first = [next(names) for _ in range(100)]
    del desk.names[:50]
    assert [*first, *names] == [f"service {number:03}" for number in range(250)]


def test_reconnects_when_rested(desk: Desk, tmp_path: Path) -> None:
    """A connection that rested is closed by the platform; the next call makes a new one by itself."""
    limits = Limits(idle_time=0.02)
    with (
        ControlServer(operations(desk), tmp_path / "control.sock", limits=limits) as server,
        ControlClient(server.address) as client,
    ):
        assert client.call("ready") is True
        assert wait_until(lambda: server.connections == 0)
        assert client.call("ready") is True


def test_nobody_there(tmp_path: Path) -> None:
    """Calling where nobody listens says so and what to do."""
    with pytest.raises(PeerUnreachable, match="exop serve"):
        ControlClient(tmp_path / "control.sock").call("ready")


def test_connection_lost(server: ControlServer, desk: Desk) -> None:
    """When the platform goes away during a call, the error says that the outcome is not known."""
    client = ControlClient(server.address)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(client.call, "linger")
        assert desk.waiting.acquire(timeout=60)
        server.stop()
        with pytest.raises(ConnectionLost, match="whether it was carried out is unknown"):
            waiting.result(5)


def test_stop_leaves_nothing(desk: Desk, tmp_path: Path, run_directory: Path) -> None:
    """Stopping leaves no thread, no socket and no entry in the run directory."""
    before = set(threading.enumerate())
    server = ControlServer(operations(desk), tmp_path / "state" / "control.sock")
    server.start()
    clients = [ControlClient(server.address) for _ in range(3)]
    assert all(client.call("ready") for client in clients)
    silent = RawPeer(server.address, greet=False)
    assert wait_until(lambda: server.connections == 4)
    server.stop()
    assert set(threading.enumerate()) <= before
    assert silent.ended()
    assert not server.address.exists()
    assert list(run_directory.glob("*.sock")) == []
    server.stop()


def test_stop_lets_operations_answer(desk: Desk, tmp_path: Path) -> None:
    """An operation under way still answers when the server stops."""
    server = ControlServer(operations(desk), tmp_path / "control.sock")
    server.start()
    with ThreadPoolExecutor(2) as pool:
        waiting = pool.submit(ControlClient(server.address).call, "linger")
        assert desk.waiting.acquire(timeout=60)
        stopping = pool.submit(server.stop)
        assert wait_until(lambda: not server.address.exists())
        desk.open.set()
        assert waiting.result(5) == "open"
        stopping.result(5)
    assert server.connections == 0


def test_stop_from_an_operation(tmp_path: Path) -> None:
    """An operation may stop the server that runs it, and still answers."""
    from exop.remoting import operation

    servers: list[ControlServer] = []

    @operation
    def stop() -> str:
        """Stop."""
        servers[0].stop()
        return "stopped"

    servers.append(ControlServer(operations(stop), tmp_path / "control.sock"))
    servers[0].start()
    assert ControlClient(servers[0].address).call("stop") == "stopped"
    assert wait_until(lambda: servers[0].connections == 0)


def test_operations_are_made_late(desk: Desk, tmp_path: Path) -> None:
    """Operations given as a function are asked for when the first peer comes, and once."""
    made = []

    def make() -> dict[str, Operation]:
        made.append(1)
        return operations(desk)

    with ControlServer(make, tmp_path / "control.sock") as server:
        assert made == []
        assert ControlClient(server.address).call("ready") is True
        assert ControlClient(server.address).call("ready") is True
    assert made == [1]


def test_only_the_owner_reaches_it(server: ControlServer) -> None:
    """Directory and socket are the owner's alone."""
    assert stat.S_IMODE(server.address.stat().st_mode) == 0o600
    assert stat.S_IMODE(server.address.parent.stat().st_mode) == 0o700


def test_another_user_is_declined(server: ControlServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process of another user is told no, whatever the file permissions say."""
    monkeypatch.setattr(sockets, "peer_of", lambda sock: Peer(pid=1, uid=os.geteuid() + 1))
    with pytest.raises(PeerRefused, match="serves its owner only"):
        ControlClient(server.address).call("ready")


def test_address_in_use(server: ControlServer, desk: Desk) -> None:
    """A second server at the address of a living one is refused with the process that holds it."""
    with pytest.raises(AddressInUse, match=f"in use by process {os.getpid()}"):
        ControlServer(operations(desk), server.address).start()
    assert ControlClient(server.address).call("ready") is True


def test_dead_socket_is_replaced(desk: Desk, tmp_path: Path) -> None:
    """A socket that a dead process has left is replaced."""
    path = tmp_path / "control.sock"
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(path))
    with ControlServer(operations(desk), path) as server:
        assert ControlClient(server.address).call("ready") is True
    assert not path.exists()


def test_other_files_are_kept(desk: Desk, tmp_path: Path) -> None:
    """A file that is no socket is not replaced."""
    path = tmp_path / "control.sock"
    path.write_text("precious")
    with pytest.raises(AddressUnusable, match="is no socket"):
        ControlServer(operations(desk), path).start()
    assert path.read_text() == "precious"


def test_one_of_two_wins(desk: Desk, tmp_path: Path) -> None:
    """Of servers that start at one address at the same time exactly one listens, also over a dead socket."""
    path = tmp_path / "control.sock"
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(path))
    servers = [ControlServer(operations(desk), path) for _ in range(8)]

    def start(server: ControlServer) -> bool:
        try:
            server.start()
        except AddressInUse:
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        started = list(pool.map(start, servers))
    assert started.count(True) == 1
    assert ControlClient(path).call("ready") is True
    servers[started.index(True)].stop()


def test_starts_once(server: ControlServer) -> None:
    """A server starts once."""
    with pytest.raises(RuntimeError, match="starts once"):
        server.start()


def test_connections_are_bounded(desk: Desk, tmp_path: Path) -> None:
    """When all connections are at work one more is declined; one that rests makes room."""
    limits = Limits(connections=2, patience=0.02)
    with (
        ControlServer(operations(desk), tmp_path / "control.sock", limits=limits) as server,
        ThreadPoolExecutor(2) as pool,
    ):
        clients = [ControlClient(server.address) for _ in range(3)]
        waiting = [pool.submit(client.call, "linger") for client in clients[:2]]
        assert all(desk.waiting.acquire(timeout=60) for _ in waiting)
        with pytest.raises(PeerRefused, match="all its 2 connections are at work"):
            clients[2].call("ready")
        desk.open.set()
        assert [call.result(5) for call in waiting] == ["open", "open"]
        assert wait_until(lambda: _answers(clients[2]))
        assert server.connections <= 2  # one was closed to make room, or both
        assert clients[0].call("ready") is True


def test_a_forked_child_leaves_the_socket_to_its_parent(tmp_path: Path) -> None:
    """A child that stops the server, or closes the whole platform, lets go of its copies; the parent goes on."""
    code = (
        "import os, sys\n"
        "from exop import Platform, connect\n"
        "from exop.remoting.transport.rundir import find_entries\n"
        "with Platform(state=sys.argv[1], name='parent') as platform:\n"
        "    for stop in (platform._server.stop, platform.close):\n"
        "        child = os.fork()\n"
        "        if child == 0:\n"
        "            stop()\n"
        "            os._exit(0)\n"
        "        print(os.waitpid(child, 0)[1])\n"
        "    print([pid == os.getpid() for pid in find_entries().values()])\n"
        "    with connect(sys.argv[1]) as remote:\n"
        "        print(remote.name, remote.status()['applications'])\n"
        "print(os.path.exists(sys.argv[1] + '/control.sock'))\n"
    )
    command = [sys.executable, "-W", "ignore", "-c", code, str(tmp_path / "state")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert (done.stdout.splitlines(), done.stderr) == (["0", "0", "[True]", "parent {}", "False"], "")


def _answers(client: ControlClient) -> bool:
    try:
        return client.call("ready") is True
    except PeerRefused:
        return False


def test_light_until_called() -> None:
    """Starting a server imports neither rpyc nor msgspec."""
    code = (
        "import sys, tempfile, pathlib\n"
        "from exop.remoting import ControlServer\n"
        "with ControlServer(dict, pathlib.Path(tempfile.mkdtemp()) / 'control.sock'):\n"
        "    print(sorted({'rpyc', 'msgspec', 'msgpack', 'ssl'} & set(sys.modules)))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
