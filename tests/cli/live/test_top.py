"""`exop top`: rates between two looks, what waits for a repair, and a clean end."""

import io
import json
import os
import pty
import select
import signal
import subprocess
from typing import Any

import pytest
from rich.console import Console

from exop.cli import main
from exop.cli.commands.top import refresh
from exop.cli.view import TOP, Live, Rates, as_text, title
from tests.cli.shell import COMMAND, answer_of, applications, eventually, facts, running


def node(role: str, came: int, went: int, busy: float, **more: Any) -> dict[str, Any]:
    """The status of a node."""
    metrics = {
        "items_in": came,
        "items_out": went,
        "errors": more.pop("errors", 0),
        "skipped": 0,
        "busy_s": busy,
        "service_ms": {"p50": 0.1, "p95": 0.2, "p99": 0.3},
        "latency_ms": {},
        "recovered": {"items_in": 0, "items_out": 0},
    }
    inputs = [] if role == "alpha" else ["item"]
    ports = {"item": "q"} if inputs else {"out": "q"}
    return {"role": role, "state": "active", "slet": "p:s", "metrics": metrics, "inputs": inputs, "ports": ports} | more


def status(seconds: float, items: int, busy: float = 0.0, **more: Any) -> dict[str, Any]:
    """The status of an application with a source and a sink."""
    return {
        "name": "app",
        "state": "running",
        "revision": 3,
        "running_s": seconds,
        "last_change": {"revision": 3, "paused_ms": 0.25},
        "nodes": {"a": node("alpha", 0, items, 0.0), "b": node("omega", items, 0, busy, **more)},
        "channels": {"q": {"kind": "queue", "depth": 7}},
        "inserted": {},
        "crashed": {},
    }


def test_rates_are_those_between_two_looks():
    """Items and busy seconds are divided by the time between the looks, not by that since the start."""
    rates = Rates()
    first = rates.section(status(10.0, 1000, 5.0))
    assert (first.items_per_s, first.nodes[1].busy) == (100.0, 0.5)
    second = rates.section(status(12.0, 1600, 5.5))
    assert (second.items_per_s, second.nodes[0].out_per_s, second.nodes[1].in_per_s) == (300.0, 300.0, 300.0)
    assert second.nodes[1].busy == 0.25
    assert (second.nodes[0].in_per_s, second.nodes[1].out_per_s, second.nodes[0].busy) == (None, None, None)
    assert (second.queued, second.nodes[1].queued) == (7, 7)


def test_what_begins_anew_begins_at_nothing():
    """An application that was deployed again, or a slet whose count begins again, shows no negative rate."""
    rates = Rates()
    rates.section(status(100.0, 10_000))
    assert rates.section(status(2.0, 100)).items_per_s == 50.0
    assert rates.section(status(3.0, 50)).items_per_s == 0.0


def test_new_figures_are_put_into_a_status():
    """Between two whole looks only figures are asked for; another state or revision asks for a whole one."""
    known, fresh = status(1.0, 5), status(2.0, 9)
    metrics = fresh | {"nodes": {name: {"state": "active"} | one["metrics"] for name, one in fresh["nodes"].items()}}
    metrics["channels"] = {"q": {"kind": "queue", "depth": 3}}
    refresh(known, metrics)
    section = Rates().section(known)
    assert (section.items, section.queued, section.running_s, section.nodes[0].p50_ms) == (9, 3, 2.0, 0.1)
    trouble = {"channels": {"q": {"kind": "queue", "depth": 3, "trouble": "disk full"}}}
    for changed in ({"state": "suspended"}, {"revision": 4}, {"nodes": {"c": {}}}, trouble):
        with pytest.raises(KeyError):
            refresh(known, metrics | changed)


@pytest.mark.parametrize(
    ("sort", "first"), [("mesh", "a"), ("node", "a"), ("in", "b"), ("out", "a"), ("errors", "b"), ("latency", "a")]
)
def test_sorting(sort, first):
    """The largest stands first; equal ones keep the order of the mesh."""
    assert Rates().section(status(1.0, 5, errors=2), sort).nodes[0].node == first


