"""`make demo`: Linear Road with its data pipeline on Spark, from traffic to verdict.

    python -m apps.linear_road.demo [--pipeline spark|native] [--minutes M] [--speed N] [--seed S] [--into FOLDER]

Generates traffic, runs the application through `exop run` with live progress, replaces a running Spark query by its
native twin and back meanwhile, has the validator judge every answer, and draws the response times and the mesh.

The traffic goes as fast as was asked, or down to two thirds of that while the machine is too busy to answer in time.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from apps.linear_road.generate import generate
from apps.linear_road.live_changes import Operator, replacements
from apps.linear_road.pace import Pace
from apps.linear_road.terminal import Progress, run_command
from apps.linear_road.traffic_model.settings import Settings
from apps.linear_road.validate import parser as validate_parser
from apps.linear_road.validate import validate
from apps.linear_road.validation.verdict import Verdict

HERE = Path(__file__).parent


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = argparse.ArgumentParser(prog="python -m apps.linear_road.demo", description=(__doc__ or "").split("\n")[0])
    made.add_argument("--pipeline", choices=("spark", "native"), default="spark", help="who runs the data pipeline")
    made.add_argument("--minutes", type=int, default=20, help="minutes of traffic on one road (20)")
    made.add_argument("--speed", type=float, default=12.0, help="how many times faster than real time, at most (12)")
    made.add_argument("--seed", type=int, default=1, help="another seed is other traffic (1)")
    made.add_argument("--into", type=Path, default=Path("demo"), help="the folder for all files (demo)")
    return made


def command(arguments: Sequence[str]) -> int:
    """Run the demo; 0 when every answer is right, and in time unless the machine had no core to spare."""
    options = parser().parse_args(arguments)
    begun = time.monotonic()
    options.into.mkdir(parents=True, exist_ok=True)
    traffic, history, output = (options.into / name for name in ("traffic.csv", "history.csv", "answers.csv"))
    pace = Pace(options.speed)
    _say(f"1  {options.minutes} minutes of traffic on one road, seed {options.seed}")
    _generate(options, traffic, history, pace)
    _say(f"2  Linear Road at {pace.speed:.3g} times real time, data pipeline: {options.pipeline}")
    operator, code = _run(options, pace, traffic, history, output)
    print("".join(f"   {line}\n" for line in pace.text().splitlines()), end="")
    if code:
        print(f"   the run failed with exit code {code}", file=sys.stderr)
        return code
    if operator.changes:
        _say("3  what was changed meanwhile, from another terminal")
        print(operator.report())
    _say("4  every answer against the validator's slow and simple reference")
    verdict = validate(
        traffic, history, output, validate_parser().parse_args([str(traffic), str(history), str(output)])
    )
    print(verdict.text())
    _say("5  pictures")
    _draw(options.into, traffic, history, output, options.pipeline)
    code, said = outcome(verdict, pace, operator.right, operator.missed)
    print(f"\n{said} after {time.monotonic() - begun:.0f} s")
    return code


def outcome(verdict: Verdict, pace: Pace, changes_right: bool, missed: str = "") -> tuple[int, str]:
    """The exit code and how it is said: wrong answers fail, and late ones that the machine is not to blame for.

    *missed* tells of changes for which there was too little time; the machine may be to blame for them as well.
    """
    late = f"every answer is right, {verdict.late:,} are late{missed}"
    if not verdict.right:
        return verdict.exit_code, "FAILED"
    if not changes_right:
        return 1, "FAILED: every answer is right, a change did not end as it was to end"
    if not verdict.late and not missed:
        return 0, "PASSED"
    if pace.saturated:
        return 0, f"PASSED: {late}: this machine was too busy or is too slow for {pace.speed:.3g} times real time;"
    return 1, f"FAILED: {late}, though the machine had a core to spare;"


def _generate(options: argparse.Namespace, traffic: Path, history: Path, pace: Pace) -> None:
    """Make the traffic, and measure how busy the machine is."""
    with Progress() as progress, pace.calibrated():
        facts = generate(Settings(xways=1, minutes=options.minutes, seed=options.seed), traffic, history, progress)
    print(f"   {facts['rows']:,} tuples, {len(facts['accidents'])} accidents, {facts['vehicles']:,} vehicles")


def _run(options: argparse.Namespace, pace: Pace, traffic: Path, history: Path, output: Path) -> tuple[Operator, int]:
    """Run the application as a user would, in a process of its own; keep its pace, and change it meanwhile."""
    arguments = [f"input={traffic}", f"history={history}", f"output={output}", f"pipeline={options.pipeline}"]
    arguments += [f"speed={pace.speed:g}", "--on-failure", "stop"]
    process = subprocess.Popen([sys.executable, "-m", "exop", "run", str(HERE), *arguments])
    changes = replacements() if options.pipeline == "spark" else []
    operator = Operator(process.pid, options.minutes * 60, pace, changes)
    operator.start()
    try:
        code = process.wait()
    except KeyboardInterrupt:
        process.wait()  # it got the same Ctrl-C, and drains
        raise
    operator.leave()
    return operator, code


def _draw(into: Path, traffic: Path, history: Path, output: Path, pipeline: str) -> None:
    # matplotlib takes a second to load: only those who draw wait for it.
    from apps.linear_road.builder import linear_road
    from apps.linear_road.pictures import draw_mesh, draw_response_times

    mesh = linear_road(
        input=traffic, history=history, output=output, pipeline="native" if pipeline == "native" else "spark"
    ).build()
    for picture in (
        draw_response_times(output, into / "response-times.png"),
        draw_mesh(mesh, into / "mesh.png"),
    ):
        print(f"   {picture}")


def _say(text: str) -> None:
    print(f"\n{text}", flush=True)


if __name__ == "__main__":
    run_command("demo", command, sys.argv[1:])
