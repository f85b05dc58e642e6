"""How the benches measure, judge and print. No test here depends on how fast anything is."""

from __future__ import annotations

import argparse
import gc
import json
import math
from pathlib import Path
from typing import Annotated, Literal

import pytest

from bench import __main__ as command
from bench import harness, questions, report
from bench.harness import Result, compare, paired, ratio_of, repeated, timed, upper95
from bench.report import Goal, as_json, load_goals, table


class Clock:
    """A clock that only the measured blocks move."""

    def __init__(self):
        self.now = 0

    def __call__(self):
        """The time, in nanoseconds."""
        return self.now


@pytest.fixture
def clock(monkeypatch):
    """Puts that clock in the place of the real one."""
    clock = Clock()
    monkeypatch.setitem(harness.CLOCKS, "cpu", clock)
    return clock


def figures(*values):
    """A side that gives these figures, one a run."""
    remaining = iter(values)
    return lambda: next(remaining)


def test_the_sides_take_turns():
    """After one unmeasured run of each, the order is A B A B and an A at the end."""
    order = []
    pairs, noise = paired(lambda: order.append("A") or 2.0, lambda: order.append("B") or 6.0, rounds=3)
    assert "".join(order) == "ABABABABA"
    assert pairs == [(6.0, 2.0)] * 3
    assert noise == [1.0] * 3


def test_a_figure_that_could_not_be_measured_is_left_out():
    """It is no number, and neither is the median where none was measured: JSON has null there, and a goal is missed."""
    floor, candidate = figures(1, 1, 1, 1, 1), figures(0, 3, math.nan, 5)
    result = compare("x", "us", floor=floor, candidate=candidate, against="floor", rounds=3)
    assert (result.value, result.ratio) == (4, 4)
    none = repeated("x", "us", figures(math.nan, math.nan, math.nan), rounds=2)
    assert math.isnan(none.value)
    assert not Goal(at_most=1).met(none)


def test_neighbours_are_compared():
    """The ratio is the median of the ratios of neighbours, not the ratio of medians; A/A pairs each A with the next."""
    floor, candidate = figures(0, 1, 2, 10, 10), figures(0, 3, 4, 10)
    result = compare("x", "us", floor=floor, candidate=candidate, against="floor", rounds=3)
    assert result.samples == [(3, 1), (4, 2), (10, 10)]
    assert result.ratio == 2.0
    assert result.value == 4
    assert result.noise == [2.0, 5.0, 1.0]


def test_one_side_alone():
    """Where there is nothing to compare with, the median of the runs after the first is the value."""
    result = repeated("x", "ms", figures(99, 1, 5, 2), rounds=3)
    assert (result.value, result.samples, result.ratio, result.ratios) == (2, [1, 5, 2], None, [])


def test_a_timed_block_gives_the_time_of_one_repetition(clock):
    """A block is repeated until its runs are long enough; the figure is the time of one of them."""
    counts = []

    def block(number):
        counts.append(number)
        clock.now += 250 * number

    side = timed(block, unit="us", seconds=0.001)
    assert [side(), side()] == [0.25, 0.25]
    assert counts[-2:] == [4000, 4000]


def test_a_slow_block_runs_once(clock):
    """A block that is longer than a run should be is not repeated."""

    def block(number):
        clock.now += 10**9 * number

    assert timed(block, unit="s", seconds=0.001)() == 1.0


def test_the_collector_rests_while_a_side_runs():
    """No garbage collection happens within a run; afterwards everything is as it was, also when a side raises."""
    assert gc.isenabled()
    assert repeated("x", "", lambda: float(gc.isenabled()), rounds=1).value == 0.0
    with pytest.raises(ZeroDivisionError):
        repeated("x", "", lambda: 1 / 0)
    assert gc.isenabled()
    assert gc.get_freeze_count() == 0


