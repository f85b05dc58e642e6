"""Two platforms in two processes, linked by TLS, with one application: as a user starts and watches them."""

import itertools
import os
import socket
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import pytest

from exop import connect
from exop.cli.commands.serving import Reach
from exop.errors import BuilderError
from tests.cli.shell import answer_of, eventually, facts, running

pytestmark = pytest.mark.edges

SPREAD = """
[application]
name = "numbers"

[nodes.numbers]
slet = "stock:count_up"
settings = {to = 5}
ports = {out = "numbers"}

[nodes.passed]
slet = "stock:pass_on"
host = "b"
ports = {item = "numbers", out = "passed"}

[nodes.sink]
slet = "stock:write_lines"
settings = {path = "out.txt"}
ports = {item = "passed"}

[channels.numbers]
[channels.passed]
"""


class Pair(NamedTuple):
    """The process ids of two linked platforms, of which `a` has dialled."""

    a: int
    b: int


def free_port() -> int:
    """A port that no process uses, and that the system gives to no connection: it is still free when it is used."""
    for port in itertools.count(20_000 + os.getpid() % 10_000):
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port
    raise AssertionError("no port is free")


def peers(pid: int) -> list[dict]:
    """The connected peers of a platform; empty if it does not answer yet."""
    try:
        return [one for one in facts("peers", "--on", pid) if one["state"] == "connected"]
    except (AssertionError, ValueError):
        return []


@pytest.fixture
def pair(tmp_path, monkeypatch) -> Iterator[Pair]:
    """Two platforms with certificates of one authority, and everything permitted."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    answer_of("certs", "init", "certs")
    common = {}
    for name, other in (("a", "b"), ("b", "a")):
        answer_of("certs", "issue", name, "--authority", "certs")
        policy = tmp_path / f"{name}.toml"
        policy.write_text(f'[peers.{other}]\nrole = "admin"\nread = ["*/*"]\nwrite = ["*/*"]\n')
        policy.chmod(0o600)
        common[name] = ("serve", "--name", name, "--identity", f"certs/{name}", "--policy", policy)
    uri = f"tls://127.0.0.1:{free_port()}"
    with running(*common["b"], "--listen", uri) as b, running(*common["a"], "--peer", f"b={uri}") as a:
        eventually(lambda: peers(a.pid) and peers(b.pid))
        yield Pair(a.pid, b.pid)


def test_an_application_spans_two_processes(pair, tmp_path):
    """One command deploys it at the home; its items cross to the other process and back."""
    (tmp_path / "spread.toml").write_text(SPREAD)
    answer_of("apply", "spread.toml", "--on", pair.a)
    with connect(str(pair.a)) as home:
        assert home.wait("numbers", 60)
        connectors = home.peers()[0]["connectors"]
    assert Path("out.txt").read_text().split() == ["0", "1", "2", "3", "4"]
    assert [(one["connector"], one["direction"], one["lag"]) for one in connectors] == [
        ("numbers/numbers/a>b", "out", 0),
        ("numbers/passed/b>a", "in", 0),
    ]


def test_the_plan_of_a_drain(pair):
    """`exop plan drain HOST` is `exop drain HOST --dry-run`: it shows what would move, and moves nothing."""
    Path("spread.toml").write_text(SPREAD.replace("settings = {to = 5}", ""))
    answer_of("apply", "spread.toml", "--on", pair.a)
    text = answer_of("plan", "drain", "b", "--on", pair.a)
    assert "passed leaves for a" in text
    assert text.endswith("numbers: passed would move to a\n")
    assert "no platform is called 'elsewhere' there" in answer_of("plan", "drain", "elsewhere", "--on", pair.a, code=2)
    assert answer_of("describe", "numbers.passed", "--on", pair.a).startswith("numbers.passed  active  on b  ")
    assert "passed" in facts("describe", "numbers")["hosts"]["b"]["nodes"], "the home is found"
    assert "HOST" in answer_of("plan", "drain", "--on", pair.a, code=2)
    assert "--on a" in answer_of("describe", "numbers.sink", "--on", pair.b, code=2)
    text = answer_of("plan", "move", "numbers.sink", "b", "numbers.numbers", "--on", pair.a)
    assert "move numbers: home → b" in text
    assert "would move; give the command to the home, --on a\n" in answer_of("drain", "b", "--on", pair.b, code=2)
    said = answer_of("drain", "b", "--to", "a", "--on", pair.b, code=1)
    assert said.startswith("exop: numbers spans several hosts")
    assert said.endswith("give the command to the home, --on a\n")
    assert "start 'a' again without --peer b=" in answer_of("disconnect", "b", "--on", pair.a, code=2)


def test_to_wait_for_what_a_node_elsewhere_holds_up(pair):
    """`end --wait` names the suspended node, on whatever host it runs."""
    Path("spread.toml").write_text(SPREAD.replace("settings = {to = 5}", ""))
    answer_of("apply", "spread.toml", "--on", pair.a)
    answer_of("suspend", "numbers.passed", "--on", pair.a)
    with running("end", "numbers", "--wait", "--on", pair.a) as process:
        assert process.stderr is not None
        assert process.stderr.readline().startswith("numbers.passed is suspended, and keeps the run from ending")
        answer_of("resume", "numbers.passed", "--on", pair.a)
        assert process.wait(120) == 0


def test_a_folder_of_the_name_of_a_platform(pair, tmp_path, monkeypatch):
    """The name is that of the platform: the folder, such as that of its identity, is no state directory."""
    monkeypatch.chdir(tmp_path / "certs")
    assert Path("a").is_dir()
    assert facts("peers", "--on", "a")[0]["peer"] == "b"


@pytest.mark.parametrize("given", ["tls://b:7700", "b=", "=tls://b:7700"])
def test_a_peer_without_name_or_address_is_refused(given):
    """The error shows how `--peer` is written."""
    with pytest.raises(BuilderError, match="--peer NAME=URI"):
        Reach(peer=(given,)).as_data()
