"""`exop top`, `exop health` and `exop metrics`: for people, probes and monitoring systems."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import closing
from typing import TYPE_CHECKING, Any, Final

from exop.cli.options import Call, Runs
from exop.cli.peers import find_application, the_platform
from exop.cli.report import DONE, FAILED, TICK, Failure, Stopping, say
from exop.cli.status_text import checkpoint_lines, state_text
from exop.cli.text import answer, print_json
from exop.cli.view import RUN, Live, Rates, Sort, page, place, plain, tables
from exop.errors import BuilderError, CallTimeout, PeerUnreachable, RemotingError, UnknownName
from exop.model.slets.spec import is_number

if TYPE_CHECKING:
    from exop.remoting.api.remote_platform import RemotePlatform

_ESCAPED: Final = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n"})


def top(app: Runs = "", /, *, sort: Sort = "mesh", every: float = 1.0, once: bool = False, call: Call = Call()) -> None:
    """Show the nodes of a platform live: rates, busy shares, latencies, queues, errors, and problems.

    Ctrl-C ends the command, and so does the end of the platform. With --json, or if stdout is no terminal, each update
    is printed (with --json, as one object per line).

    Example: `exop top linear-road --sort busy`

    Args:
        app: Show only this application.
        sort: The order of the nodes: largest first; by default the order of the mesh.
        every: Seconds between two updates; 1 by default.
        once: Print one table, with the rates over one interval, and exit.
    """
    if not 0 < every < 3600:
        raise BuilderError(f"--every {every:g} is no number of seconds between two updates; give one above 0")
    facts: dict[str, Any] = {}
    with find_application(app or None, call) as found, Stopping(patience=1) as stopping:
        found.check_whole(app)
        looks = _looks(found.platform, found.application, sort, stopping, every)
        if once:
            facts = next(looks)  # the rates are those from here on
        if sys.stdout.isatty() and not call.json and not once:
            with closing(Live(screen=True)) as screen:
                for facts in looks:
                    screen.draw(page(f"{_head(facts)}  every {every:g} s, Ctrl-C ends", facts["applications"]))
            print(plain(page(_head(facts), facts["applications"])))
        for number, facts in enumerate(looks):
            if "ended" in facts:
                break
            if call.json:
                print_json(facts, indent=None)
            else:
                text = plain(page(f"{time.strftime('%H:%M:%S')}  {_head(facts)}", facts["applications"]))
                print(f"\n{text}" if number else text, flush=True)
            if once:
                break
    if "ended" in facts:
        say(facts["ended"])


def _looks(
    platform: RemotePlatform, application: str, sort: Sort, stopping: Stopping, every: float
) -> Iterator[dict[str, Any]]:
    """Yield the metrics of a platform at intervals until the user stops, or the platform or its application ends.

    `trouble` is the reason why they are outdated; `ended`, of the last ones, is the reason for the end.
    """
    rates = Rates()
    facts: dict[str, Any] = {"platform": platform.name, "pid": platform.pid, "applications": []}
    while True:
        facts.pop("trouble", None)
        try:
            running = {application: platform.status(application)} if application else platform.status()["applications"]
            facts["pid"] = platform.pid  # it may have been started again
            facts["applications"] = [one for name in sorted(running) for one in rates.sections(running[name], sort)]
        except CallTimeout as late:
            facts["trouble"] = str(late)
        except UnknownName:
            if application:
                yield facts | {"ended": f"{application} was removed"}
                return  # else an application was removed while the platform answered
        except PeerUnreachable as problem:
            yield facts | {"ended": f"{_head(facts)} has ended: {problem}"}
            return
        yield {**facts}
        deadline = time.monotonic() + every
        while (rest := deadline - time.monotonic()) > 0:
            if stopping.count:
                return
            time.sleep(min(TICK, rest))


def _head(facts: Mapping[str, Any]) -> str:
    """Return the line above the tables: the platform, and any trouble in reaching it."""
    return f"{facts['platform']} (process {facts['pid']})" + (f"  {facts['trouble']}" if "trouble" in facts else "")


def health(*, live: bool = False, ready: bool = False, call: Call = Call()) -> int:
    """Check whether a running platform is live or ready: exit code 0 or 1, and one line with the reason.

    The command is intended for the probes of a container. A suspended slet does not make `--live` fail: a restart would
    not help, because the slet would fail on the same item again.

    Example: `exop health --live --on traffic`

    Args:
        live: Check that the platform answers and no driver has died.
        ready: Check that all applications run as well; the default.
    """
    live = live and not ready  # which includes it
    try:
        with the_platform(call) as platform:
            status = platform.status()
        dead, waiting, name = list(dead_drivers(status)), list(not_running(status)), status["platform"]
    except (RemotingError, Failure, OSError) as problem:
        dead, waiting, name = [str(problem)], [], None
    problems = dead if live else [*dead, *waiting]
    facts = {"platform": name, "live": not dead, "ready": not dead and not waiting, "problems": problems}
    verdict = f"{'not ' if problems else ''}{'live' if live else 'ready'}"
    answer(facts, lambda: f"{verdict}: {'; '.join(problems) or name}".replace("\n", " "), json=call.json)
    return FAILED if problems else DONE


def metrics(app: Runs = "", /, *, prometheus: bool = False, call: Call = Call()) -> int:
    """Print the metrics of running applications: items, errors and times of each node, and the content of channels.

    Example: `exop metrics app --prometheus`

    Args:
        app: A running application; all of the platform by default.
        prometheus: Print the text format of Prometheus (0.0.4); the how-to lists the names.
    """
    table = not (prometheus or call.json)
    with find_application(app or None, call) as found:
        found.check_whole(app)
        platform, name = found.platform, found.application
        if name:
            figures = {name: platform.status(name) if table else platform.metrics(name, quantiles=True)}
        else:
            figures = platform.status()["applications"] if table else platform.metrics(quantiles=True)
    if prometheus:
        print(prometheus_text(figures), end="")
        return DONE

    def text() -> str:
        sections = [section for one in figures.values() for section in Rates().sections(one)]
        return "\n".join(f"{place(section)}\n{plain(tables(section, RUN))}" for section in sections)

    facts = {
        name: {key: one[key] for key in ("state", "running_s", "nodes")}
        | {"channels": {**one["channels"], **one["inserted"]}}
        for name, one in figures.items()
    }
    return answer(facts, text, json=call.json)


def dead_drivers(status: Mapping[str, Any]) -> Iterator[str]:
    """Yield the drivers and changes of a platform that have crashed."""
    for name, one in status["applications"].items():
        yield from (f"{name}: {what} has crashed: {why}" for what, why in one["crashed"].items())


def not_running(status: Mapping[str, Any]) -> Iterator[str]:
    """Yield the applications of a platform that should run but do not, except those with a crashed driver."""
    yield from (f"{name}: not started again: {why}" for name, why in status["failed_to_restart"].items())
    for name, one in status["applications"].items():
        nodes = one["nodes"].items()
        if failed := [f"{node} is {facts['state']}: {facts['error']}" for node, facts in nodes if "error" in facts]:
            yield f"{name}: {', '.join(failed)}"
        elif one["state"] not in ("running", "delivering", "finished") and not one["crashed"]:
            yield f"{name}: {state_text(one)}" + (f": {one['problem']}" if "problem" in one else "")
        channels = [part.get("channels", {}) for part in (one, *one.get("hosts", {}).values())]
        lost = {at: facts["trouble"] for part in channels for at, facts in part.items() if facts.get("trouble")}
        yield from (f"{name}.{at}: {why}" for at, why in lost.items())
        yield from checkpoint_lines(one, failures=2)  # one may fail because a source is slow


def prometheus_text(metrics: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the result of `Platform.metrics(quantiles=True)` in the text format of Prometheus, version 0.0.4."""
    families: dict[str, list[str]] = {}
    for name, figures in metrics.items():
        for family, kind, words, labels, value in _samples(name, figures):
            head = [f"# HELP exop_{family} {words}", f"# TYPE exop_{family} {kind}"]
            shown = ",".join(f'{label}="{str(text).translate(_ESCAPED)}"' for label, text in labels.items())
            number = {"inf": "+Inf", "-inf": "-Inf", "nan": "NaN"}.get(str(value), str(value))
            families.setdefault(family, head).append(f"exop_{family}{{{shown}}} {number}")
    return "".join(f"{line}\n" for lines in families.values() for line in lines)


