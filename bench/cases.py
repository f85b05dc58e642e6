"""Campaigns of seeded cases: counted by outcome, and resumed from a record after an interruption.

A campaign is a question like any other; its module defines one case and hands it over:

    def measure(*, runs: Annotated[int, "how many cases"] = 500, seed: int = 0, record: Path | None = None):
        yield from carry_out("damage", damaged_directory, runs=runs, seed=seed, record=record)

A case makes everything that it needs out of its own generator of random numbers, so that the number of a failed case
is enough to repeat it. The test suite runs the first few cases of each campaign through `failures`.
"""

from __future__ import annotations

import json
import random
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from bench.harness import Result
from exop import Platform

#: Runs one case and returns its outcome in a word or two; an `AssertionError` is a broken promise of ExoP.
Case: TypeAlias = Callable[[random.Random], str]

#: Progress is printed this often, in seconds.
PROGRESS = 5.0


@dataclass(frozen=True)
class Outcome:
    """The result of one case; `failure` is the traceback of a broken promise."""

    case: int
    outcome: str
    failure: str | None = None


def carry_out(
    name: str, case: Case, *, runs: int, seed: int = 0, record: Path | None = None, only: int | None = None
) -> Iterator[Result]:
    """Run the cases 0 to *runs* - 1 that *record* does not hold yet; yield how many ended in which way.

    Args:
        name: The path of the results.
        case: What is run, with a generator seeded by *seed* and the number of the case.
        runs: How many cases there are.
        seed: Another seed is another campaign; it needs another record.
        record: A file that gets one JSON line for each case; a second run goes on behind the last one.
        only: Run this one case, to repeat a failure.
    """
    done = _recorded(record)
    missing = [only] if only is not None else [number for number in range(runs) if number not in done]
    shown = time.monotonic()
    for number in missing:
        outcome = _outcome(case, seed, number)
        done[number] = outcome
        if record is not None:
            with record.open("a") as file:
                file.write(json.dumps(vars(outcome)) + "\n")
        if outcome.failure is not None:
            print(f"{name}: case {number} (seed {seed}) failed\n{outcome.failure}", file=sys.stderr, flush=True)
        if time.monotonic() - shown > PROGRESS:
            shown = time.monotonic()
            failed = sum(one.failure is not None for one in done.values())
            print(f"{name}: {len(done)} of {runs} cases, {failed} failed", file=sys.stderr, flush=True)
    counts = Counter(one.outcome for one in done.values() if one.failure is None)
    for outcome_name, count in sorted(counts.items()):
        yield Result(f"{name}/outcome/{outcome_name.replace(' ', '-')}", count, "cases")
    yield Result(f"{name}/cases", len(done), "cases")
    yield Result(f"{name}/failures", sum(one.failure is not None for one in done.values()), "cases")


def failures(case: Case, runs: int, seed: int = 0) -> list[str]:
    """The tracebacks of the first *runs* cases that fail; the short form of a campaign in the test suite."""
    found = (_outcome(case, seed, number) for number in range(runs))
    return [f"case {one.case}: {one.failure}" for one in found if one.failure is not None]


def _outcome(case: Case, seed: int, number: int) -> Outcome:
    try:
        return Outcome(number, case(random.Random(f"{seed}/{number}")))
    except Exception:  # noqa: BLE001 - whatever a case raises is a finding, and the campaign goes on
        return Outcome(number, "failed", traceback.format_exc())


def _recorded(record: Path | None) -> dict[int, Outcome]:
    """The outcomes in *record*; a case that failed runs again, and one whose line was cut off by a kill."""
    if record is None or not record.exists():
        return {}
    lines = record.read_text().splitlines(keepends=True)
    whole = [line for line in lines if line.endswith("\n")]
    if len(whole) < len(lines):
        record.write_text("".join(whole))
    found = (Outcome(**json.loads(line)) for line in whole)
    return {one.case: one for one in found if one.failure is None}


@contextmanager
def state_at_rest(platform: Platform) -> Iterator[None]:
    """Let a copy of the state directory be what a crash leaves: no change is under way, and no transaction.

    A pending line that takes effect is stored outside of all changes.
    """
    store = platform._applications.store
    with ExitStack() as held:
        for name in platform.applications():
            held.enter_context(platform.deployment(name).changing)
        if store is not None:
            held.enter_context(store.database._turn)
        yield
