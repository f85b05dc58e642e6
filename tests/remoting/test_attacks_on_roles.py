"""Attacks of platforms with valid certificates: more than their role, other channels, revoked, or nameless."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, load_pem_private_key

from exop import Application, Platform
from exop.errors import ExopError, PeerRefused, PeerUnreachable
from exop.remoting import ControlClient, ControlServer
from exop.remoting.api.service import ManagementService
from exop.remoting.authority import create_authority, issue, revoke
from exop.remoting.identity import Identity
from exop.remoting.policy import AccessControl, Policy
from exop.stock.slets import count_up, pass_on
from tests.remoting.target import SHORT, wait_until

POLICY = """
[peers.watcher]
role = "observe"
[peers.operator]
role = "operate"
[peers.partner]
read = ["numbers/pass"]
"""


class Home:
    """A platform that listens with TLS, its authority and its policy."""

    def __init__(self, folder: Path) -> None:
        self.certs = folder / "certs"
        create_authority(self.certs)
        self.policy = folder / "policy.toml"
        self.policy.write_text(POLICY)
        self.policy.chmod(0o600)
        self.platform = Platform(state=folder / "state", name="home").start()
        self.now = 0.0
        self.access = AccessControl(
            Policy(self.policy, clock=self.clock),
            Identity(issue(self.certs, "home")),
            self.platform._applications.history.counted,
            clock=self.clock,
        )
        self.server = ControlServer(
            ManagementService(self.platform).table,
            name="home",
            local=False,
            listen=["tls://127.0.0.1:0"],
            identity=self.access.identity,
            roles=self.access.role,
            limits=SHORT,
            on_refusal=lambda address, problem: self.access.refused("", "connect", problem, address),
        )
        self.server.start()

    def clock(self) -> float:
        """A time at which everything is due."""
        self.now += 1.0
        return self.now

    def client(self, name: str, folder: Path | None = None) -> ControlClient:
        """A connection of the platform *name*, with a new certificate unless one is given."""
        identity = Identity(folder or issue(self.certs, name))
        return ControlClient(self.server.uris[0], identity=identity, timeout=60.0)

    def recorded(self, application: str = "") -> list[tuple[Any, ...]]:
        """What was refused: the operation, the number of calls, and the caller without its port."""
        rows = self.platform.history(application)
        return [
            (one["what"], one["count"], one["who"].rpartition(":")[0]) for one in rows if one["outcome"] == "refused"
        ]

    def close(self) -> None:
        """Stop everything."""
        self.server.stop()
        self.platform.close()


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    """A platform with an application."""
    home = Home(tmp_path)
    app = Application("numbers")
    app.add("pass", pass_on, item=app.add("numbers", count_up))
    home.platform.apply(app.build())
    yield home
    home.close()


@pytest.mark.parametrize(
    ("name", "operation", "arguments", "needed", "role"),
    [
        ("watcher", "end", {"application": "numbers"}, "operate", "observe"),
        ("watcher", "remove", {"application": "numbers"}, "operate", "observe"),
        ("watcher", "start_bundle", {"bundle": "speeds"}, "admin", "observe"),
        ("operator", "start_bundle", {"bundle": "speeds"}, "admin", "operate"),
        ("operator", "install_bundle", {"archive": b"PK", "name": "../../evil"}, "admin", "operate"),
        ("partner", "status", {}, "observe", "none"),
        ("partner", "export_memento", {"application": "numbers", "node": "pass"}, "observe", "none"),
    ],
)
def test_a_peer_that_calls_more_than_its_role_permits(home, name, operation, arguments, needed, role):
    """The call is refused before it is carried out, recorded with the peer, and the application runs on."""
    with home.client(name) as client, pytest.raises(PeerRefused, match=f"needs the role {needed}, .* {role}"):
        client.call(operation, arguments)
    application = arguments.get("application", "")
    assert home.recorded(application) == [(operation, 1, f"platform {name} (127.0.0.1")]
    assert home.platform.applications() == ["numbers"]


def test_a_role_that_is_taken_away_from_a_connected_peer(home):
    """The role counts for each call: a lower one from the next call on, and none ends the connection."""
    with home.client("operator") as client:
        client.call("end", {"application": "numbers"})
        home.policy.write_text(POLICY.replace('"operate"', '"observe"'))
        with pytest.raises(PeerRefused, match="needs the role operate"):
            client.call("end", {"application": "numbers"})
        home.policy.write_text("[peers.watcher]\n")
        home.access.watch(home.server.hang_up, Once())
        with pytest.raises(PeerRefused, match="gives operator no rights"):
            client.call("status")


def test_refused_connections_are_told_once_a_minute(home, monkeypatch):
    """The history counts them by caller; the log has one line per caller and reason, with those since the last one."""
    warning = Mock()
    monkeypatch.setattr("exop.remoting.policy.logger", lambda name: Mock(warning=warning))
    stranger, edge = home.client("stranger"), Identity(issue(home.certs, "watcher"))
    for _ in range(3):
        with pytest.raises(PeerRefused, match=r"add a section \[peers.stranger\]"):
            stranger.call("applications")
    with pytest.raises(PeerRefused, match="your certificate is that of 'watcher', not of 'home'"):
        ControlClient(home.server.uris[0], identity=edge, name="home").call("applications")
    wait_until(lambda: sum(one[1] for one in home.recorded()) == 4)
    told = [("connect", 3, "platform stranger (127.0.0.1"), ("connect", 1, "platform watcher (127.0.0.1")]
    assert home.recorded() == told
    home.now += 100.0
    with pytest.raises(PeerRefused):
        stranger.call("applications")
    wait_until(lambda: home.recorded()[0][1] == 4)
    lines = sorted((one.kwargs["caller"].split()[1], one.kwargs["times"]) for one in warning.mock_calls)
    assert lines == [("stranger", 1), ("stranger", 3), ("watcher", 1)]


class Once:
    """An event that is set after one wait."""

    def __init__(self) -> None:
        self._waits = iter((False, True))

    def wait(self, seconds: float) -> bool:
        """Whether it is set."""
        return next(self._waits)


def test_a_certificate_that_is_revoked_while_its_connection_is_open(home):
    """The connection ends, the next one is refused, and both are recorded; other peers are served."""
    with home.client("operator") as revoked, home.client("watcher") as other:
        assert revoked.call("applications") == other.call("applications") == ["numbers"]
        wait_until(lambda: home.server.connections == 2)
        revoke(home.certs, "operator")
        home.access.watch(home.server.hang_up, Once())
        wait_until(lambda: home.server.connections == 1)
        with pytest.raises((PeerRefused, PeerUnreachable), match="revoked"):
            revoked.call("applications")
        assert other.call("applications") == ["numbers"]
    wait_until(lambda: len(home.recorded()) == 2)
    assert set(home.recorded()) == {
        ("stay connected", 1, "platform operator (127.0.0.1"),
        ("connect", 1, "127.0.0.1"),
    }


@pytest.mark.parametrize("hours", [-2, 2])
def test_certificates_shifted_by_more_than_an_hour(home, hours):
    """Such a certificate is refused, with the reason on both sides, and recorded with the address."""
    now = datetime.now(UTC) + timedelta(hours=hours)
    folder = issue(home.certs, "operator", now=now, days=1)
    if hours < 0:
        folder = _reissued(home.certs, "operator", end=datetime.now(UTC) - timedelta(minutes=1))
    sure = Identity(folder, clock=now.timestamp)
    client = ControlClient(home.server.uris[0], identity=sure, timeout=60.0)
    with pytest.raises((PeerRefused, PeerUnreachable), match="has expired|not valid"):
        client.call("status")
    wait_until(lambda: home.recorded())
    assert home.recorded() == [("connect", 1, "127.0.0.1")]
    assert "its certificate" in home.platform.history()[0]["reason"]


def _reissued(certs: Path, name: str, *, end: datetime | None = None, subject: str | None = None) -> Path:
    """Sign the certificate of *name* again, with another end of its validity, or another subject."""
    path = certs / name / f"{name}.pem"
    old = x509.load_pem_x509_certificate(path.read_bytes())
    key: Any = load_pem_private_key((certs / "ca.key").read_bytes(), None)
    given = old.subject if subject is None else x509.Name([x509.NameAttribute(x509.NameOID.ORGANIZATION_NAME, subject)])
    draft = x509.CertificateBuilder(
        old.issuer, given, old.public_key(), old.serial_number, old.not_valid_before_utc, end or old.not_valid_after_utc
    )
    for extension in old.extensions:
        draft = draft.add_extension(extension.value, extension.critical)
    path.write_bytes(draft.sign(key, SHA256()).public_bytes(Encoding.PEM))
    return path.parent


def test_a_certificate_without_a_name(home):
    """A certificate of the authority that names no platform is refused, and the platform goes on serving others."""
    sure = Identity(issue(home.certs, "operator"))
    context = sure.files().client
    _reissued(home.certs, "operator", subject="operator")
    context.load_cert_chain(home.certs / "operator" / "operator.pem", home.certs / "operator" / "operator.key")
    address = home.server.uris[0].rpartition(":")
    with socket.create_connection(("127.0.0.1", int(address[2])), 60.0) as raw, context.wrap_socket(raw) as sock:
        assert sock.recv(1) == b""
    wait_until(lambda: home.recorded())
    assert "its certificate does not name one platform" in home.platform.history()[0]["reason"]
    with home.client("watcher") as client:
        assert client.call("applications") == ["numbers"]


def test_callers_without_a_certificate_are_recorded(home):
    """Plain TCP, garbage and silence on the TLS port are refused, and counted in one entry; no thread is left."""
    port = int(home.server.uris[0].rpartition(":")[2])
    threads = set(threading.enumerate())
    for data in (b"GET / HTTP/1.1\r\n\r\n", b"\x00" * 100, b""):
        with socket.create_connection(("127.0.0.1", port), 60.0) as raw:
            raw.sendall(data)
            raw.shutdown(socket.SHUT_WR)
            raw.settimeout(60.0)
            with suppress(ConnectionError):
                while raw.recv(100):
                    pass
    wait_until(lambda: sum(one[1] for one in home.recorded()) == 3)
    assert [one[0] for one in home.recorded()] == ["connect"]
    wait_until(lambda: set(threading.enumerate()) <= threads)


def test_paths_that_lead_out_of_a_bundle_sent_by_a_peer(home, tmp_path):
    """An admin at another host cannot write outside the folder of bundles, either."""
    from tests.bundle.folders import zipped

    home.policy.write_text('[peers.root]\nrole = "admin"\n')
    before = sorted(tmp_path.rglob("*"))
    with home.client("root") as client:
        made = sorted(tmp_path.rglob("*"))
        for path in ("../evil.py", "/tmp/evil.py", "a/../../evil.py", "C:/evil.py", "a\\..\\..\\evil.py"):
            archive = zipped({path: "x", "bundle.toml": 'name = "evil"\nversion = "1"\n'})
            with pytest.raises(ExopError, match="is refused: "):
                client.call("install_bundle", {"archive": archive, "name": "evil.zip"})
        for bundle in ("../../numbers", "/etc/passwd"):
            with pytest.raises(ExopError):
                client.call("start_bundle", {"bundle": bundle})
    assert [one for one in sorted(tmp_path.rglob("*")) if one not in (*before, *made) and "evil" in one.name] == []
    assert ("install_bundle", "platform root") in {
        (one["what"], one["who"].partition(" (")[0]) for one in home.platform.history()
    }
