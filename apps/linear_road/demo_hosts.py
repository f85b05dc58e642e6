"""`make demo-hosts`: Linear Road on two platforms, whose slets move while it runs, with a network that breaks.

    python -m apps.linear_road.demo_hosts [--minutes M] [--speed N] [--seed S] [--into FOLDER]

Makes an authority and two identities, starts the platforms `city` and `road` as processes that are linked by TLS
through a network that can be cut, runs the application at `city`, moves slets to `road` and back while it runs, cuts
the network for some seconds meanwhile, has the validator judge every answer, and draws the response times and the mesh.
"""

from __future__ import annotations

import argparse
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from apps.linear_road.answers import LIMITS
from apps.linear_road.generate import generate
from apps.linear_road.live_changes import APPLICATION, LiveChange, Operator
from apps.linear_road.network import HOST, Network
from apps.linear_road.pace import Pace
from apps.linear_road.terminal import Progress, run_command
from apps.linear_road.traffic_model.settings import Settings
from apps.linear_road.validate import parser as validate_parser
from apps.linear_road.validate import validate
from exop import connect
from exop.errors import ExopError

HERE: Final = Path(__file__).parent
HOME, AWAY = "city", "road"
#: Seconds for which the network is cut: longer than a lost peer takes to be noticed.
OUTAGE: Final = 12.0
#: The share of the simulated time after which the network is cut.
CUT: Final = 0.45
#: Seconds in which a platform has to answer, or a link to be made.
PATIENCE: Final = 60.0
#: The slets that move, in the order of the commands.
PIPELINE: Final = ("statistics", "accidents", "tolls")


@dataclass
class Outage(LiveChange):
    """The cable between the hosts is pulled, and plugged in again.

    Attributes:
        network: What is cut.
    """

    network: Network | None = None

    @property
    def line(self) -> str:
        """The event, in words."""
        return f"(the network between {HOME} and {AWAY} is cut for {OUTAGE:g} s)"

    def carry_out(self, process: int) -> None:
        """Cut the network, look at the peers, and heal it."""
        assert self.network is not None
        self.network.cut()
        try:
            threading.Event().wait(OUTAGE)
            super().carry_out(process)
        finally:
            self.network.heal()


def changes(network: Network) -> list[LiveChange]:
    """Move the data pipeline to the other host, a slet back home, and cut the network in between."""
    first, *others = PIPELINE
    return [
        LiveChange(0.1, "the data pipeline moves to the other host", ("move", f"{APPLICATION}.{first}", AWAY, *others)),
        LiveChange(0.3, "and the slet in front of it", ("move", f"{APPLICATION}.positions", AWAY)),
        Outage(CUT, "a lost peer costs time and no data", ("peers",), network=network),
        LiveChange(0.8, "one slet comes back while it runs", ("move", f"{APPLICATION}.tolls", HOME)),
    ]


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = argparse.ArgumentParser(
        prog="python -m apps.linear_road.demo_hosts", description=(__doc__ or "").split("\n")[0]
    )
    made.add_argument("--minutes", type=int, default=12, help="minutes of traffic on one road (12)")
    made.add_argument("--speed", type=float, default=15.0, help="how many times faster than real time (15)")
    made.add_argument("--seed", type=int, default=1, help="another seed is other traffic (1)")
    made.add_argument("--into", type=Path, default=Path("demo"), help="the folder for all files (demo)")
    return made


