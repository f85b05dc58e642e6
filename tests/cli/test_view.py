"""The view of running applications: rates between two statuses, tables, log lines, the summary of a run."""

import io
import json
import re
from typing import Any

import pytest
from rich.console import Console

from exop.cli.text import columns, number, pause, seconds
from exop.cli.view import (
    RUN,
    TOP,
    Live,
    Log,
    Rates,
    cells,
    choose_view,
    own_lines,
    page,
    plain,
    print_summary,
    title,
    waiting,
)
from exop.errors import CheckpointError
from exop.logs import set_up
from exop.report import run_report, totals_of

OPENING = {"opened": 1, "total": 2, "seconds": 61.0, "waiting": {"b": 61.0}}


def node(role: str, items: int, figures: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    """The status of a node: a source that has emitted *items*, or another that has taken them in."""
    metrics = {
        "items_in": 0 if role == "alpha" else items,
        "items_out": 0 if role == "omega" else items,
        "errors": 0,
        "skipped": 0,
        "busy_s": 0.0,
        "service_ms": {},
        "latency_ms": {},
        "recovered": {"items_in": 0, "items_out": 0},
    }
    facts = {"role": role, "state": "active", "slet": "x:y", "inputs": [], "ports": {}}
    return {**facts, **more, "metrics": metrics | (figures or {})}


def status(at: float, items: int, sink: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    """An application of a source, a slet behind a queue of 7, and a sink behind an inserted one of 3."""
    half = {
        "busy_s": at / 4,
        "latency_ms": {"p50": 0.25, "p95": 1.0, "p99": 2.5},
        "own": {"second": 61, "type0/answers": 1200, "type0/late": 0},
    }
    own = {"errors": 2, "own": {"written": 5, "late": 0}}
    ends = {"inputs": ["item"], "ports": {"item": "half"}}
    return {
        "name": "app",
        "state": "running",
        "running_s": at,
        "nodes": {
            "source": node("alpha", items, ports={"out": "q"}),
            "half": node("pi", items, half, inputs=["item"], ports={"item": "q", "out": "half"}),
            "sink": node("omega", items, own, **ends, **(sink or {})),
        },
        "channels": {"q": {"kind": "queue", "depth": 7}, "half": {"kind": "direct"}},
        "inserted": {"half -> sink.item": {"kind": "queue", "depth": 3, "reason": "why"}},
        "crashed": {},
        **more,
    }


def test_rates_are_those_between_two_statuses():
    """Items and busy seconds are divided by the time between the statuses; times are marked as estimates."""
    rates = Rates()
    first = rates.section(status(10.0, 1000))
    assert (first["items_per_s"], first["nodes"][1]["busy"]) == (100.0, 0.25)
    second = rates.section(status(12.0, 1600))
    source, half, sink = second["nodes"]
    assert (second["items_per_s"], source["out_per_s"], half["in_per_s"]) == (300.0, 300.0, 300.0)
    assert (source["in_per_s"], sink["out_per_s"], source["busy"]) == (None, None, None)
    source, half, sink = (cells(row, RUN) for row in Rates().section(status(1.0, 1234567))["nodes"])
    assert source == ["source", "active", "", "1,234,567", "1,234,567", "", "0", "", ""]
    assert half == ["half", "active", *["1,234,567"] * 3, "~25%", "7", "~0.25", "~2.5"]
    assert sink[2:4] == ["1,234,567", ""]
    slow = {**Rates().section(status(1.0, 1))["nodes"][1], "p50_ms": 3761.2, "p99_ms": 37_612.0}
    assert cells(slow, RUN)[-2:] == ["~3,761", "~37,612"]


def test_an_application_that_begins_anew_begins_at_zero():
    """An application that was deployed again, or a slet whose count begins again, shows no negative rate."""
    rates = Rates()
    rates.section(status(100.0, 10_000))
    assert rates.section(status(2.0, 100))["items_per_s"] == 50.0
    assert rates.section(status(3.0, 50))["items_per_s"] == 0.0


def test_queues_and_totals():
    """A node's queues are those in front of it; the items are those of the sources; all else is added up."""
    assert [waiting(status(1, 1), name) for name in ("source", "half", "sink")] == [0, 7, 3]
    totals = totals_of(status(1, 50))
    assert totals == {"items": 50, "recovered": 0, "errors": 2, "skipped": 0, "dead": 0, "queued": 10}
    replaced = [{"node": "half", "slet": "app:half", "errors": 3, "skipped": 1, "last_error": "ValueError: no"}]
    assert totals_of({**status(1, 50), "replaced": replaced}) == {**totals, "errors": 5, "skipped": 1}


def test_the_items_of_a_fragment_without_sources():
    """They are those that its inboxes have received from other hosts."""
    whole = status(1, 50)
    nodes = {name: one for name, one in whole["nodes"].items() if one["role"] != "alpha"}
    inboxes = {name: {"kind": "inbox", "received": 8, "items": 7} for name in ("x.from.a", "y.from.c")}
    assert totals_of({**whole, "nodes": nodes, "channels": inboxes})["items"] == 14
    assert totals_of({**whole, "channels": inboxes})["items"] == 50


@pytest.mark.parametrize(
    ("sort", "first"), [("mesh", "source"), ("node", "half"), ("in", "half"), ("errors", "sink"), ("latency", "half")]
)
def test_sorting(sort, first):
    """The largest comes first; equal ones keep the order of the mesh."""
    assert Rates().section(status(1.0, 5), sort)["nodes"][0]["node"] == first


def test_notes():
    """A suspended slet with its item, dead letters, pending settings, broken queues, crashed drivers, checkpoints."""
    now = status(
        1.0,
        5,
        sink={
            "state": "failed",
            "error": "ValueError: no",
            "kept": {"port": "item", "item": "5", "traceback": ""},
            "hang": {"seconds": 12.0},
            "dead_letters": {"count": 1, "dropped": 0},
            "pending": ["below=20 when time >= 5"],
            "pending_problem": "the condition raised",
        },
        crashed={"worker": "KeyError(1)"},
        kept={"half": {"slet": "p:old", "until": "12:00:00"}},
        checkpoints={"trouble": str(CheckpointError(application="app", problem="no room", cure="make room"))},
    )
    now["channels"]["q"]["trouble"] = "disk full"
    assert Rates().section(now)["notes"] == [
        "app.sink: pending: below=20 when time >= 5",
        "app.sink: the condition raised",
        "app: worker has crashed: KeyError(1)",
        "app.sink is failed on the item 5 at 'item': ValueError: no; fix the cause, then `exop resume app.sink`",
        "app.sink hangs: an item has taken 12.0 s so far, see `exop describe app.sink`",
        "app.sink: 1 dead letter, see `exop item list app.sink`",
        "app.q: disk full",
        "app.half: the predecessor p:old is kept until 12:00:00 (exop rollback app.half)",
        "app: no checkpoints: no room; the application runs on; make room",
    ]


def test_the_screen_and_the_text_show_the_same():
    """Both have the title, every node, and the notes."""
    failed = {"error": "ValueError: no", "state": "failed"}
    section = Rates().section(status(1.0, 5, failed, revision=3, last_change={"revision": 3, "paused_ms": 0.25}))
    output = io.StringIO()
    screen = Live(Console(file=output, force_terminal=True, width=200, height=30), screen=True)
    screen.draw(page("here", [section]))
    screen.close()
    shown = plain(page("here", [section]))
    for text in (shown, output.getvalue()):
        for part in ("here", "app  running", "revision 3", "10 queued", "paused 0.25 ms", "ValueError: no", *TOP):
            assert part in text
    assert "~0.25" in shown
    assert title(section).endswith("errors: 2  last change paused 0.25 ms")
    assert "no application runs" in plain(page("here", []))


def test_the_live_table_of_a_run():
    """It has the totals, a line per node, and the slets' own figures by group; while slets open, those missing."""
    screen = io.StringIO()
    view = Live(Console(file=screen, force_terminal=True, width=120, no_color=True))
    view.show(status(0.0, 0, opening=OPENING))
    opening = screen.getvalue()
    view.show(status(2.0, 1000))
    view.close()
    text = re.sub("\x1b\\[[0-9;?]*[a-zA-Z]", "", screen.getvalue())
    text = text[text.index("app  running") :]
    assert "app  running  2.0 s  1,000 items  500/s  10 queued  errors: 2" in text
    assert "half type0  answers 1,200  late 0" in text
    assert [line.split()[0] for line in text.splitlines()[2:5]] == ["source", "half", "sink"]
    assert "app: opening, 1 of 2 slets are ready: waiting for b (1 min 01 s)" in opening
    own = [("half", {"second": 61}), ("half type0", {"answers": 1200, "late": 0}), ("sink", {"written": 5, "late": 0})]
    assert own_lines(Rates().section(status(1, 1))) == own


def test_log_lines_and_summary(capsys):
    """Without a terminal there is a line now and then, with the figures of sources and sinks; at the end all totals."""
    set_up()
    view = choose_view(quiet=False)
    assert isinstance(view, Log)
    view.show(status(0.0, 0, opening={**OPENING, "opened": 0, "total": 0}))
    view.show(status(0.0, 0, opening=OPENING))
    view.show(status(2.0, 1000))
    stored, opening, running = capsys.readouterr().err.splitlines()
    assert "ready='0 of ?'" in stored
    assert "ready='1 of 2' waiting='b (1 min 01 s)'" in opening
    for part in ("running", "application=app", "items=1000", "rate=500", "queued=10", "sink.written=5"):
        assert part in running
    assert "sink.late" not in running
    assert "half." not in running
    print_summary({"outcome": "drained", "status": status(2.0, 1000)})
    err = capsys.readouterr().err
    assert err.startswith("app: drained after 2.0 s: 1,000 items (500/s), 2 errors, 10 left in queues\n")
    assert "half type0: answers 1,200  late 0" in err


def test_the_rate_of_a_run_after_a_recovery(capsys):
    """The items from before the recovery are part of the total, and not of the rate: as in the table and the report."""
    set_up()
    now = status(2.0, 1000, replaced=[])
    now["nodes"]["source"]["metrics"]["recovered"] = {"items_in": 0, "items_out": 600}
    print_summary({"outcome": "finished", "status": now})
    assert "app: finished after 2.0 s: 1,000 items (200/s)" in capsys.readouterr().err
    assert (Rates().section(now)["items_per_s"], run_report(now, "finished")["rate"]) == (200.0, 200.0)


def test_log_lines_and_summary_as_json(capsys):
    """With `--log-format json` every line is an object, also the last one with the totals."""
    set_up(form="json")
    choose_view(quiet=False).show(status(2.0, 1000))
    print_summary({"outcome": "finished", "status": status(2.0, 1000)})
    line, last = map(json.loads, capsys.readouterr().err.splitlines())
    assert (line["event"], line["items"], line["logger"], line["level"]) == ("running", 1000, "exop.run", "info")
    assert (line["half.type0/answers"], line["sink.late"]) == (1200, 0)
    assert (last["outcome"], last["items"], last["errors"], last["sink.written"]) == ("finished", 1000, 2, 5)


def test_columns():
    """Columns are as wide as their widest cell, numbers to the right, and nothing is cut."""
    text = columns(("name", "n"), [["a", 5], ["a long one" * 10, 12345]])
    assert text.splitlines()[1].endswith(" 5")
    assert columns(("bundle", "used by"), [["a", "-"]]).splitlines()[1] == "a       -", "no number"
    assert "a long one" * 10 in text


@pytest.mark.parametrize(
    ("form", "value", "text"),
    [
        *[(number, *one) for one in ((0, "0"), (1234567, "1,234,567"), (0.12345, "0.123"), (12345.6, "12,346"))],
        *[(seconds, *one) for one in ((0.04, "0.0 s"), (75, "1 min 15 s"), (7260, "2 h 01 min"))],
        *[(pause, *one) for one in ((0.25, "0.25 ms"), (999, "999 ms"), (2003.0, "2.0 s"))],
    ],
)
def test_numbers_and_times(form, value, text):
    """Numbers are grouped and rounded; times have a unit that fits."""
    assert form(value) == text
