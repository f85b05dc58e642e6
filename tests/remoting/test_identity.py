"""Identities: issuing, renewing and revoking certificates, and handshakes that accept these and no others."""

from __future__ import annotations

import errno
import os
import re
import shutil
import ssl
import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple
from unittest.mock import Mock

import pytest

from exop.errors import IdentityError
from exop.remoting.authority import certificates, create_authority, issue, revoke
from exop.remoting.identity import Identity, explain

NOW = datetime.now(UTC)
HOUR = timedelta(hours=1)


@pytest.fixture
def authority(tmp_path):
    """A new authority in a folder of its own."""
    create_authority(tmp_path / "certs")
    return tmp_path / "certs"


class Handshake(NamedTuple):
    """The outcome of a handshake: the errors of both sides, and both sides themselves."""

    server_error: ssl.SSLError | None
    client_error: ssl.SSLError | None
    server: ssl.SSLObject
    client: ssl.SSLObject


def handshake(server: ssl.SSLContext, client: ssl.SSLContext) -> Handshake:
    """Let both sides talk in memory until neither has more to say; the client then reads a byte."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    sides = {
        "server": server.wrap_bio(to_server, to_client, server_side=True),
        "client": client.wrap_bio(to_client, to_server),
    }
    errors: dict[str, ssl.SSLError] = {}
    for _ in range(6):
        for name, side in sides.items():
            if name in errors:
                continue
            try:
                side.do_handshake()
                if name == "client":
                    side.read(1)
            except ssl.SSLWantReadError:
                continue
            except ssl.SSLError as error:
                errors[name] = error
    return Handshake(errors.get("server"), errors.get("client"), sides["server"], sides["client"])


def between(server: Identity, client: Identity) -> Handshake:
    """A handshake of two platforms."""
    return handshake(server.files().server, client.files().client)


def unchecked(context: ssl.SSLContext) -> ssl.SSLContext:
    """The same context without checks of its own, so that the other side decides."""
    context.check_hostname = False
    context.verify_flags = ssl.VERIFY_DEFAULT
    context.verify_mode = ssl.CERT_NONE
    return context


def test_platforms_with_certificates_of_one_authority_accept_each_other(authority):
    """Both sides learn the name, the serial number and the end of the validity of the other one."""
    home, edge = (Identity(issue(authority, name)) for name in ("home", "edge-1.example.org"))
    made = between(home, edge)
    assert (made.server_error, made.client_error) == (None, None)
    assert made.server.version() == "TLSv1.3"
    assert home.peer(made.server).name == edge.files().own.name == "edge-1.example.org"
    seen = edge.peer(made.client)
    assert seen.name == "home"
    assert f"{seen.serial:x}" == next(one["serial"] for one in certificates(authority) if one["name"] == "home")
    assert seen.expires == home.files().own.expires
    assert home.objection(home.peer(made.server)) == ""


def test_a_certificate_of_another_authority_is_refused(authority, tmp_path):
    """Each side checks the other one: a foreign client and a foreign server are both refused."""
    create_authority(tmp_path / "foreign")
    ours, theirs = Identity(issue(authority, "home")), Identity(issue(tmp_path / "foreign", "edge"))
    made = handshake(ours.files().server, unchecked(theirs.files().client))
    assert "another authority" in explain(made.server_error)
    assert "another authority" in explain(made.client_error)
    made = handshake(unchecked(theirs.files().server), ours.files().client)
    assert "another authority" in explain(made.client_error)


def test_a_client_without_a_certificate_is_refused(authority):
    """TLS is mutual; both sides are told the cure."""
    home = Identity(issue(authority, "home"))
    made = handshake(home.files().server, unchecked(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)))
    for error in (made.server_error, made.client_error):
        assert explain(error) == "a certificate is required; give an identity: --identity DIR"


def test_an_older_tls_is_refused(authority):
    """TLS 1.2 is refused by a server and by a client."""
    home, edge = (Identity(issue(authority, name)) for name in ("home", "edge"))
    old = edge.files().client
    old.minimum_version, old.maximum_version = ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_2
    made = handshake(home.files().server, old)
    assert explain(made.server_error) == "TLS 1.3 is required; update the other side"
    assert explain(made.client_error) == "TLS 1.3 is required; update the other side"
    gone = OSError(errno.ENOTCONN, "Transport endpoint is not connected")  # it may not even have begun
    assert explain(gone) == "the connection ended during the handshake; see the log of the other side"


def test_a_revoked_certificate_is_refused_without_a_restart(authority):
    """The next handshake uses the new list, open connections are objected to, and other names are not affected."""
    home, edge, other = (Identity(issue(authority, name)) for name in ("home", "edge", "other"))
    client, peer = edge.files().client, home.peer(between(home, edge).server)
    assert revoke(authority, "edge") == [f"{peer.serial:x}"]
    made = handshake(home.files().server, client)
    told = explain(made.server_error, home, "edge")
    assert told == "its certificate is revoked; issue a new one: `exop certs issue edge`"
    told = explain(made.client_error, edge)
    assert told.startswith("for the other side, the certificate of edge is revoked; issue")
    again = "issue a new one: `exop certs issue edge`"
    assert home.objection(peer) == f"the certificate {peer.serial:x} of edge is revoked; {again}"
    assert between(home, other).server_error is None
    with pytest.raises(IdentityError, match="it is revoked; issue a new one: `exop certs issue edge`"):
        Identity(authority / "edge")
    fresh = Identity(issue(authority, "edge"))
    assert between(home, fresh).server_error is None


def test_a_revocation_remains_when_its_record_is_deleted(authority):
    """The list of revoked certificates only grows, whatever happens to the records of issued certificates."""
    home, edge = (Identity(issue(authority, name)) for name in ("home", "edge"))
    client = edge.files().client
    (serial,) = revoke(authority, "edge")
    (authority / "issued" / f"{serial}.pem").unlink()
    issue(authority, "other")
    revoke(authority, "other")
    assert "is revoked" in explain(handshake(home.files().server, client).server_error)


@pytest.mark.parametrize("writable", [True, False])
def test_an_older_list_takes_no_revocation_back(authority, monkeypatch, writable):
    """While the process runs, and after a restart if the folder can be written; the cures of the refusal both work."""
    home, edge = (Identity(issue(authority, name)) for name in ("home", "edge"))
    client, path = edge.files().client, authority / "home" / "revoked.pem"
    older = path.read_bytes()
    revoke(authority, "edge")
    newest = path.read_bytes()
    if not writable:
        monkeypatch.setattr("exop.remoting.authority._write", Mock(side_effect=IdentityError("read-only")))
    assert home.files().revoked
    path.write_bytes(older)
    assert "is revoked" in explain(handshake(home.files().server, client).server_error)
    told = r"older than a list that was in force; copy the newest list; .* remove (revoked-\w+.seen), and start"
    assert re.search(told, home.problem)
    if writable:
        with pytest.raises(IdentityError, match=told) as problem:
            Identity(authority / "home")
        path.write_bytes(newest)
        assert Identity(authority / "home").files().revoked
        path.write_bytes(older)
        (authority / "home" / re.search(told, str(problem.value))[1]).unlink()
    assert between(Identity(authority / "home"), edge).server_error is None
    path.write_bytes(newest)
    assert home.files().revoked
    assert home.problem == ""


def test_another_authority_has_a_list_of_its_own(authority, tmp_path):
    """The revocations of the former one do not concern its certificates."""
    issue(authority, "edge")
    home = Identity(issue(authority, "home"))
    revoke(authority, "edge")
    assert home.files().revoked
    create_authority(tmp_path / "new")
    for file in issue(tmp_path / "new", "home").iterdir():
        shutil.copy(file, authority / "home" / file.name)
    assert not home.files().revoked
    assert home.problem == ""
    assert not Identity(authority / "home").files().revoked


def test_sessions_are_not_resumed(authority):
    """A server gives no session tickets, with which a revoked certificate would get in without being looked at."""
    home, edge = (Identity(issue(authority, name)) for name in ("home", "edge"))
    made = between(home, edge)
    assert made.client.session is None or not made.client.session.has_ticket


@pytest.mark.parametrize(
    ("issued", "accepted", "problem"),
    [
        (NOW + 0.95 * HOUR, True, ""),
        (NOW + 1.5 * HOUR, False, "its certificate is not valid yet; compare the clocks of both hosts"),
        (NOW - 23 * HOUR, True, ""),
        (NOW - 25 * HOUR, False, "its certificate has expired; issue a new one: `exop certs issue NAME --renew`"),
    ],
    ids=["issued 57 min ahead", "issued 90 min ahead", "expires in an hour", "expired an hour ago"],
)
def test_certificates_shifted_by_hours(tmp_path, issued, accepted, problem):
    """Clocks may differ by an hour; a certificate that is not valid yet, or no longer, is refused on both sides."""
    create_authority(tmp_path, now=NOW - 48 * HOUR)
    home = Identity(issue(tmp_path, "home"))
    edge = Identity(issue(tmp_path, "edge", days=1, now=issued), clock=lambda: issued.timestamp())
    made = between(home, edge)
    assert (made.server_error is None) is accepted
    if not accepted:
        assert explain(made.server_error) == problem
        assert explain(made.client_error)
        with pytest.raises(IdentityError, match="it is valid only from|it has expired"):
            Identity(tmp_path / "edge")


def test_an_open_connection_ends_with_the_validity_of_its_certificate(authority):
    """A connection does not outlive its certificate."""
    edge = Identity(issue(authority, "edge", days=1))
    clock = [time.time()]
    home = Identity(issue(authority, "home"), clock=lambda: clock[0])
    peer = home.peer(between(home, edge).server)
    assert home.objection(peer) == ""
    clock[0] += 86_400
    again = "issue a new one: `exop certs issue edge --renew`"
    assert home.objection(peer) == f"the certificate {peer.serial:x} of edge has expired; {again}"


def test_a_certificate_that_expires_soon_is_announced_in_the_log(authority, capsys):
    """Whoever runs the platform has a month to renew it."""
    Identity(issue(authority, "home", days=40))
    assert "expires soon" not in capsys.readouterr().err
    Identity(issue(authority, "edge", days=20))
    assert "the certificate expires soon" in (told := capsys.readouterr().err)
    assert "days=19" in told


def test_a_platform_that_runs_for_long_announces_it_once_a_day(authority, capsys):
    """The files need not change for it."""
    now = [time.time()]
    home = Identity(issue(authority, "home", days=40), lambda: now[0])
    told = []
    for days in (15, 0, 1):
        now[0] += days * 86_400
        home.warn()
        told.append("expires soon" in capsys.readouterr().err)
    assert told == [True, False, True]


def test_a_renewed_certificate_is_used_without_a_restart(authority):
    """A renewal replaces key and certificate; the old one is valid until it is revoked with its name."""
    home, edge = (Identity(issue(authority, name)) for name in ("home", "edge"))
    before = home.peer(between(home, edge).server)
    with pytest.raises(IdentityError, match="edge has a certificate, valid until .*; replace it with --renew, or"):
        issue(authority, "edge")
    with pytest.raises(
        IdentityError, match=r"no certificate of 'egde' was issued; issue the first one without --renew"
    ):
        issue(authority, "egde", renew=True)
    issue(authority, "edge", renew=True)
    after = home.peer(between(home, edge).server)
    assert after.serial != before.serial
    assert home.objection(before) == ""
    assert set(revoke(authority, "edge")) == {f"{before.serial:x}", f"{after.serial:x}"}
    assert [one["state"] for one in certificates(authority) if one["name"] == "edge"] == ["revoked", "revoked"]


def test_files_that_become_unusable_keep_the_previous_ones_in_force(authority):
    """A half-copied list of revoked certificates is reported, and connections are accepted as before."""
    home, edge = (Identity(issue(authority, name)) for name in ("home", "edge"))
    whole = (authority / "home" / "revoked.pem").read_bytes()
    (authority / "home" / "revoked.pem").write_bytes(whole[:100])
    assert between(home, edge).server_error is None
    assert "it is no list of revoked certificates" in home.problem
    (authority / "home" / "revoked.pem").write_bytes(whole)
    assert between(home, edge).server_error is None
    assert home.problem == ""


def test_a_forged_list_of_revoked_certificates_is_not_used(authority, tmp_path):
    """The list has to be signed by the authority: nobody else can revoke, or take a revocation back."""
    create_authority(tmp_path / "foreign")
    folder = issue(authority, "home")
    (folder / "revoked.pem").write_bytes((tmp_path / "foreign" / "revoked.pem").read_bytes())
    with pytest.raises(IdentityError, match="it is not signed by the authority in ca.pem; copy both files again"):
        Identity(folder)


def _open_key(folder: Path) -> None:
    (folder / "home.key").chmod(0o640)


def _other_key(folder: Path) -> None:
    issue(folder.parent, "other")
    (folder / "home.key").write_bytes((folder.parent / "other" / "other.key").read_bytes())


def _no_folder(folder: Path) -> None:
    folder.rename(folder.with_name("elsewhere"))


def _two_keys(folder: Path) -> None:
    (folder / "more.key").touch()


def _no_list(folder: Path) -> None:
    (folder / "revoked.pem").unlink()


def _no_certificate(folder: Path) -> None:
    (folder / "home.pem").write_text("nothing")


def _other_ca(folder: Path) -> None:
    create_authority(other := folder.parent.parent / "other")
    for file in ("ca.pem", "revoked.pem"):
        (folder / file).write_bytes((other / file).read_bytes())


@pytest.mark.parametrize(
    ("spoil", "problem"),
    [
        (_open_key, "home.key: other users can read it; chmod 600"),
        (_other_key, "home.pem: it does not fit home.key: .*; copy the whole folder again"),
        (_two_keys, "it contains 2 keys instead of one; give the folder NAME that `exop certs issue NAME` has made"),
        (_no_folder, "home: no such folder; give the folder NAME that `exop certs issue NAME` has made"),
        (_no_list, "revoked.pem: it cannot be read: No such file or directory; make an authority with"),
        (_no_certificate, "home.pem: it is no certificate: "),
        (_other_ca, "home.pem: it was not issued by ca.pem beside it; copy the whole folder again"),
    ],
)
def test_an_unusable_identity_states_the_file_and_the_cure(authority, spoil, problem):
    """Every file is checked before the first connection."""
    folder = issue(authority, "home")
    spoil(folder)
    with pytest.raises(IdentityError, match=problem):
        Identity(folder)


def test_the_folder_of_the_authority_is_no_identity(authority):
    """The key of the authority belongs on no other host, neither in a folder of its own nor in that of an identity."""
    shutil.copy(authority / "ca.key", folder := issue(authority, "home"))
    for there in (authority, folder):
        with pytest.raises(IdentityError, match=r"ca.key: it is the key of the authority.* remove it, unless .* host"):
            Identity(there)


def test_a_key_of_an_authority_alone_issues_nothing(authority, tmp_path):
    """Neither without the other files of the authority, nor with those of another one."""
    (there := tmp_path / "there").mkdir()
    shutil.copy(authority / "ca.key", there)
    with pytest.raises(IdentityError, match=r"ca.pem: it cannot be read: .*; ca.key alone is no authority: copy"):
        issue(there, "home")
    create_authority(other := tmp_path / "other")
    shutil.copy(authority / "ca.key", other)
    with pytest.raises(IdentityError, match=r"ca.key: it does not fit ca.pem beside it; copy the whole folder"):
        issue(other, "home")


def test_keys_are_readable_by_their_owner_only(authority):
    """Keys are made with the mode 0600, whatever the umask allows."""
    old = os.umask(0)
    try:
        folder = issue(authority, "home")
    finally:
        os.umask(old)
    for key in (folder / "home.key", authority / "ca.key"):
        assert key.stat().st_mode & 0o777 == 0o600
    assert folder.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize(
    "name", ["", "../home", "a/b", ".hidden", "issued", "ca", "revoked", "x" * 65, "home\n", "a\0b", "ä"]
)
def test_a_name_that_is_no_file_name_gets_no_certificate(authority, name):
    """Names are parts of paths and of the names of channels: nothing is written outside the authority."""
    before = sorted(authority.parent.rglob("*"))
    with pytest.raises(IdentityError, match="it cannot be the name of a platform in a certificate"):
        issue(authority, name)
    assert sorted(authority.parent.rglob("*")) == before


def test_an_authority_is_not_overwritten(authority):
    """A second `init` would make all issued certificates useless."""
    before = (authority / "ca.pem").read_bytes()
    with pytest.raises(IdentityError, match="it holds an authority already; take another folder"):
        create_authority(authority)
    assert (authority / "ca.pem").read_bytes() == before


def test_without_the_library_the_error_names_the_command_that_installs_it(tmp_path):
    """The library cryptography is optional; `pip install` is the cure."""
    program = (
        "import sys; sys.modules['cryptography'] = None\n"
        "from exop.remoting.identity import Identity\n"
        "from exop.errors import IdentityError\n"
        "try: Identity(sys.argv[1])\n"
        "except IdentityError as error: print(error)"
    )
    ran = subprocess.run([sys.executable, "-c", program, tmp_path], capture_output=True, text=True, check=True)
    assert "the library cryptography is not installed; install it: pip install 'exop[tls]'" in ran.stdout