def command(arguments: Sequence[str]) -> int:
    """Run the demo; 0 when every answer is right and every change was made, or the machine had no core to spare."""
    options = parser().parse_args(arguments)
    begun = time.monotonic()
    into = (options.into / "hosts").absolute()
    into.mkdir(parents=True, exist_ok=True)
    traffic, history, output = (into / name for name in ("traffic.csv", "history.csv", "answers.csv"))
    _say(f"1  {options.minutes} minutes of traffic on one road, seed {options.seed}")
    with Progress() as progress:
        facts = generate(Settings(xways=1, minutes=options.minutes, seed=options.seed), traffic, history, progress)
    print(f"   {facts['rows']:,} tuples, {len(facts['accidents'])} accidents, {facts['vehicles']:,} vehicles")
    _say(f"2  two platforms, {HOME} and {AWAY}, with certificates of one authority")
    with platforms(into) as (process, network):
        _say(f"3  Linear Road at {HOME}, {options.speed:g} times real time; its slets move meanwhile")
        pace = Pace(options.speed)
        operator = Operator(process, options.minutes * 60, pace, changes(network))
        arguments = [f"input={traffic}", f"history={history}", f"output={output}", "pipeline=native"]
        _exop("apply", str(HERE), *arguments, f"speed={options.speed:g}", "--on", str(process))
        operator.start()
        with connect(str(process)) as platform:
            platform.wait(APPLICATION)
        operator.leave()
        print(operator.report())
        (into / "mesh.svg").write_text(_exop("mesh", APPLICATION, "--format", "svg", "--on", str(process)))
    _say("4  every answer against the validator's slow and simple reference")
    verdict = validate(
        traffic, history, output, validate_parser().parse_args([str(traffic), str(history), str(output)])
    )
    print(verdict.text())
    _say("5  pictures")
    _draw(into, output)
    right = verdict.right and operator.right
    others = late_answers(output, options.minutes * 60, pace) if right and verdict.late else 0
    told = f": every answer is right, {verdict.late - others:,} are late because of the cut" if right else ""
    told += f", and {others:,} for another reason" if others else ""
    told += operator.missed if right else ""
    passed = right and (not (others or operator.missed) or pace.saturated)
    print(f"\n{'PASSED' if passed else 'FAILED'}{told}; after {time.monotonic() - begun:.0f} s")
    return 0 if passed else 1


def late_answers(output: Path, seconds: int, pace: Pace) -> int:
    """The late answers to questions that were asked before the network was cut, or long after it was healed."""
    from apps.linear_road.pictures import read_response_times

    cut = CUT * seconds
    healed = cut + 3 * OUTAGE * pace.asked
    found = read_response_times(output).items()
    return sum(
        int(((points[:, 1] > LIMITS[kind]) & ((points[:, 0] < cut - 1) | (points[:, 0] > healed))).sum())
        for kind, points in found
    )


@contextmanager
def platforms(into: Path) -> Iterator[tuple[int, Network]]:
    """Two linked platforms; yields the process id of the home, and the network between the two."""
    authority = into / "certs"
    if not authority.exists():
        _exop("certs", "init", str(authority))
    for name in (HOME, AWAY):
        if not (authority / name).exists():
            _exop("certs", "issue", name, "--authority", str(authority))
    port = _free_port()
    with ExitStack() as stack:
        network = stack.enter_context(Network(port))
        stack.enter_context(_serve(into, AWAY, HOME, f"--listen=tls://{HOST}:{port}"))
        process = stack.enter_context(_serve(into, HOME, AWAY, f"--peer={AWAY}=tls://{HOST}:{network.port}"))
        print(f"   {HOME} dials {AWAY} at tls://{HOST}:{network.port}, a proxy in between")
        _wait_for_link(process)
        yield process, network


@contextmanager
def _serve(into: Path, name: str, peer: str, *arguments: str) -> Iterator[int]:
    """A platform in a process of its own, which permits everything to its peer; yields its process id."""
    policy = into / f"{name}.policy.toml"
    policy.write_text(f'[peers.{peer}]\nrole = "admin"\nread = ["*/*"]\nwrite = ["*/*"]\n')
    policy.chmod(0o600)
    command = [sys.executable, "-m", "exop", "serve", "--name", name, "--load", str(HERE)]
    command += ["--identity", str(into / "certs" / name), "--policy", str(policy), *arguments]
    with (into / f"{name}.log").open("w") as log:
        process = subprocess.Popen(command, stderr=log, stdout=log)
    try:
        yield process.pid
    finally:
        process.terminate()
        process.wait(PATIENCE)


def _wait_for_link(process: int) -> None:
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            with connect(str(process)) as platform:
                if any(one["state"] == "connected" for one in platform.peers()):
                    return
        except ExopError:
            if time.monotonic() > deadline:
                raise
        if time.monotonic() > deadline:
            raise SystemExit(f"the platforms were not linked within {PATIENCE:g} s; see the logs")
        threading.Event().wait(0.2)


def _exop(*arguments: str) -> str:
    """Run a command, which has to succeed; return its output."""
    command = [sys.executable, "-m", "exop", *arguments]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def _free_port() -> int:
    with socket.create_server((HOST, 0)) as sock:
        port: int = sock.getsockname()[1]
        return port


def _draw(into: Path, output: Path) -> None:
    # matplotlib takes a second to load: only those who draw wait for it.
    from apps.linear_road.pictures import draw_response_times

    for picture in (draw_response_times(output, into / "response-times.png"), into / "mesh.svg"):
        print(f"   {picture}")


def _say(text: str) -> None:
    print(f"\n{text}", flush=True)


if __name__ == "__main__":
    run_command("demo-hosts", command, sys.argv[1:])
