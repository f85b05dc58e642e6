"""`exop health` and `exop metrics`: what probes and monitoring systems are told."""

from __future__ import annotations

import json
import re
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from exop import Application, Platform
from exop.cli import main, peers
from exop.cli.commands.monitoring import dead_drivers, not_running, prometheus_text
from exop.errors import PeerUnreachable
from exop.stock.slets import count_up
from tests.cli.shell import answer_of, facts

#: One sample of the text format, strictly: a name, labels whose values are escaped, a number.
SAMPLE = re.compile(
    r'(?P<name>[a-zA-Z_:][a-zA-Z0-9_:]*)\{(?P<labels>(?:[a-zA-Z_]\w*="(?:[^"\\\n]|\\["\\n])*",?)*)\} '
    r"(?P<value>[+-]?Inf|NaN|-?\d+(?:\.\d+)?(?:e[+-]?\d+)?)"
)
LABEL = re.compile(r'([a-zA-Z_]\w*)="((?:[^"\\\n]|\\["\\n])*)"')
UNESCAPED = {"\\\\": "\\", '\\"': '"', "\\n": "\n"}
KINDS = ("counter", "gauge", "summary")


def parsed(text: str) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """The samples of a page in the text format; each family is announced once and stands together."""
    found: dict[tuple[str, frozenset[tuple[str, str]]], float] = {}
    announced: list[str] = []
    assert text.endswith("\n")
    lines = iter(text.removesuffix("\n").split("\n"))
    for line in lines:
        if line.startswith("# HELP "):
            family = line.split(" ", 3)[2]
            assert family not in announced
            announced.append(family)
            *kept, kind = next(lines).split(" ")
            assert kept == ["#", "TYPE", family]
            assert kind in KINDS
            continue
        match = SAMPLE.fullmatch(line)
        assert match, line
        assert match["name"] == announced[-1]
        labels = {
            name: re.sub(r'\\[\\"n]', lambda one: UNESCAPED[one[0]], value)
            for name, value in LABEL.findall(match["labels"])
        }
        key = match["name"], frozenset(labels.items())
        assert key not in found
        found[key] = float(match["value"])
    return found


def value(samples: dict[Any, float], name: str, **labels: str) -> float:
    """The one sample of this name that has these labels."""
    (found,) = [
        one for (family, having), one in samples.items() if family == name and labels.items() <= dict(having).items()
    ]
    return found


@pytest.mark.parametrize("dies", [False, True])
@pytest.mark.parametrize("asked", ["--live", "--ready"])
def test_no_platform_is_neither_live_nor_ready(asked, dies, capsys, monkeypatch):
    """Where none answers, or one ends within the call, both probes fail with code 1 and one line, or one object."""
    if dies:
        platform = Mock(status=Mock(side_effect=PeerUnreachable(address="p", problem="reset")))
        monkeypatch.setattr(peers, "connect", lambda *_, **__: nullcontext(platform))
    assert main(["health", asked]) == 1
    out, err = capsys.readouterr()
    assert (out.count("\n"), err) == (1, "")
    assert out.startswith(f"not {asked[2:]}: no platform")
    assert main(["health", asked, "--json"]) == 1
    facts = json.loads(capsys.readouterr().out)
    assert (facts["live"], facts["ready"], len(facts["problems"])) == (False, False, 1)


def test_a_suspended_slet_is_live_and_not_ready(failing, capsys):
    """A slet that has failed never fails liveness; the platform is ready again when it is mended."""
    assert answer_of("health", "--live") == "live: failing\n"
    answer_of("health", "--live", "--ready", code=1)  # the stricter one counts
    assert main(["health", "--ready"]) == 1
    assert capsys.readouterr().out == "not ready: counting: half is failed: ValueError: no halves today\n"
    Path("mended").touch()
    failing.resume("counting", "half")
    failing.end("counting")
    assert failing.wait("counting", 60)
    assert facts("health") == {"platform": "failing", "live": True, "ready": True, "problems": []}


