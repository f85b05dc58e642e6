"""Connecting to a running platform."""

import pytest

from exop import Application, Platform, connect
from exop.errors import AddressUnusable, ConnectionLost, PeerRefused, PeerUnreachable, RequestInvalid, UnknownName
from exop.remoting import ControlServer
from exop.remoting.api.management import Management
from exop.remoting.api.remote_platform import RemotePlatform
from exop.remoting.api.service import ManagementService
from exop.remoting.authority import create_authority, issue
from exop.remoting.identity import Identity
from exop.remoting.transport.operation import marked_operations, unanswered
from tests.change.tools import endless
from tests.cli.shell import answer_of, facts
from tests.wiring.test_applications import passes


def test_an_address_with_a_scheme_is_reached_by_the_transport_of_that_name(tmp_path):
    """`unix://` is registered through the same hook as a plugin's transport would be."""
    with Platform(state=tmp_path / "state", name="here"), connect(f"unix://{tmp_path}/state/control.sock") as remote:
        assert remote.name == "here"
        assert remote.applications() == []


def test_a_scheme_that_no_plugin_offers_is_told_with_the_known_ones():
    """The error names the schemes there are."""
    with pytest.raises(UnknownName, match="no transport 'carrier-pigeon'; known: tcp, tls, unix"):
        connect("carrier-pigeon://coop")
    with pytest.raises(PeerUnreachable, match=r"for an address write tls://edge-1:7700"):
        connect("edge-1:7700")


def test_a_plan_without_an_answer_has_changed_nothing():
    """Only what carries something out may have been carried out when the connection ends."""
    for marked, _ in [*marked_operations(Management), *marked_operations(ManagementService)]:
        plans = marked.__annotations__["return"] in ("AnyPlan", "wire.Planned")
        error = ConnectionLost(address="a", problem="reset", **unanswered(name := marked.__name__))
        if plans or marked.__exop_operation__.get("role") == "observe":
            assert f"ended during '{name}' (reset); nothing was changed; " in str(error)
        assert ("nothing was changed" in str(error)) != ("whether it was carried out is unknown" in str(error))
    assert "carried out is unknown" in str(ConnectionLost(address="a", problem="reset", **unanswered("carry_out")))


@pytest.fixture
def on_another_host(tmp_path):
    """The address of a platform that admits `ops` as an operator, and the folder of its authority."""
    certificates = tmp_path / "certificates"
    create_authority(certificates)
    identity = Identity(issue(certificates, "there"))
    with (
        Platform(name="there", control=False) as platform,
        ControlServer(
            ManagementService(platform).table(),
            name="there",
            local=False,
            listen=["tls://127.0.0.1:0"],
            identity=identity,
            roles=lambda peer: "operate" if peer.name == "ops" else None,
        ) as server,
    ):
        yield server.uris[0], certificates


def test_a_platform_on_another_host_is_reached_with_a_certificate(on_another_host):
    """The peer has the role that the platform gives to the name in its certificate."""
    address, certificates = on_another_host
    with connect(address, identity=issue(certificates, "ops")) as remote:
        assert remote.name == "there"
        assert remote.applications() == []
    with (
        connect(address, identity=issue(certificates, "stranger")) as remote,
        pytest.raises(PeerRefused, match="the role of this peer is none"),
    ):
        remote.applications()


def test_commands_reach_a_platform_on_another_host(on_another_host):
    """`--on` takes an address, and `--identity` the certificate for it."""
    address, certificates = on_another_host
    assert facts("slets", "--on", address, "--identity", issue(certificates, "ops"))
    refused = answer_of("slets", "--on", address, "--identity", issue(certificates, "stranger"), code=2)
    assert "the role of this peer is none" in refused


def test_an_address_with_tls_needs_a_certificate(on_another_host):
    """The error names the option and the command that makes certificates."""
    with pytest.raises(AddressUnusable, match="--identity"):
        connect(on_another_host[0]).applications()


def test_to_wait_for_an_application_fills_no_place_of_the_platform(tmp_path):
    """What is asked does not wait: a client asks again, and can give no time-out."""
    app = Application("app")
    app.add("k", passes, item=app.add("n", endless))
    with Platform(control=False) as platform:
        platform.apply(app.build())
        table = ManagementService(platform).table()
        with ControlServer(table, tmp_path / "control.sock") as server, RemotePlatform(server.address) as remote:
            assert remote.wait("app", 0) is False
            with pytest.raises(RequestInvalid, match="timeout"):
                remote.ask("wait", application="app", timeout=None)
            platform.end("app")
            assert remote.wait("app", 60)
