"""Faults of a real network: three platforms as processes in network namespaces, with TLS, as users start them.

Needs root and takes minutes, so only `make test-all` runs it. Its twins in one process: `test_network_faults` and
`test_lost_members`.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.cli.shell import answer_of, eventually, facts

WANTED = os.environ.get("EXOP_NAMESPACES") and os.geteuid() == 0 and shutil.which("ip")
pytestmark = pytest.mark.skipif(not WANTED, reason="needs root, iproute2 and EXOP_NAMESPACES=1; see make test-all")
PREFIX = f"exop{os.getpid()}"
SWITCH = f"{PREFIX}switch"
NUMBERS = {"a": 1, "b": 2, "c": 3}
TOPOLOGY = """
[application]
name = "numbers"

[nodes.numbers]
slet = "stock:count_up"
ports = {{out = "numbers"}}

[nodes.passed]
slet = "stock:pass_on"
host = "b"
ports = {{item = "numbers", out = "passed"}}

[nodes.sink]
slet = "stock:write_lines"
settings = {{path = "{path}"}}
host = "c"
ports = {{item = "passed"}}

[channels.numbers]
[channels.passed]
connector = {{mode = "{mode}"}}
"""
#: Delays every byte between a platform and the one at the given address; prints the port at which it listens.
DELAY = """
import sys
from tests.hosts.faulty_network import Cable
cable = Cable(f"tcp://b@{sys.argv[1]}:7700")
cable.delay = float(sys.argv[2])
print(cable.uri.rpartition(":")[2], flush=True)
sys.stdin.read()
"""


def ip(*arguments: str) -> None:
    """Run one command of iproute2."""
    subprocess.run(["ip", *arguments], check=True, capture_output=True, timeout=60)


def space(name: str) -> str:
    """The namespace of a host."""
    return f"{PREFIX}{name}"


def address(name: str) -> str:
    """The address of a host."""
    return f"10.77.0.{NUMBERS[name]}"


@pytest.fixture(scope="module", autouse=True)
def network() -> Iterator[None]:
    """Three hosts at one switch, each in a namespace of its own."""
    with ExitStack() as stack:

        def made(name: str) -> None:
            ip("netns", "add", name)
            stack.callback(ip, "netns", "del", name)

        made(SWITCH)
        ip("-n", SWITCH, "link", "add", "br0", "type", "bridge")
        ip("-n", SWITCH, "link", "set", "br0", "up")
        for name in NUMBERS:
            made(space(name))
            ip(
                "link",
                "add",
                "eth0",
                "netns",
                space(name),
                "type",
                "veth",
                "peer",
                "name",
                f"to-{name}",
                "netns",
                SWITCH,
            )
            ip("-n", SWITCH, "link", "set", f"to-{name}", "master", "br0", "up")
            ip("-n", space(name), "addr", "add", f"{address(name)}/24", "dev", "eth0")
            for device in ("eth0", "lo"):
                ip("-n", space(name), "link", "set", device, "up")
        yield


class Hosts:
    """The processes of the platforms, and the file that the application writes on c."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.folder = folder
        self.out = folder / "out.txt"
        self._stack = stack
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        answer_of("certs", "init", folder / "certs")
        for name in NUMBERS:
            answer_of("certs", "issue", name, "--authority", folder / "certs")
            others = "".join(
                f'[peers.{other}]\nrole = "admin"\nread = ["*/*"]\nwrite = ["*/*"]\n'
                for other in NUMBERS
                if other != name
            )
            (folder / f"{name}.toml").write_text(others)
            (folder / f"{name}.toml").chmod(0o600)

    def delay(self, name: str, peer: str, seconds: float) -> str:
        """Return an address at which a platform reaches a peer by a cable on which every byte takes *seconds*."""
        command = ["ip", "netns", "exec", space(name), sys.executable, "-c", DELAY, address(peer), str(seconds)]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self._stack.enter_context(process)
        self._stack.callback(process.kill)
        assert process.stdout is not None
        return f"127.0.0.1:{int(process.stdout.readline())}"

    def start(self, name: str, *peers: str, **by: str) -> None:
        """Start a platform, which dials *peers*; some of them *by* other addresses."""
        given: list[object] = ["--name", name, "--state", self.state(name), "--listen", f"tls://{address(name)}:7700"]
        given += ["--identity", self.folder / "certs" / name, "--policy", self.folder / f"{name}.toml"]
        for peer in peers:
            given += ["--peer", f"{peer}=tls://{by.get(peer, f'{address(peer)}:7700')}"]
        command = ["ip", "netns", "exec", space(name), sys.executable, "-m", "exop", "serve", *map(str, given)]
        with (self.folder / f"{name}.log").open("a") as log:
            process = self.processes[name] = subprocess.Popen(command, stdout=log, stderr=log)
        self._stack.callback(process.wait, 60)
        self._stack.callback(process.kill)

    def state(self, name: str) -> Path:
        """The state directory of a platform."""
        return self.folder / f"state-{name}"

    def connected(self, name: str) -> set[str]:
        """The peers that a platform reaches."""
        try:
            found = facts("peers", "--on", self.state(name))
        except (AssertionError, ValueError):  # it does not answer yet
            return set()
        return {one["peer"] for one in found if one["state"] == "connected"}

    def lines(self) -> int:
        """The number of lines that c has written."""
        return self.out.read_bytes().count(b"\n") if self.out.exists() else 0

    def goes_on(self) -> None:
        """Items reach c."""
        seen = self.lines()
        eventually(lambda: self.lines() > seen + 1000, 120)

    def begin(self, mode: str = "async", delay: float = 0.0) -> None:
        """Link three platforms, and start an application that counts on a, and writes on c what passes through b."""
        self.start("a")
        self.start("b", "a")
        self.start("c", "a", "b", **({"b": self.delay("c", "b", delay)} if delay else {}))
        for name in NUMBERS:
            eventually(lambda name=name: self.connected(name) == set(NUMBERS) - {name}, 120)
        (self.folder / "numbers.toml").write_text(TOPOLOGY.format(path=self.out, mode=mode))
        answer_of("apply", self.folder / "numbers.toml", "--on", self.state("a"))
        self.goes_on()

    def outbox(self, host: str, name: str) -> dict[str, Any]:
        """The figures of an outbox, as the home sees it."""
        found = facts("describe", "numbers", "--on", self.state("a"))["hosts"][host]
        return found.get("channels", {}).get(name, {})

    def memory(self, name: str) -> float:
        """The memory of a platform, in MiB."""
        (line,) = (
            line
            for line in Path(f"/proc/{self.processes[name].pid}/status").read_text().splitlines()
            if line.startswith("VmRSS")
        )
        return int(line.split()[1]) / 1024