@pytest.mark.parametrize(("count", "place"), [(1, 1), (4, 4), (5, 5), (10, 9), (20, 15)])
def test_upper95_is_an_order_statistic(count, place):
    """The bound is the value that the median exceeds in at most 5 of 100 cases (binomial), the highest of few."""
    assert upper95(list(range(count, 0, -1))) == place


@pytest.mark.parametrize(("value", "base", "ratio"), [(6, 3, 2.0), (0, 3, 0.0), (0, 0, 1.0), (1, 0, math.inf)])
def test_ratio_of_nothing(value, base, ratio):
    """Nothing to nothing is 1, something to nothing infinite."""
    assert ratio_of(value, base) == ratio


@pytest.mark.parametrize(
    ("goal", "result", "met"),
    [
        (Goal(at_most=10, unit="us"), Result("x", 10, "us"), True),
        (Goal(at_most=10), Result("x", 10.1, "us"), False),
        (Goal(at_least=3), Result("x", 3), True),
        (Goal(at_least=3), Result("x", 2), False),
        (Goal(of="ratio", at_most=1.15), Result("x", 99, "ns", "floor", 1.1), True),
        (Goal(of="ratio", at_most=1.15), Result("x", 0.1), False),
        (Goal(at_most=10), Result("x", math.nan), False),
    ],
)
def test_a_goal_judges_a_result(goal, result, met):
    """A goal bounds value or ratio; what was not measured does not reach it."""
    assert goal.met(result) is met


def test_a_goal_in_another_unit_is_an_error():
    """A goal in us does not judge a result in ms."""
    with pytest.raises(ValueError, match="goal of x is in us, the result in ms"):
        Goal(at_most=10, unit="us").met(Result("x", 1, "ms"))


def test_the_goals_of_the_project_can_be_read():
    """bench/goals.toml holds goals by the names of results."""
    goals = load_goals()
    assert goals["registry/register"] == Goal(of="ratio", at_most=6)
    assert goals["hop/item/stateless"] == Goal(of="ratio", at_most=0.7)
    assert all(goal.at_most is not None or goal.at_least is not None for goal in goals.values())


def test_goals_carry_over_machines():
    """No goal is an absolute rate, or time below a millisecond: how fast a processor is does not decide it."""
    units = {goal.unit for goal in load_goals().values() if goal.of == "value" and goal.unit}
    times, sizes = {"s", "ms", "%"}, {"kB", "items", "lines", "modules", "circles", "cases", "switches", "drivers"}
    assert units <= times | sizes | {
        "kills",
        "kills at each",
        "keys",
        "receipts",
        "tasks",
        "batches",
        "changes",
        "platforms",
    }


def test_the_table_shows_noise_and_goals():
    """A/A stands beside A/B, and met or missed beside each result that has a goal."""
    results = [
        Result("a/b", 3.0, "us", "floor", 1.5, [(3, 2), (4, 2)], [0.9, 1.1]),
        Result("a/c", 30.0, "us"),
        Result("a/d", 0),
    ]
    lines = table(results, {"a/b": Goal(at_most=10), "a/c": Goal(at_most=10)}).splitlines()
    assert "1.5 (1.62..1.88)" in lines[1]
    assert "1 (0.95..1.05)" in lines[1]
    assert lines[1].endswith("<= 10  met")
    assert lines[2].endswith("<= 10  MISSED")
    assert lines[3].split() == ["a/d", "0"]


def test_the_json_object():
    """One line, the keys of the design, figures short, and valid JSON whatever the figures are."""
    line = as_json("hop", [Result("hop/x", 1 / 3, "us", "floor", math.inf, [(1, 0)], [math.nan])])
    assert "\n" not in line
    read = json.loads(line, parse_constant=pytest.fail)
    assert set(read) == {"question", "machine", "results"}
    assert read["machine"]["cpus"] >= 1
    assert read["results"] == [
        {
            "name": "hop/x",
            "value": 0.333333,
            "unit": "us",
            "against": "floor",
            "ratio": None,
            "samples": [[1, 0]],
            "noise": [None],
        }
    ]


