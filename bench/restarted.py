"""The peer of the bench `replace`: the same slets in a plain loop, in a process that is stopped and started anew.

`python -m bench.restarted STATE` goes on from the state in that file if there is one, and tells how long nothing
came to its sink; on SIGTERM it writes its state there and leaves.
"""

from __future__ import annotations

import os
import pickle
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import FrameType

from bench.harness import Result
from bench.replaced import Hash, Position, Seen, first, numbers

ROOT = Path(__file__).parents[1]
#: So many items come after a restart before the process is stopped again.
ENOUGH = 50_000


def main(path: Path) -> None:
    """Go on until SIGTERM."""
    position, state, seen, last = Position(), Hash(), Seen(), 0
    if path.exists():
        position, state, seen, last = pickle.loads(path.read_bytes())
    leaving: list[int] = []

    def leave(number: int, _: FrameType | None) -> None:
        leaving.append(number)

    signal.signal(signal.SIGTERM, leave)
    begin, told = position.number + 1, position.number + ENOUGH
    for number in numbers(position):
        now = time.perf_counter_ns()  # the clock of the machine: it goes on while no process runs
        if number == begin and last:
            print("gap", (now - last) / 1e6, flush=True)
        last = now
        seen.see(first(number, state))
        if number == told:
            print("runs", seen.lost + seen.doubled + seen.reordered + seen.differing, flush=True)
        if leaving:
            break
    path.write_bytes(pickle.dumps((position, state, seen, last)))


def restarts(number: int) -> Result:
    """Restart the process again and again; the longest gap that each restart makes."""
    with tempfile.TemporaryDirectory() as folder:
        state = Path(folder) / "state"
        _one_life(state)  # it begins, and does not go on
        gaps = [_one_life(state) for _ in range(number)]
    return Result("replace/restart/median", statistics.median(gaps), "ms", samples=gaps)


def _one_life(state: Path) -> float:
    """Let the process run until it has come into its stride, stop it, and tell how long nothing came before."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "bench.restarted", str(state)]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        gaps = []
        for line in process.stdout:
            word, value = line.split()
            if word == "gap":
                gaps.append(float(value))
            elif int(value):
                raise RuntimeError(f"{value} items were lost, doubled or reordered by the restart")
            else:
                process.terminate()
        if process.wait() != 0:
            raise RuntimeError(f"the process ended with exit code {process.returncode}")
    return gaps[0] if gaps else 0.0


if __name__ == "__main__":
    main(Path(sys.argv[1]))
