"""`exop certs` and `exop policy`."""

from __future__ import annotations

import pytest

from exop.remoting.authority import read_certificate
from exop.remoting.identity import Identity
from tests.cli.shell import answer_of, facts


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """A new working directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("EXOP_AUTHORITY", raising=False)
    return tmp_path


def test_from_an_authority_to_a_revoked_certificate(folder):
    """Init, issue, show, revoke, issue again: each command names the next one."""
    assert "`exop certs issue NAME --authority certs` makes an identity" in answer_of("certs", "init")
    assert answer_of("certs", "show") == "no certificate is issued\n"
    told = answer_of("certs", "issue", "edge", "--days", 30, "--also", "10.0.0.3", "--also", "edge.example.org")
    assert told == "certs/edge: copy this folder to its host; `exop serve --name edge --identity edge` uses it\n"
    assert Identity("certs/edge").files().own.name == "edge"
    (edge,) = facts("certs", "show")
    assert (edge["name"], edge["state"]) == ("edge", "valid")
    assert f"edge  valid  {edge['since']}" in answer_of("certs", "show")
    assert facts("certs", "issue", "edge", "--renew") == {"name": "edge", "identity": "certs/edge"}
    renewed = read_certificate(folder / "certs/edge/edge.pem")
    assert (renewed.not_valid_after_utc - renewed.not_valid_before_utc).days == 30
    assert "edge.example.org" in str(renewed.extensions)
    serials = [one["serial"] for one in facts("certs", "show")]
    assert edge["serial"] in serials
    assert facts("certs", "revoke", "edge") == {
        "name": "edge",
        "revoked": serials,
        "list": "certs/revoked.pem",
    }
    assert facts("certs", "issue", "edge") == {"name": "edge", "identity": "certs/edge"}
    assert sorted(one["state"] for one in facts("certs", "show")) == ["revoked", "revoked", "valid"]
    assert "; copy certs/revoked.pem to the identities on all other hosts" in answer_of("certs", "revoke", "edge")


def test_another_folder_by_option_or_environment(folder, monkeypatch):
    """--authority and EXOP_AUTHORITY name the folder."""
    assert facts("certs", "init", "keys") == {"authority": "keys"}
    assert facts("certs", "issue", "edge", "--authority", "keys")["identity"] == "keys/edge"
    monkeypatch.setenv("EXOP_AUTHORITY", "keys")
    assert [one["name"] for one in facts("certs", "show")] == ["edge"]


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (("certs", "init"), "exop: certs: it holds an authority already; take another folder\n"),
        (("certs", "issue", "home"), "replace it with --renew, or revoke it first\n"),
        (("certs", "issue", "../home"), "../home: it cannot be the name of a platform in a certificate; take letters"),
        (("certs", "issue", "edge", "--days", "0"), "--days: Must be >= 1"),
        (("certs", "revoke", "edge"), "certs: no certificate of 'edge' is valid; names with a valid one: home\n"),
        (
            ("certs", "show", "--authority", "none"),
            "none/ca.pem: it cannot be read: No such file or directory; make an",
        ),
        (("policy", "none.toml"), "none.toml:1: it cannot be read: No such file or directory; give a TOML file"),
        (("serve", "--policy", "none.toml"), "none.toml:1: it cannot be read: No such file or directory; give a TOML"),
        (("serve", "--identity", "none"), "exop: none: no such folder; give the folder NAME"),
        (("serve", "--listen", "foo"), "exop: foo cannot be used: it is no address of a platform; write tls://HOST:"),
        (("serve", "--peer", "b=b:7700"), "exop: b:7700 cannot be used: it is no address of a platform; write t"),
    ],
)
def test_mistakes_are_told_with_the_cure(words, problem):
    """Nothing is overwritten, and no error shows a traceback."""
    answer_of("certs", "init")
    answer_of("certs", "issue", "home")
    assert problem in answer_of(*words, code=2)


def test_a_policy_is_checked_and_shown(folder):
    """Role and channels of every peer; an empty file is valid, and a mistake has its line."""
    (folder / "policy.toml").touch(0o600)
    (folder / "policy.toml").write_text('[peers.edge]\nrole = "observe"\nread = ["lr/*", "a/b"]\n[peers.home]\n')
    assert facts("policy", "policy.toml") == {
        "edge": {"role": "observe", "read": ["lr/*", "a/b"], "write": []},
        "home": {"role": None, "read": [], "write": []},
    }
    shown = [line.split("  ") for line in answer_of("policy", "policy.toml").splitlines()]
    cells = [[cell.strip() for cell in line if cell.strip()] for line in shown]
    assert cells == [
        ["peer", "role", "reads", "writes"],
        ["edge", "observe", "lr/*, a/b", "-"],
        ["home", "-", "-", "-"],
    ]
    (folder / "policy.toml").write_text("")
    assert answer_of("policy", "policy.toml") == "no peer may do anything\n"
    (folder / "policy.toml").write_text('[peers.edge]\nrole = "root"\n')
    assert answer_of("policy", "policy.toml", code=2) == (
        "exop: policy.toml:2: 'role' of the peer 'edge' is 'root'; take observe, operate, admin\n"
    )
