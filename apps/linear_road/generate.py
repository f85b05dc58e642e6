"""`python -m apps.linear_road.generate`: traffic of its own making for Linear Road, the same for the same seed."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, fields
from pathlib import Path
from time import monotonic
from typing import Any

from apps.linear_road.table_files import UnwritableFile, table_file
from apps.linear_road.terminal import Progress, run_command
from apps.linear_road.traffic_model.settings import Settings

HISTORY_FIELDS = ("vid", "day", "xway", "toll")
HELP = {
    "xways": "expressways; 0.5 is one direction of one",
    "minutes": "how long the traffic lasts",
    "seed": "the same seed gives the same bytes",
    "cars_per_minute": "trips begun per minute and road in the beginning",
    "peak": "how many times that in minute 90 (half a sine over 180 minutes)",
    "accident_gap": "minutes from an accident to the next one of the road, varying by half",
    "accident_length": "minutes that the cars of an accident stand, varying by half",
    "jams": "traffic jams at a time per direction of a road",
}


def generate(settings: Settings, out: Path, history: Path, progress: Progress) -> dict[str, Any]:
    """Write traffic and history and give the facts about them; a run that is cut short leaves no file behind."""
    from apps.linear_road.traffic_model.questions import FIELDS  # NumPy is slow to load: help and errors do without it
    from apps.linear_road.traffic_model.simulation import Simulation

    if out.absolute() == history.absolute():
        raise UnwritableFile(path=out, problem="traffic and history are the same file", cure="give them two names")
    begun, rows = monotonic(), 0
    simulation = Simulation(settings)
    with ExitStack() as files:
        history_file = files.enter_context(table_file(history, HISTORY_FIELDS))
        traffic_file = files.enter_context(table_file(out, FIELDS))
        for minute, chunk in enumerate(simulation.minutes(), start=1):
            traffic_file.write(chunk)
            rows += len(chunk)
            progress.show(_bar(minute, settings.minutes, rows, monotonic() - begun))
        past = simulation.questions.history()
        history_file.write(past)
    questions = simulation.questions
    return {
        "settings": asdict(settings),
        "traffic": str(out),
        "history": str(history),
        "rows": rows,
        "reports": rows - questions.balances - questions.expenditures,
        "balance_questions": questions.balances,
        "expenditure_questions": questions.expenditures,
        "history_rows": len(past),
        "vehicles": simulation.vehicles,
        "trips": simulation.trips,
        "accidents": [asdict(accident) for accident in simulation.incidents.accidents],
        "lookalikes": simulation.incidents.lookalikes,
        "rows_in_last_minute": len(chunk),
        "seconds": round(monotonic() - begun, 3),
    }


def _bar(minute: int, minutes: int, rows: int, elapsed: float) -> str:
    done = 30 * minute // minutes
    # the load grows, so what is left takes longer than the share of the minutes says
    return f"[{'#' * done}{'.' * (30 - done)}] minute {minute} of {minutes}, {rows:,} tuples, {elapsed:.0f} s"


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = argparse.ArgumentParser(
        prog="python -m apps.linear_road.generate",
        description="Generate traffic for Linear Road: cars, jams, accidents, questions, and the history they ask for.",
        epilog="Files are CSV, or by their suffix .gz, .xz or .parquet. Travel time questions (type 4) are left out.",
    )
    for setting in fields(Settings):
        kind = {"float": float, "int": int}[str(setting.type)]
        made.add_argument(
            "--" + setting.name.replace("_", "-"),
            type=kind,
            default=setting.default,
            metavar="N",
            help=f"{HELP[setting.name]} ({setting.default})",
        )
    made.add_argument("--out", type=Path, required=True, metavar="FILE", help="the traffic")
    made.add_argument(
        "--history", type=Path, required=True, metavar="FILE", help="tolls of days 1..69: VID,Day,XWay,Toll"
    )
    made.add_argument("--json", action="store_true", help="print the facts as one JSON object")
    return made


def command(arguments: Sequence[str]) -> int:
    """Generate, and say what came out."""
    options = vars(parser().parse_args(arguments))
    as_json, out, history = options.pop("json"), options.pop("out"), options.pop("history")
    with Progress() as progress:
        facts = generate(Settings(**options), out, history, progress)
    print(json.dumps(facts, indent=2) if as_json else _sentence(facts))
    return 0


def _sentence(facts: dict[str, Any]) -> str:
    minutes, roads = facts["settings"]["minutes"], facts["settings"]["xways"]
    return (
        f"{facts['traffic']}: {facts['rows']:,} tuples, {minutes} minutes of {roads:g} road(s), "
        f"{facts['vehicles']:,} vehicles, {len(facts['accidents'])} accidents, "
        f"{facts['balance_questions']:,} + {facts['expenditure_questions']:,} questions\n"
        f"{facts['history']}: {facts['history_rows']:,} rows"
    )


if __name__ == "__main__":
    run_command("generate", command, sys.argv[1:])