def test_what_waits_for_somebody_is_told():
    """A suspended slet with its item, dead letters, pending settings, broken queues, crashed drivers, checkpoints."""
    now = status(
        1.0,
        5,
        state="failed",
        error="ValueError: no",
        kept={"port": "item", "item": "5", "traceback": ""},
        hang={"seconds": 12.0},
        dead_letters={"count": 3, "dropped": 0},
        pending=["below=20 when time >= 5"],
        pending_problem="the condition raised",
    )
    now["channels"]["q"]["trouble"] = "disk full"
    now["crashed"] = {"worker": "KeyError(1)"}
    now["kept"] = {"a": {"slet": "p:old", "until": "12:00:00"}}
    now["checkpoints"] = {"trouble": "no room"}
    notes = Rates().section(now).notes
    assert notes == [
        "app.b is failed on the item 5 at 'item': ValueError: no; fix the cause, then `exop resume app.b`",
        "app.b hangs: an item has taken 12.0 s so far, see `exop describe app.b`",
        "app.b: 3 dead letters, see `exop item list app.b`",
        "app.b: pending: below=20 when time >= 5",
        "app.b: the condition raised",
        "app: q: disk full",
        "app: a driver has crashed: worker: KeyError(1)",
        "app.a: the predecessor p:old is kept until 12:00:00 (exop rollback app.a)",
        "app: no checkpoints: no room",
    ]


def test_both_views_show_the_same():
    """The live screen and the plain text hold the title, every node, and the notes."""
    section = Rates().section(status(1.0, 5, error="ValueError: no", state="failed"))
    output = io.StringIO()
    screen = Live(Console(file=output, force_terminal=True, width=200, height=30), screen=True)
    screen.show("here", [section])
    screen.close()
    for text in (as_text("here", [section]), output.getvalue()):
        for part in ("here", "app  running", "revision 3", "7 queued", "0.25 ms", "ValueError: no", *TOP):
            assert part in text
    assert "~0.1" in as_text("here", [section])
    assert "errors: " not in title(section)
    assert "no application runs" in as_text("here", [])


def test_once(line):
    """`--once` prints one look, as a table or as JSON, of everything or of one application."""
    assert "line.tag"[5:] in answer_of("top", "--once", "--every", "0.05")
    look = json.loads(answer_of("top", "line", "--once", "--json", "--every", "0.05", "--sort", "busy"))
    assert look["platform"] == "served"
    (application,) = look["applications"]
    assert {one["node"] for one in application["nodes"]} == {"numbers", "tag", "sink"}
    assert application["items_per_s"] > 0


def test_bad_input(line):
    """Unknown names and orders, and times that are none, are told; exit code 2."""
    for arguments, said in {
        ("lin",): "did you mean 'line'?",
        ("line.tag",): "names a node",
        ("--every", "0"): "give one above 0",
        ("--every", "soon"): "soon",
        ("--sort", "size"): "size",
        ("--on", "nobody"): "no platform is running",
    }.items():
        assert said in answer_of("top", "--once", *arguments, code=2), arguments


def test_it_ends_with_its_platform(line, counting):
    """Where stdout is no terminal one look follows the other; when the platform leaves, that is said."""
    with running("serve", "--name", "other", stdout=None, stderr=None) as other:
        eventually(lambda: len(facts("ps")) == 2)
        with running("top", "--on", "other", "--every", "0.05") as top:
            assert top.stdout is not None
            assert "other (process" in top.stdout.readline()
            other.send_signal(signal.SIGTERM)
            _, err = top.communicate(timeout=120)
    assert top.returncode == 0
    assert "other (process" in err
    assert "has ended" in err


def test_it_ends_with_its_application(line):
    """An application that is removed is said to be, and there is nothing more to see."""
    with running("top", "line", "--every", "0.05", "--json") as top:
        assert top.stdout is not None
        assert json.loads(top.stdout.readline())["applications"][0]["application"] == "line"
        assert main(["remove", "line"]) == 0
        _, err = top.communicate(timeout=120)
    assert (top.returncode, err) == (0, "line was removed\n")
    assert applications() == {}


def test_ctrl_c_gives_the_terminal_back(line):
    """On a terminal it draws on a screen of its own; Ctrl-C brings back what was there, and exits with 0."""
    parent, child = pty.openpty()
    process = subprocess.Popen([*COMMAND, "top", "--every", "0.1"], stdout=child, stderr=child, stdin=child)
    os.close(child)
    shown = b""

    def drawn() -> bool:
        nonlocal shown
        if select.select([parent], [], [], 0)[0]:
            shown += os.read(parent, 65536)
        return b"sink" in shown

    eventually(drawn)
    assert b"\x1b[?1049h" in shown
    process.send_signal(signal.SIGINT)
    while True:
        try:
            part = os.read(parent, 65536)
        except OSError:  # a terminal whose other side is closed
            break
        if not part:
            break
        shown += part
    assert process.wait(120) == 0
    assert b"\x1b[?1049l" in shown
    assert b"Traceback" not in shown
    os.close(parent)