@pytest.fixture
def platforms(tmp_path: Path) -> Iterator[Hosts]:
    """Platforms that are not started yet."""
    with ExitStack() as stack:
        yield Hosts(tmp_path, stack)


@pytest.fixture
def hosts(platforms: Hosts) -> Hosts:
    """Three linked platforms with an application."""
    platforms.begin()
    return platforms


class Fault(NamedTuple):
    """How a fault begins and ends (commands of `ip`), and which pairs it separates."""

    begins: list[list[str]]
    ends: list[list[str]]
    lost: list[str]


def blackhole(what: str, *directions: str) -> list[list[str]]:
    """Add or remove routes that drop what one host sends to another."""
    return [["-n", space(one[0]), "route", what, "blackhole", f"{address(one[1])}/32"] for one in directions]


def unplugged(*how: str) -> list[list[str]]:
    """Unplug c at the switch, or plug it in again: no host learns of it."""
    return [["-n", SWITCH, "link", "set", "to-c", *how]]


FAULTS: dict[str, Fault] = {
    "a partition of one pair": Fault(blackhole("add", "bc", "cb"), blackhole("del", "bc", "cb"), ["bc"]),
    "a loss of what b sends": Fault(blackhole("add", "bc"), blackhole("del", "bc"), ["bc"]),
    "a loss of what c sends": Fault(blackhole("add", "cb"), blackhole("del", "cb"), ["bc"]),
    "half-open connections of an unplugged host": Fault(
        unplugged("nomaster"), unplugged("master", "br0"), ["bc", "ac"]
    ),
}


def all_arrive(hosts: Hosts) -> None:
    """All platforms reach each other again, and c has written every number once, in order."""
    hosts.goes_on()
    for host in NUMBERS:
        eventually(lambda host=host: hosts.connected(host) == set(NUMBERS) - {host}, 120)
    answer_of("remove", "numbers", "--on", hosts.state("a"))
    assert [int(line) for line in hosts.out.read_text().split()] == list(range(hosts.lines()))


