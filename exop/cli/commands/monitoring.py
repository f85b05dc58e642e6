"""`exop health` and `exop metrics`: for probes and monitoring systems."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from exop.cli.options import HERE, Json, Where
from exop.cli.peers import find_application, the_platform
from exop.cli.report import DONE, FAILED
from exop.cli.status_text import state_text
from exop.cli.text import answer, is_figure
from exop.cli.view import RUN, Rates, plain, tables
from exop.errors import RemotingError

#: The states of an application that is healthy.
_READY: Final = ("running", "finished")
_ESCAPED: Final = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n"})
_QUANTILES: Final = {"p50": "0.5", "p95": "0.95", "p99": "0.99"}

#: The metric families about nodes: the figure, its type, its help. Figures from samples are estimates.
_OF_NODES: Final = {
    "batches_total": ("batches", "counter", "Calls of the slet with a batch."),
    "errors_total": ("errors", "counter", "Exceptions that the slet has raised."),
    "skipped_total": ("skipped", "counter", "Items skipped because the slet raised."),
    "busy_seconds_total": ("busy_s", "counter", "Seconds of work of the slet; an estimate for single items."),
}


def health(*, live: bool = False, ready: bool = False, where: Where = HERE, json: Json = False) -> int:
    """Check whether a running platform is live or ready: exit code 0 or 1, and one line with the reason.

    The command is intended for the probes of a container. A suspended slet does not make `--live` fail: a restart would
    not help, because the slet would fail on the same item again.

    Example: `exop health --live --on traffic`

    Args:
        live: Check that the platform answers and no driver has died.
        ready: Check that all applications run as well; the default.
    """
    del ready  # the default: the option is for clarity
    try:
        with the_platform(where) as platform:
            status = platform.status()
    except RemotingError as problem:
        dead, waiting, name = [str(problem)], [], None
    else:
        dead, waiting, name = list(dead_drivers(status)), list(not_running(status)), status["platform"]
    problems = dead if live else [*dead, *waiting]
    facts = {"platform": name, "live": not dead, "ready": not dead and not waiting, "problems": problems}
    verdict = f"{'not ' if problems else ''}{'live' if live else 'ready'}"
    answer(facts, f"{verdict}: {'; '.join(problems) or name}".replace("\n", " "), json=json)
    return FAILED if problems else DONE


def metrics(app: str = "", /, *, prometheus: bool = False, where: Where = HERE, json: Json = False) -> int:
    """Print the metrics of running applications: items, errors and times of each node, and the content of channels.

    Example: `exop metrics app --prometheus`

    Args:
        app: A running application; all of the platform by default.
        prometheus: Print the text format of Prometheus (0.0.4); the how-to lists the names.
    """
    table = not (prometheus or json)
    if app:
        with find_application(app, where) as found:
            platform, name = found.platform, found.application
            figures = {name: platform.status(name) if table else platform.metrics(name, quantiles=True)}
    else:
        with the_platform(where) as platform:
            figures = platform.status()["applications"] if table else platform.metrics(quantiles=True)
    if prometheus:
        print(prometheus_text(figures), end="")
        return DONE

    def text() -> str:
        sections = [section for one in figures.values() for section in Rates().sections(one)]
        return "\n".join(f"{section.name}  {section.state}\n{plain(tables(section, RUN))}" for section in sections)

    return answer(None if table else {name: figures_of(one) for name, one in figures.items()}, text, json=json)


def dead_drivers(status: Mapping[str, Any]) -> Iterator[str]:
    """Yield the drivers of a platform that have crashed."""
    for name, one in status["applications"].items():
        yield from (f"{name}: the driver of {driver} has died: {why}" for driver, why in one["crashed"].items())


def not_running(status: Mapping[str, Any]) -> Iterator[str]:
    """Yield the applications of a platform that should run but do not, except those with a crashed driver."""
    yield from (f"{name}: not started again: {why}" for name, why in status["failed_to_restart"].items())
    for name, one in status["applications"].items():
        failed = [
            f"{node} is {facts['state']}: {facts['error']}" for node, facts in one["nodes"].items() if "error" in facts
        ]
        if failed:
            yield f"{name}: {', '.join(failed)}"
        elif one["state"] not in _READY and not one["crashed"]:
            yield f"{name}: {state_text(one)}"


def figures_of(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """Return the metrics of one application for JSON; inserted queues are listed as channels."""
    return {
        "state": metrics["state"],
        "running_s": metrics["running_s"],
        "nodes": metrics["nodes"],
        "channels": {**metrics["channels"], **metrics["inserted"]},
    }


def prometheus_text(metrics: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the metrics of applications in the text format of Prometheus, version 0.0.4.

    Args:
        metrics: The result of `Platform.metrics(quantiles=True)`.
    """
    families: dict[str, tuple[str, str, list[str]]] = {}
    for name, figures in metrics.items():
        for family, kind, words, labels, value in _samples(name, figures):
            lines = families.setdefault(f"exop_{family}", (kind, words, []))[2]
            shown = ",".join(f'{label}="{str(text).translate(_ESCAPED)}"' for label, text in labels.items())
            lines.append(f"exop_{family}{{{shown}}} {_number(value)}")
    parts = [
        line
        for family, (kind, words, lines) in families.items()
        for line in (f"# HELP {family} {words}", f"# TYPE {family} {kind}", *lines)
    ]
    return "".join(f"{line}\n" for line in parts)


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
        for key, value in _numbers(facts):
            family = f"channel_{re.sub('[^a-zA-Z0-9_]', '_', key)}"
            yield family, "gauge", "A figure of a channel, named by its kind.", there, value


def _of_node(here: dict[str, str], facts: Mapping[str, Any]) -> Iterator[_Sample]:
    inputs, letters = facts["inputs"], facts["dead_letters"]
    there = here | {"state": facts["state"], "slet": facts["slet"]}
    yield "node_state", "gauge", "1 for the state of the node.", there, 1
    outputs = [port for port in facts["ports"] if port not in inputs]
    for direction, ports in (("in", inputs), ("out", outputs)):
        for port in ports:
            there = here | {"direction": direction, "port": port}
            yield "items_total", "counter", "Items in and out of the slet.", there, facts["items"].get(port, 0)
    for family, (key, kind, words) in _OF_NODES.items():
        yield family, kind, words, here, facts[key]
    yield "dead_letters", "gauge", "Items set aside that can be tried again.", here, letters["count"]
    yield "dead_letters_dropped_total", "counter", "Dead letters beyond their bound.", here, letters["dropped"]
    for family, key, words in (
        ("service_seconds", "service_ms", "Seconds for an item; measured by samples."),
        ("latency_seconds", "latency_ms", "Seconds from the source to the node; measured by samples."),
    ):
        for name, value in facts[key].items():
            yield family, "summary", words, here | {"quantile": _QUANTILES[name]}, value / 1e3
    for name, value in _numbers(facts.get("own", {})):
        yield "own", "gauge", "A figure that the slet reports of itself.", here | {"figure": name}, value


def _numbers(facts: Mapping[str, Any]) -> Iterable[tuple[str, float]]:
    return [(key, one) for key, one in facts.items() if is_figure(one)]


def _number(value: float) -> str:
    return {"inf": "+Inf", "-inf": "-Inf", "nan": "NaN"}.get(str(value), str(value))