#: The family, its type and help, the labels and the value.
_Sample = tuple[str, str, str, dict[str, str], float]


def _samples(name: str, status: Mapping[str, Any]) -> Iterator[_Sample]:
    here = {"application": name}
    yield "application_state", "gauge", "1 for the state of the application.", here | {"state": status["state"]}, 1
    yield "application_seconds", "gauge", "Seconds since the application was started.", here, status["running_s"]
    yield "application_revision", "gauge", "The revision of the mesh that runs.", here, status["revision"]
    for node, facts in status["nodes"].items():
        yield from _of_node(here | {"node": node}, facts)
    for channel, facts in (*status["channels"].items(), *status["inserted"].items()):
        there = here | {"channel": channel, "kind": facts["kind"]}
        for key, value in facts.items():
            if is_number(value):
                family = f"channel_{re.sub('[^a-zA-Z0-9_]', '_', key)}"
                yield family, "gauge", "A figure of a channel, named by its kind.", there, value


def _of_node(here: dict[str, str], facts: Mapping[str, Any]) -> Iterator[_Sample]:
    inputs, letters = facts["inputs"], facts["dead_letters"]
    there = here | {"state": facts["state"], "slet": facts["slet"]}
    yield "node_state", "gauge", "1 for the state of the node.", there, 1
    for port in dict.fromkeys((*inputs, *facts["ports"])):
        there = here | {"direction": "in" if port in inputs else "out", "port": port}
        yield "items_total", "counter", "Items in and out of the slet.", there, facts["items"].get(port, 0)
    busy = "Seconds of work of the slet; an estimate for single items."
    yield "batches_total", "counter", "Calls of the slet with a batch.", here, facts["batches"]
    yield "errors_total", "counter", "Exceptions that the slet has raised.", here, facts["errors"]
    yield "skipped_total", "counter", "Items skipped because the slet raised.", here, facts["skipped"]
    yield "busy_seconds_total", "counter", busy, here, facts["busy_s"]
    yield "dead_letters", "gauge", "Items set aside that can be tried again.", here, letters["count"]
    yield "dead_letters_dropped_total", "counter", "Dead letters beyond their bound.", here, letters["dropped"]
    for kind, what in (("service", "for an item"), ("latency", "from the source to the node")):
        words = f"Seconds {what}; measured by samples."
        for name, value in facts[f"{kind}_ms"].items():
            yield f"{kind}_seconds", "summary", words, here | {"quantile": f"{int(name[1:]) / 100:g}"}, value / 1e3
    for name, value in facts.get("own", {}).items():
        if is_number(value):
            yield "own", "gauge", "A figure that the slet reports of itself.", here | {"figure": name}, value
