"""`exop-spark cluster`: starts, shows, enlarges and ends a Spark cluster on this machine."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from types import FrameType
from typing import Annotated, Any, Final, TypeAlias

from cyclopts import App, CycloptsError, Parameter
from cyclopts.validators import Number

from exop.cli.options import Json
from exop.cli.report import INTERRUPTED, MISTAKE, report_error, say
from exop.cli.text import answer
from exop.errors import counted

from .standalone import DEFAULT_NAME, Cluster, Status, Worker

Name: TypeAlias = Annotated[str, Parameter(help="One of several clusters of this user.")]
_SOME: Final = Number(gte=1, lte=64)
#: The exit code after SIGTERM, as shells expect.
_TERMINATED: Final = 143


class _Terminated(KeyboardInterrupt):
    """SIGTERM has arrived: the command ends as after Ctrl-C, and ends the processes that it has started."""


def up(
    *,
    workers: Annotated[int, Parameter(validator=_SOME)] = 2,
    cores: Annotated[int | None, Parameter(validator=_SOME)] = None,
    memory: str = "2g",
    connect: bool = False,
    port: Annotated[int, Parameter(validator=Number(gte=0, lte=65535))] = 0,
    name: Name = DEFAULT_NAME,
    json: Json = False,
) -> int:
    """Start a master and workers, and print the URL for the setting `master`.

    Processes that run already remain: a second `up` only adds the missing ones. All processes listen on the loopback
    only, and serve this user only.

    Example: `exop-spark cluster up --workers 2`

    Args:
        workers: The number of workers: 2 by default.
        cores: The number of tasks that a worker runs at once: the machine's cores, shared by the workers, by default.
        memory: The memory that a worker gives to executors: 2g by default.
        connect: Start a Spark Connect server as well, and print its URL.
        port: The port of the master, if it is free; by default any free one.
    """
    offer = Worker(cores or max(1, (os.cpu_count() or 1) // workers), memory)
    return _answer(Cluster(name).up(workers, offer, connect=connect, port=port), json=json)


def status(*, name: Name = DEFAULT_NAME, json: Json = False) -> int:
    """Show the cluster; the exit code is 1 if it does not run."""
    found = Cluster(name).status()
    _answer(found, json=json)
    return 0 if found.master else 1


def add_worker(*, name: Name = DEFAULT_NAME, json: Json = False) -> int:
    """Start another worker like the others."""
    return _answer(Cluster(name).add_worker(), json=json)


def down(*, name: Name = DEFAULT_NAME, json: Json = False) -> int:
    """End all processes of the cluster."""
    before = Cluster(name).down()
    ended = [one.role for one in before.processes]
    text = f"ended: {', '.join(ended)}" if ended else f"no cluster {name!r} was running"
    return answer({"ended": ended}, text, json=json)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code: 0 (success), 1 (failure), 2 (mistake), 130 (Ctrl-C), 143 (SIGTERM)."""
    before = signal.signal(signal.SIGTERM, _terminate)
    try:
        result = _app()(list(sys.argv[1:] if arguments is None else arguments))
    except CycloptsError as problem:
        say(f"exop-spark: {' '.join(str(problem).split())}; see `exop-spark cluster --help`")
        return MISTAKE
    except KeyboardInterrupt as stopped:
        say("exop-spark: stopped")
        return _TERMINATED if isinstance(stopped, _Terminated) else INTERRUPTED
    except Exception as error:  # noqa: BLE001 - reported to the user
        return report_error(error)
    finally:
        signal.signal(signal.SIGTERM, before)
    return result if isinstance(result, int) else 0


def _terminate(number: int, frame: FrameType | None) -> None:
    raise _Terminated


def _app() -> App:
    common: dict[str, Any] = {"default_parameter": Parameter(negative=()), "result_action": "return_value"}
    cluster = App(name="cluster", help="A Spark cluster on this machine: a standalone master and workers.", **common)
    for function in (up, status, add_worker, down):
        cluster.command(function, name=function.__name__.replace("_", "-"))
    app = App(
        name="exop-spark",
        help="Spark for ExoP.",
        exit_on_error=False,
        print_error=False,
        suppress_keyboard_interrupt=False,
        **common,
    )
    app.command(cluster)
    return app


def _answer(found: Status, *, json: bool) -> int:
    return answer(found.facts(), lambda: _text(found), json=json)


def _text(found: Status) -> str:
    if not found.master:
        lost = f" (no longer running: {', '.join(found.lost)})" if found.lost else ""
        return f"no cluster {found.name!r} is running{lost}; start it: exop-spark cluster up --name {found.name}"
    lines = [f"master   {found.master}"]
    if found.connect:
        lines.append(f"connect  {found.connect}")
    lines.append(f"workers  {found.workers}, with {counted(found.cores, 'core')}, {found.cores_used} in use")
    lines += [f"lost     {role}" for role in found.lost]
    return "\n".join([*lines, f"logs     {found.directory}"])
