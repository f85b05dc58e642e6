"""Making readings with a seed: `python -m apps.sensors.readings FOLDER [--sensors N] [--minutes M] [--seed S]`.

The folder gets `readings-0.csv`, … with one line for each reading, in the order of arrival, and `sensors.csv` with the
places of the sensors and their limits, each of which is valid from a second on. Values are multiples of 1/16 degree,
the resolution of common sensors, so that sums are exact in any order.
"""

from __future__ import annotations

import argparse
import csv
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from exop.model.meshes.partitions import partition_of

#: The number of files, and of the partitions of a topic.
PARTITIONS: Final = 4
#: Seconds by which a reading may be behind a later one of its partition; otherwise it is late.
DELAY: Final = 5
#: Seconds between two readings of a sensor.
EVERY: Final = 5
#: The share of late readings, and of sensors that become too hot.
_LATE: Final = 0.005
_HOT: Final = 0.2
_PLACES: Final = ("roof", "hall", "cellar", "yard")


def partition_file(folder: Path, number: int) -> Path:
    """Return the file with the readings of a partition."""
    return folder / f"readings-{number}.csv"


def generate(folder: Path, *, sensors: int = 100, minutes: int = 20, seed: int = 1) -> int:
    """Write the files, and return the number of readings."""
    random = np.random.default_rng(seed)
    folder.mkdir(parents=True, exist_ok=True)
    arriving = {number: list[tuple[float, int, int, float]]() for number in range(PARTITIONS)}
    limits = list[tuple[int, int, str, float, float]]()
    for sensor in range(1, sensors + 1):
        times, values = _measured(random, minutes)
        delays = random.uniform(0, DELAY - 1, len(times))
        late = random.random(len(times)) < _LATE
        delays[late] += random.uniform(2 * DELAY, 120, late.sum())
        lines = zip(times + delays, times, values, strict=True)
        arriving[partition_of(sensor, PARTITIONS)] += [(float(a), int(t), sensor, float(v)) for a, t, v in lines]
        limits += _limits(random, sensor, minutes)
    for number, readings in arriving.items():
        _write(partition_file(folder, number), "time,sensor,value", (line[1:] for line in sorted(readings)))
    _write(folder / "sensors.csv", "sensor,since,place,lowest,highest", sorted(limits, key=lambda line: line[1]))
    return sum(map(len, arriving.values()))


def _measured(random: Any, minutes: int) -> tuple[Any, Any]:
    """Return the readings of a sensor: a slow walk, often a hot stretch, and at times silence."""
    times = np.arange(int(random.integers(EVERY)), minutes * 60, EVERY)
    values = random.uniform(18, 24) + np.cumsum(random.normal(0, 0.1, len(times)))
    if random.random() < _HOT:
        begin = random.integers(minutes * 60)
        values[(times >= begin) & (times < begin + random.integers(240, 720))] += 15
    begin = random.integers(4 * minutes * 60)
    heard = (times < begin) | (times >= begin + 180)
    return times[heard], (np.round(values * 16) / 16)[heard]


def _limits(random: Any, sensor: int, minutes: int) -> list[tuple[int, int, str, float, float]]:
    """Return the limits of a sensor; those of some become wider in the middle of the recording."""
    place, highest = _PLACES[sensor % len(_PLACES)], float(random.integers(28, 34))
    found = [(sensor, 0, place, 10.0, highest)]
    if random.random() < _HOT:
        found.append((sensor, minutes * 30, place, 5.0, highest + 10))
    return found


def _write(path: Path, head: str, lines: Iterable[Sequence[Any]]) -> None:
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([head.split(","), *lines])


def main(arguments: Sequence[str]) -> None:
    """Make readings as asked for on the command line."""
    parser = argparse.ArgumentParser(prog="python -m apps.sensors.readings", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("folder", type=Path, help="where the files go")
    parser.add_argument("--sensors", type=int, default=100, help="the number of sensors (100)")
    parser.add_argument("--minutes", type=int, default=20, help="the length of the recording (20)")
    parser.add_argument("--seed", type=int, default=1, help="another seed makes other readings (1)")
    options = parser.parse_args(arguments)
    number = generate(options.folder, sensors=options.sensors, minutes=options.minutes, seed=options.seed)
    print(f"{number:,} readings of {options.sensors} sensors in {options.folder}")


if __name__ == "__main__":
    main(sys.argv[1:])