@pytest.mark.parametrize("name", FAULTS)
def test_platforms_lose_each_other(hosts: Hosts, name: str) -> None:
    """Both sides notice it, other pairs remain, and all items arrive in order when the network is healed."""
    fault = FAULTS[name]
    for command in fault.begins:
        ip(*command)
    try:
        for one, other in fault.lost:
            eventually(lambda one=one, other=other: other not in hosts.connected(one), 60)
            eventually(lambda one=one, other=other: one not in hosts.connected(other), 60)
        assert "b" in hosts.connected("a")
        assert ("c" in hosts.connected("a")) == ("ac" not in fault.lost)
    finally:
        for command in fault.ends:
            ip(*command)
    all_arrive(hosts)


def test_a_process_stands_still(hosts: Hosts) -> None:
    """A stopped process keeps its connections; the others notice it all the same, and go on when it continues."""
    hosts.processes["c"].send_signal(signal.SIGSTOP)
    try:
        for name in "ab":
            eventually(lambda name=name: "c" not in hosts.connected(name), 60)
        assert "b" in hosts.connected("a")
    finally:
        hosts.processes["c"].send_signal(signal.SIGCONT)
    all_arrive(hosts)


def test_every_byte_takes_200_ms(platforms: Hosts) -> None:
    """The stream goes on over such a network, in order; the link stays."""
    platforms.begin(delay=0.2)
    all_arrive(platforms)


def test_a_reader_is_slow(hosts: Hosts) -> None:
    """The connectors fill up to their capacity, the source waits, and no memory grows; then all items arrive."""
    before = {name: hosts.memory(name) for name in "ab"}
    for _ in range(3):
        hosts.processes["c"].send_signal(signal.SIGSTOP)
        try:
            for host, name in (("b", "passed.to.c"), ("a", "numbers.to.b")):
                eventually(lambda host=host, name=name: hosts.outbox(host, name).get("depth", 0) >= 1024, 120)
                assert hosts.outbox(host, name)["depth"] <= 1024 + 8
        finally:
            hosts.processes["c"].send_signal(signal.SIGCONT)
        hosts.goes_on()
    for name, much in before.items():
        assert hosts.memory(name) < much + 20
    all_arrive(hosts)


def test_a_host_returns_with_empty_state(hosts: Hosts) -> None:
    """The home says so, and nothing is put in the place of the state; when the loss is accepted, the stream goes on."""
    hosts.processes["c"].kill()
    hosts.processes["c"].wait(60)
    shutil.rmtree(hosts.state("c"))
    hosts.start("c", "a", "b")
    eventually(lambda: hosts.connected("a") == {"b", "c"}, 120)
    found = facts("describe", "numbers", "--on", hosts.state("a"))["hosts"]["c"]
    assert found["state"] == "fragment lost"
    assert "exop accept numbers" in found["problem"]
    answer_of("accept", "numbers", "--on", hosts.state("a"))
    hosts.goes_on()
    answer_of("remove", "numbers", "--on", hosts.state("a"))
    numbers = [int(line) for line in hosts.out.read_text().split()]
    assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
    assert numbers[0] > 0


def test_the_disk_is_full_while_items_are_spilled(platforms: Hosts) -> None:
    """The problem is shown and the source waits, with bounded memory; all items arrive when the peer is back."""
    platforms.state("b").mkdir(mode=0o700)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=12m,mode=0700", "exop", platforms.state("b")], check=True)
    try:
        platforms.begin(mode="offline")
        for command in unplugged("nomaster"):
            ip(*command)
        try:
            eventually(lambda: "No space left" in platforms.outbox("b", "passed.to.c").get("trouble", ""), 240)
            before = platforms.memory("b")
            eventually(lambda: platforms.outbox("a", "numbers.to.b").get("depth", 0) >= 1024, 120)
            assert platforms.memory("b") < before + 20
        finally:
            for command in unplugged("master", "br0"):
                ip(*command)
        all_arrive(platforms)
    finally:
        for process in platforms.processes.values():
            process.kill()
            process.wait(60)
        subprocess.run(["umount", platforms.state("b")], check=True)