def test_what_an_operator_holds_is_ready(counting):
    """A node that somebody has suspended on purpose is no failure."""
    app = Application("held")
    app.add("numbers", count_up)
    with Platform(name="failing", control=True) as platform:
        platform.apply(platform.apply(app.build()).suspend("numbers"))
        assert platform.status("held")["nodes"]["numbers"]["state"] == "suspended"
        assert main(["health"]) == 0


def status(**changed: Any) -> dict[str, Any]:
    """What a platform says of itself, with one application."""
    one = {"state": "running", "crashed": {}, "nodes": {}} | changed
    return {"platform": "p", "failed_to_restart": {}, "applications": {"a": one}}


@pytest.mark.parametrize(
    ("platform", "dead", "waiting"),
    [
        (status(), [], []),
        (status(state="finished"), [], []),
        (status(state="opening"), [], ["a: opening"]),
        (status(state="hangs"), [], ["a: hangs"]),
        (status(state="crashed", crashed={"n": "OSError: x"}), ["a: n has crashed: OSError: x"], []),
        (status() | {"failed_to_restart": {"b": "no slet"}}, [], ["b: not started again: no slet"]),
    ],
)
def test_what_is_dead_and_what_waits(platform, dead, waiting):
    """A dead driver ends life; what opens, hangs or was not started again is only not ready."""
    assert list(dead_drivers(platform)) == dead
    assert list(not_running(platform)) == waiting


def test_the_figures_of_a_platform(failing):
    """`exop metrics` prints a table, JSON, or the text format of Prometheus, of one application or of all."""
    Path("mended").touch()
    failing.resume("counting", "half")
    failing.end("counting")
    assert failing.wait("counting", 60)
    assert "numbers" in answer_of("metrics")
    assert facts("metrics", "counting")["counting"]["nodes"]["half"]["errors"] == 1
    samples = parsed(answer_of("metrics", "--prometheus"))
    here = {"application": "counting", "node": "half"}
    assert value(samples, "exop_items_total", **here, direction="in", port="item") >= 0
    assert value(samples, "exop_errors_total", **here) == 1
    assert value(samples, "exop_application_state", application="counting") == 1
    assert main(["metrics", "other", "--prometheus"]) == 2


def test_nothing_in_a_name_breaks_the_text_format():
    """Quotes, backslashes and ends of lines in names are escaped, figures of any name and value are legal."""
    nasty = 'a"b\\c\nd{}, # '
    node = {
        "state": "active",
        "items_in": 1,
        "items_out": 2,
        "batches": 0,
        "errors": 0,
        "skipped": 0,
        "busy_s": 1e-07,
        "dead_letters": {"count": 0, "dropped": 0},
        "slet": nasty,
        "inputs": ["x", "y"],
        "ports": {"x": "c", "y": "c", "out": "d"},
        "items": {"x": 1, "out": 2},
        "service_ms": {"p50": 0.5, "p99": 2.0},
        "latency_ms": {},
        "own": {nasty: float("nan"), "ok": True, "n": 3},
    }
    channel = {"kind": "own kind", "weird-key é": float("inf"), "folder": "/x", "depth": 7}
    one = {"state": "running", "running_s": 2.5, "revision": 3, "nodes": {nasty: node}, "inserted": {}}
    samples = parsed(prometheus_text({nasty: one | {"channels": {nasty: channel}}}))
    assert value(samples, "exop_application_revision", application=nasty) == 3
    assert value(samples, "exop_items_total", node=nasty, direction="in", port="x") == 1
    assert value(samples, "exop_items_total", node=nasty, direction="in", port="y") == 0
    assert value(samples, "exop_items_total", direction="out", port="out") == 2
    assert value(samples, "exop_service_seconds", quantile="0.99") == 0.002
    assert value(samples, "exop_own", figure="n") == 3
    assert value(samples, "exop_channel_weird_key__", channel=nasty) == float("inf")
    assert value(samples, "exop_channel_depth", kind="own kind") == 7
    assert prometheus_text({}) == ""
