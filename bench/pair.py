"""Did anything become slower than in another checkout? Both are measured in turns, and the old one beside itself."""

from __future__ import annotations

import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Final, TypeAlias

from bench.harness import Result, ratio_of, upper95
from bench.report import Goal, load_goals

ROOT: Final = Path(__file__).parents[1]
#: The options of one short run of each question; several such runs are compared.
SHORT: Final[Mapping[str, tuple[str, ...]]] = {
    "hop": ("--rounds", "5"),
    "registry": ("--rounds", "5"),
    "start": ("--rounds", "5"),
    "replace": ("--replacements", "100", "--others", "30", "--opening", "0.5", "--restarted", "1"),
    "recovery": (
        *("--kills", "0", "--failpoint-kills", "0", "--spark-kills", "0", "--spark-failpoint-kills", "0"),
        *("--rounds", "2", "--seconds", "3"),
    ),
}

#: One run of a question: its figures by name.
Figures: TypeAlias = dict[str, float]


def measure(
    old: Annotated[str, "the other checkout: its folder, or a revision of this repository"],
    *,
    questions: Annotated[str, "what is measured, in this order"] = "hop,replace,recovery",
    rounds: Annotated[int, "how many pairs of runs"] = 9,
) -> Iterator[Result]:
    """Run each question in both checkouts in turns.

    A figure that has a floor of its own (`ratio`) is compared by that ratio, others by their value; of figures that
    should be high the inverse is taken, so that a ratio above 1 always means that this checkout is the worse one. The
    value of a result is the upper 95 % bound of the ratios, and beside it stand the ratios of the old one to itself.

    Raises:
        SystemExit: there is no such checkout, or a question cannot be answered in one of them.
    """
    asked = questions.split(",")
    unknown = [name for name in asked if name not in SHORT]
    if unknown:
        raise SystemExit(f"no short form of the question {unknown[0]!r}; known: {', '.join(SHORT)}")
    with checkout(old) as folder:
        for question in asked:
            yield from compared(question, folder, rounds)


def compared(question: str, old: Path, rounds: int) -> Iterator[Result]:
    """Answer one question in turns: old, new, old, new, and the old one once more for the last A/A ratio."""
    run_in(old, question), run_in(ROOT, question)  # unmeasured: files are read, caches are written
    before, after = [run_in(old, question)], list[Figures]()
    for number in range(rounds):
        after.append(run_in(ROOT, question))
        before.append(run_in(old, question))
        print(f"{question}: {number + 1} of {rounds} pairs", file=sys.stderr, flush=True)
    goals = load_goals()
    for name in after[0]:
        if not all(name in one for one in (*before, *after)):
            continue  # one of the checkouts does not have this figure, or not in every run
        olds, news = ([worse(one[name], goals.get(name)) for one in side] for side in (before, after))
        pairs = list(zip(news, olds[:-1], strict=True))
        ratios = [ratio_of(*pair) for pair in pairs]
        noise = [ratio_of(later, earlier) for earlier, later in pairwise(olds)]
        yield Result(f"pair/{name}", upper95(ratios), "", "the old checkout", statistics.median(ratios), pairs, noise)


def worse(figure: float, goal: Goal | None) -> float:
    """Return the figure such that more is worse: the inverse where the goal is a lower bound."""
    return 1 / figure if goal is not None and goal.at_least is not None else figure


def run_in(folder: Path, question: str) -> Figures:
    """Answer a question in a checkout, by this interpreter; counts and figures that are not positive are left out."""
    command = [sys.executable, "-m", "bench", question, "--json", *SHORT[question]]
    ran = subprocess.run(command, cwd=folder, env=environment(folder), capture_output=True, text=True, check=False)
    if ran.returncode:
        raise SystemExit(f"{question} failed in {folder}:\n{ran.stderr[-2000:]}")
    found = {}
    for one in json.loads(ran.stdout.splitlines()[-1])["results"]:
        counted = one["ratio"] is None and one["unit"] not in ("ns", "us", "ms", "s")
        figure = one["value"] if one["ratio"] is None else one["ratio"]
        if not counted and figure is not None and math.isfinite(figure) and figure > 0:
            found[one["name"]] = figure
    return found


def environment(folder: Path) -> dict[str, str]:
    """The environment in which a process imports the code of that checkout, whatever is installed."""
    return {**os.environ, "PYTHONPATH": str(folder)}


@contextmanager
def checkout(old: str) -> Iterator[Path]:
    """The folder of the old checkout; one of a revision is made in a temporary place, and removed."""
    if (Path(old) / "bench" / "__main__.py").exists():
        yield Path(old).absolute()
        return
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "old"
        added = git("worktree", "add", "--detach", str(folder), old)
        if added.returncode:
            raise SystemExit(f"{old!r} is neither a checkout of ExoP nor a revision: {added.stderr.strip()}")
        try:
            yield folder
        finally:
            git("worktree", "remove", "--force", str(folder))


def git(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run git in this repository."""
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