@pytest.fixture
def question(monkeypatch):
    """A question `fake` with options, and a goal for its result."""

    def measure(*, size: Annotated[int, "how big"] = 3, deep: bool = False):
        yield Result("fake/size", size, "us")
        yield Result("fake/deep", float(deep))

    monkeypatch.setattr(command, "questions", lambda: {"fake": "How big is it?", "gone": "What is missing?"})
    monkeypatch.setattr(command, "load", lambda name: measure)
    monkeypatch.setattr(command, "load_goals", lambda: {"fake/size": Goal(at_most=10, unit="us")})
    return measure


def test_json_is_last_and_alone_when_asked(question, capsys):
    """The last line printed is the JSON object; with --json it is all there is on standard output."""
    assert command.main(["fake", "--size", "4", "--deep"]) == 0
    *shown, last = capsys.readouterr().out.splitlines()
    assert any("met" in line for line in shown)
    assert [result["value"] for result in json.loads(last)["results"]] == [4, 1.0]
    assert command.main(["fake", "--json"]) == 0
    (only,) = capsys.readouterr().out.splitlines()
    assert json.loads(only)["question"] == "fake"


def test_check_tells_whether_goals_were_missed(question):
    """With --check the exit code is 1 when a goal was missed, else 0."""
    assert command.main(["fake", "--json", "--check", "--size", "10"]) == 0
    assert command.main(["fake", "--json", "--check", "--size", "11"]) == 1
    assert command.main(["fake", "--json", "--size", "11"]) == 0


def test_the_questions_are_listed(question, capsys):
    """Without a question, and with --help, every question is shown with its line; a wrong one gets exit code 2."""
    assert command.main([]) == command.main(["--help"]) == 0
    assert "fake  How big is it?" in capsys.readouterr().out
    assert command.main(["other"]) == 2
    assert "known: fake, gone" in capsys.readouterr().err


def test_a_question_whose_package_is_missing_says_so(question, monkeypatch, capsys):
    """A bench of something that is not installed gives one line and exit code 2."""

    def load(name):
        raise ModuleNotFoundError("No module named 'engine'", name="engine")

    monkeypatch.setattr(command, "load", load)
    assert command.main(["gone"]) == 2
    assert "'gone' needs the package 'engine'" in capsys.readouterr().err


def test_a_question_is_a_module_that_measures(tmp_path: Path):
    """Modules with a `measure` function are questions; their docstring's first line is the help; none is imported."""
    (tmp_path / "speed.py").write_text('"""How fast?\n\nMore."""\nimport nothing_there\ndef measure(): ...\n')
    (tmp_path / "helper.py").write_text('"""No question."""\n')
    assert questions.questions(tmp_path) == {"speed": "How fast?"}
    assert "registry" in questions.questions()
    assert "harness" not in questions.questions()


def test_options_come_from_the_signature():
    """Each keyword-only parameter of `measure` is an option of its type, with its default."""

    def measure(
        *,
        roads: Annotated[int, "how many"] = 1,
        file: Path | None = None,
        pipeline: Literal["spark", "native"] = "spark",
        up: bool = True,
    ):
        return []

    parser = argparse.ArgumentParser()
    assert questions.add_options(parser, measure) == ["roads", "file", "pipeline", "up"]
    assert vars(parser.parse_args([])) == {"roads": 1, "file": None, "pipeline": "spark", "up": True}
    chosen = parser.parse_args(["--roads", "2", "--file", "a.csv", "--pipeline", "native", "--no-up"])
    assert vars(chosen) == {"roads": 2, "file": Path("a.csv"), "pipeline": "native", "up": False}
    assert "how many (default: 1)" in parser.format_help()
    with pytest.raises(SystemExit):
        parser.parse_args(["--pipeline", "other"])


def test_where_it_ran_is_told():
    """The machine's description names processor, system and Python, as plain JSON values."""
    assert set(report.machine()) == {"cpus", "processor", "system", "python", "load"}
    json.dumps(report.machine())
