"""`python -m bench QUESTION [--json] [options]`: answer one question about speed.

Without a question, the questions are listed. `python -m bench QUESTION --help` shows the options of one. Results are
printed as a table with the goals beside them, and last as one JSON object; with `--json` as that object alone. With
`--check` the exit code is 1 when a goal was missed.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from bench.questions import add_options, load, questions
from bench.report import as_json, load_goals, table


def main(arguments: Sequence[str] | None = None) -> int:
    """Answer the question in *arguments*; return the exit code."""
    known = questions()
    given = list(sys.argv[1:] if arguments is None else arguments)
    if not given or given[0] in ("-h", "--help"):
        print(_overview(known))
        return 0
    question = given[0]
    if question not in known:
        print(f"no question {question!r}; known: {', '.join(known)}", file=sys.stderr)
        return 2
    try:
        measure = load(question)
    except ModuleNotFoundError as missing:
        print(
            f"the question {question!r} needs the package {missing.name!r}; install it and ask again", file=sys.stderr
        )
        return 2
    parser = argparse.ArgumentParser(prog=f"python -m bench {question}", description=known[question])
    parser.add_argument("--json", action="store_true", help="print the JSON object alone")
    parser.add_argument("--check", action="store_true", help="end with exit code 1 when a goal is missed")
    names = add_options(parser, measure)
    chosen = parser.parse_args(given[1:])
    results, goals = [], load_goals()
    for result in measure(**{name: getattr(chosen, name) for name in names}):
        results.append(result)
        print(f"{result.name}: {result.value:.4g} {result.unit}", file=sys.stderr, flush=True)
    if not chosen.json:
        print(table(results, goals), end="\n\n")
    print(as_json(question, results))
    asked, measured = {one.name.partition("/")[0] for one in results}, {one.name for one in results}
    if left := [name for name in goals if name.partition("/")[0] in asked and name not in measured]:
        print(f"not measured (other options, or no such case): {', '.join(left)}", file=sys.stderr)
    missed = [result.name for result in results if result.name in goals and not goals[result.name].met(result)]
    return 1 if chosen.check and missed else 0


def _overview(known: dict[str, str]) -> str:
    width = max(map(len, known), default=0)
    lines = [f"  {name.ljust(width)}  {words}" for name, words in known.items()]
    return "\n".join(["usage: python -m bench QUESTION [--json] [--check] [options]", "", "questions:", *lines])


if __name__ == "__main__":
    sys.exit(main())
