"""`python -m apps.linear_road.validate INPUT HISTORY OUTPUT`: is every answer there, once, right and in time?"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from fractions import Fraction
from itertools import takewhile
from pathlib import Path

from apps.linear_road.terminal import Progress, run_command
from apps.linear_road.validation.comparison import Comparison, Tolerance
from apps.linear_road.validation.given import FORMS, GivenAnswers
from apps.linear_road.validation.reading import Tuples, read_history
from apps.linear_road.validation.reference import Reference
from apps.linear_road.validation.values import Row
from apps.linear_road.validation.verdict import Verdict

EXIT_CODES = """\
exit code 0: nothing missing, extra, repeated, wrong or late
          1: differences, counted and shown
          2: a file or a line of the output or history cannot be read"""


def validate(traffic: Path, history: Path, output: Path, options: argparse.Namespace) -> Verdict:
    """Answer *traffic* with the reference and compare *output* with that."""
    verdict = Verdict(options.show)
    tuples = Tuples(traffic)
    reference = Reference(read_history(history))
    given = GivenAnswers.read(output, options.until)
    comparison = Comparison(given, verdict, Tolerance(options.lav_tolerance, options.strict_balance))
    comparison.compare(reference.answers(_watched(tuples, options.until)))
    verdict.rows, verdict.rejected, verdict.rejected_examples = tuples.accepted, tuples.rejected, tuples.examples
    return verdict


def _watched(tuples: Tuples, until: int | None) -> Iterator[Row]:
    """Show the simulated minute while the reference works; stop after second *until*."""
    minute = -1
    with Progress() as progress:
        for row in takewhile(lambda row: until is None or row[1] <= until, tuples):
            if row[1] // 60 != minute:
                minute = row[1] // 60
                progress.show(f"minute {minute + 1}: {tuples.accepted:,} tuples answered by the reference")
            yield row


def parser() -> argparse.ArgumentParser:
    """The command line."""
    forms = "\n".join(f"  {form}" for form in FORMS.values())
    made = argparse.ArgumentParser(
        prog="python -m apps.linear_road.validate",
        description="Compare an output with a slow, obviously right implementation of the rules.",
        epilog=f"lines of OUTPUT:\n{forms}\n\n{EXIT_CODES}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.add_argument("input", type=Path, metavar="INPUT", help="the traffic: .csv, .csv.gz, .csv.xz or .parquet")
    made.add_argument("history", type=Path, metavar="HISTORY", help="VID,Day,XWay,Toll in the same formats")
    made.add_argument("output", type=Path, metavar="OUTPUT", help="what the system answered, in any order")
    made.add_argument("--until", type=int, metavar="SECONDS", help="judge only questions up to this second, included")
    made.add_argument("--strict-balance", action="store_true", help="accept no balance of an earlier moment")
    made.add_argument("--lav-tolerance", type=Fraction, default=1, metavar="MPH", help="how far off a LAV may be (1)")
    made.add_argument("--show", type=int, default=3, metavar="N", help="examples per kind of mistake (3)")
    made.add_argument("--json", action="store_true", help="print the verdict as one JSON object")
    return made


def command(arguments: Sequence[str]) -> int:
    """Validate, print the verdict, and give the exit code."""
    options = parser().parse_args(arguments)
    verdict = validate(options.input, options.history, options.output, options)
    print(json.dumps(verdict.facts(), indent=2) if options.json else verdict.text())
    return verdict.exit_code


if __name__ == "__main__":
    run_command("validate", command, sys.argv[1:])
