"""Faults between two hosts that are not the home, and peers of other releases; see also `test_network_faults`."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import pytest

from exop import Application, Platform
from exop.errors import NotNow
from exop.hosts import home
from exop.model.meshes.mesh import Mesh
from exop.remoting.peers.data_frames import FLUSHER, HEADER
from exop.remoting.transport.codec import encode_message
from exop.remoting.transport.handshake import PROTOCOL, Declined
from tests.change.tools import endless
from tests.hosts import hosts_rig
from tests.hosts.faulty_network import BACK, OUT, Cable, cabled
from tests.hosts.hosts_rig import HANG, Opens, check, goes_on, total
from tests.rig import PATIENCE, eventually


def chain() -> Mesh:
    """Numbers on a, checked on b, and again on c."""
    app = Application("app")
    checked = app.on("b").add("check", check, item=app.add("numbers", endless))
    app.on("c").add("last", check, item=checked)
    return app.build()


@pytest.fixture
def hosts(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Platform, Platform, Platform, Cable]]:
    """Three platforms with the application, and the network between b and c."""
    with cabled(monkeypatch) as ((a, b, c), cables):
        a.apply(chain())
        goes_on(c, "last")
        yield a, b, c, cables["bc"]


EVENTS: dict[str, Callable[[Cable], None]] = {
    "a half-open connection": Cable.forget,
    "a partition": lambda cable: cable.hold(OUT, BACK),
    "a loss in the direction of the items": lambda cable: cable.hold(BACK),
    "a loss in the direction of the reports": lambda cable: cable.hold(OUT),
}


@pytest.mark.parametrize("name", EVENTS)
def test_two_members_lose_each_other(hosts: tuple[Platform, Platform, Platform, Cable], name: str) -> None:
    """Both notice it, the home still sees both, and the items between them go on when the network is healed."""
    a, b, c, cable = hosts
    links = [b.remoting.peers["c"], c.remoting.peers["b"]]
    noticed = [threading.Event() for _ in links]
    for platform, peer, event in ((b, "c", noticed[0]), (c, "b", noticed[1])):
        platform.registry.track("Peer", f"(name={peer})", removed=lambda _, event=event: event.set())
    EVENTS[name](cable)
    assert all(event.wait(PATIENCE) for event in noticed)
    assert {peer: link.connected for peer, link in a.remoting.peers.items()} == {"b": True, "c": True}
    assert total(b).wrong == total(c, "last").wrong == 0
    cable.hold()
    assert all(link.wait_until(connected=True, timeout=PATIENCE) for link in links)
    goes_on(c, "last")
    assert a.remove("app", PATIENCE)


@pytest.mark.parametrize(
    ("limits", "said"),
    [
        ({"connecting": 0.2, "timeout": None}, "c cannot be reached at the moment: "),
        ({"connecting": 60.0, "timeout": 1.0}, "no answer to prepare from c within 3 s; "),
    ],
)
def test_a_change_does_not_wait_for_a_lost_host(
    monkeypatch: pytest.MonkeyPatch, limits: dict[str, Any], said: str
) -> None:
    """It is undone soon after the connection is lost, and, if it has a timeout, after that; not after a minute."""
    monkeypatch.setattr(home, "CONNECTING", limits["connecting"])
    with cabled(monkeypatch) as ((a, _, c), cables), ThreadPoolExecutor(1) as pool:
        a.apply(chain())
        goes_on(c, "last")
        HANG.clear()
        Opens.begun.clear()
        mesh = a.mesh("app").replace("last", Opens, lose_state=True)
        outcome = pool.submit(a.apply, mesh, timeout=limits["timeout"])
        assert Opens.begun.wait(PATIENCE)
        cables["ac"].hold(OUT, BACK)
        with pytest.raises(NotNow, match=f"^{said}.*; nothing was changed on any host"):
            outcome.result(30)
        HANG.set()
        cables["ac"].hold()
        goes_on(c, "last")
        assert a.remove("app", PATIENCE)


class OtherRelease:
    """A platform of another protocol, at an address of its own."""

    def __init__(self, protocol: int) -> None:
        self._declined = encode_message(Declined("another protocol", protocol, "9.9"))
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.uri = f"tcp://z@127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._answer, name="other release", daemon=True).start()

    def close(self) -> None:
        """Listen no more."""
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _answer(self) -> None:
        with suppress(OSError):  # it is closed
            while True:
                accepted, _ = self._listener.accept()
                with accepted, suppress(OSError):  # the dialler has gone
                    accepted.recv(4096)
                    accepted.sendall(HEADER.pack(len(self._declined), 0) + self._declined + FLUSHER)


@pytest.mark.parametrize("protocol", [PROTOCOL - 1, PROTOCOL + 1], ids=["n-1", "n+1"])
def test_a_peer_of_another_protocol(hosts: tuple[Platform, Platform, Platform, Cable], protocol: int) -> None:
    """It is not linked, and the reason names both protocols; after its upgrade, it is linked without an operator."""
    a, _, c, _ = hosts
    other = OtherRelease(protocol)
    link = a.remoting.add("z", other.uri)
    text = f"uses protocol {protocol} (exop 9.9), this one {PROTOCOL}"
    eventually(lambda: text in link.reason, "the reason")
    assert not link.connected
    goes_on(c, "last")
    other.close()
    with hosts_rig.platform("z", listen=other.uri):
        assert link.wait_until(connected=True, timeout=PATIENCE)
        assert link.call("applications") == []
