"""What is shown of a running application: figures, the live table, log lines."""

import io
import json
from dataclasses import replace
from typing import Any

import pytest
from rich.console import Console

from exop.cli.text import columns, number, pause, seconds
from exop.cli.view import RUN, Live, Log, Rates, cells, choose_view, own_lines, print_summary, waiting
from exop.logs import set_up
from exop.report import Totals

OPENING = {"opened": 1, "total": 2, "seconds": 61.0, "waiting": {"b": 61.0}}


def node(role: str, items: int, **more: Any) -> dict[str, Any]:
    """The status of a node: a source that has put out *items*, or another that has taken them in."""
    figures: dict[str, Any] = {
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
    return {**facts, **{k: v for k, v in more.items() if k in facts}, "metrics": figures | more.get("metrics", {})}


def status(at: float, items: int, **more: Any) -> dict[str, Any]:
    """An application of a source, a slet behind a queue of 7, and a sink behind one that the wiring has put there."""
    half = node(
        "pi",
        items,
        inputs=["item"],
        ports={"item": "q", "out": "half"},
        metrics={
            "busy_s": at / 4,
            "latency_ms": {"p50": 0.25, "p95": 1.0, "p99": 2.5},
            "own": {"second": 61, "type0/answers": 1200, "type0/late": 0},
        },
    )
    sink = node(
        "omega", items, inputs=["item"], ports={"item": "half"}, metrics={"errors": 2, "own": {"written": 5, "late": 0}}
    )
    return {
        "name": "app",
        "state": "running",
        "running_s": at,
        "nodes": {"source": node("alpha", items, ports={"out": "q"}), "half": half, "sink": sink},
        "channels": {"q": {"kind": "queue", "depth": 7}, "half": {"kind": "direct"}},
        "inserted": {"half -> sink.item": {"kind": "queue", "depth": 3, "reason": "why"}},
        "crashed": {},
        **more,
    }


def test_times_are_marked():
    """Times rest on samples, and have a ~; counts have none; what there is none of stays empty."""
    source, half, sink = (cells(row, RUN) for row in Rates().section(status(1.0, 1234567)).nodes)
    assert source == ["source", "active", "", "1,234,567", "1,234,567", "", "0", "", ""]
    assert half == ["half", "active", *["1,234,567"] * 3, "~25%", "7", "~0.25", "~2.5"]
    assert sink[2:4] == ["1,234,567", ""]


def test_queues_in_front_of_a_node():
    """A node's queue is the one that it reads from, and the one that the wiring has inserted."""
    assert [waiting(status(1, 1), name) for name in ("source", "half", "sink")] == [0, 7, 3]


def test_totals():
    """The application's items are those of its sources; errors and queues are added up, of replaced slets, too."""
    totals = Totals.of(status(1, 50))
    assert totals == Totals(items=50, recovered=0, errors=2, skipped=0, dead=0, queued=10)
    replaced = [{"node": "half", "slet": "app:half", "errors": 3, "skipped": 1, "last_error": "ValueError: no"}]
    assert Totals.of({**status(1, 50), "replaced": replaced}) == replace(totals, errors=5, skipped=1)


def test_own_figures_stand_by_group():
    """`group/name` figures of a slet share the line of their group."""
    assert own_lines(status(1, 1)) == [
        ("half", {"second": 61}),
        ("half type0", {"answers": 1200, "late": 0}),
        ("sink", {"written": 5, "late": 0}),
    ]


def test_live_table():
    """The live table has a line per node, the totals, and what the slets say of themselves."""
    view = Live()
    screen = Console(file=io.StringIO(), width=120)
    screen.print(view.table(status(2.0, 1000)))
    view.close()
    text = screen.file.getvalue()  # type: ignore[attr-defined]
    assert "app  running  2.0 s  1,000 items  500/s  10 queued  errors: 2" in text
    assert "half type0  answers 1,200  late 0" in text
    assert [line.split()[0] for line in text.splitlines()[2:5]] == ["source", "half", "sink"]


def test_live_opening():
    """While slets open, those that are waited for are named."""
    screen = io.StringIO()
    view = Live(Console(file=screen, force_terminal=True, width=120))
    view.opening("app", OPENING)
    view.close()
    assert "app: opening, 1 of 2 slets are ready: waiting for b (1 min 01 s)" in screen.getvalue()


def test_log_lines(capsys):
    """Not on a terminal there is a line now and then, also while slets open, with what sources and sinks tell."""
    set_up()
    view = choose_view(quiet=False)
    assert isinstance(view, Log)
    view.opening("app", OPENING)
    view.opening("app", OPENING)
    view.running(status(2.0, 1000))
    opening, again, running = capsys.readouterr().err.splitlines()
    assert "ready='1 of 2' waiting='b (1 min 01 s)'" in opening
    assert opening.split(" ", 1)[1] == again.split(" ", 1)[1]
    for part in ("running", "application=app", "items=1000", "rate=500", "queued=10", "sink.written=5"):
        assert part in running
    assert "sink.late" not in running
    assert "half." not in running


def test_summary(capsys):
    """The last word has the outcome, the totals, and the rates of the whole run."""
    print_summary({"outcome": "drained", "status": status(2.0, 1000)})
    err = capsys.readouterr().err
    assert err.startswith("app: drained after 2.0 s: 1,000 items (500/s), 2 errors, 10 left in queues\n")
    assert "half type0: answers 1,200  late 0" in err


def test_log_lines_and_summary_as_json(capsys):
    """With `--log-format json` every line is an object, also the last one with the totals."""
    set_up(form="json")
    choose_view(quiet=False).running(status(2.0, 1000))
    print_summary({"outcome": "finished", "status": status(2.0, 1000)})
    line, last = map(json.loads, capsys.readouterr().err.splitlines())
    assert (line["event"], line["items"], line["logger"], line["level"]) == ("running", 1000, "exop.run", "info")
    assert (line["half.type0/answers"], line["sink.late"]) == (1200, 0)
    assert (last["outcome"], last["items"], last["errors"], last["sink.written"]) == ("finished", 1000, 2, 5)


def test_columns():
    """Columns are as wide as their widest cell, numbers to the right, and nothing is cut."""
    text = columns(("name", "n"), [["a", 5], ["a long one" * 10, 12345]])
    assert text.splitlines()[1].endswith(" 5")
    assert "a long one" * 10 in text


@pytest.mark.parametrize(
    ("value", "text"), [(0, "0"), (1234567, "1,234,567"), (0.5, "0.5"), (0.12345, "0.123"), (12345.6, "12,346")]
)
def test_numbers(value, text):
    """Numbers are grouped, and have no more digits than say something."""
    assert number(value) == text


@pytest.mark.parametrize(("value", "text"), [(0.04, "0.0 s"), (75, "1 min 15 s"), (7260, "2 h 01 min")])
def test_time_spans(value, text):
    """Time spans are in the units of people."""
    assert seconds(value) == text


def test_a_pause_is_shown_in_milliseconds_or_in_seconds():
    """A stall of seconds is no power of ten."""
    assert [pause(one) for one in (0.25, 999, 2003.0)] == ["0.25 ms", "999 ms", "2.0 s"]
