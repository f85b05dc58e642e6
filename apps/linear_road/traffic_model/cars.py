"""The cars on the road and how they move in half a minute.

A *way* is one direction of one road: 2 * road + direction. Inside the model every car drives upwards, `x` feet from
the beginning of its way, through the segments 0..99 *of the way*; only what is written out knows that in the west
positions shrink.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

SEGMENTS = 100
FEET = 5_280
#: Feet in 30 seconds at 1 mph.
FEET_PER_MPH = 44
SLOWEST, FASTEST = 5, 100
RAMP_SPEED = 38
ENTRY_SPEED = 10
EXIT_LANE = 4

CAR = np.dtype(
    [
        ("vid", np.int32),
        ("way", np.int32),
        ("x", np.int32),
        ("lane", np.int32),
        ("speed", np.int32),
        ("leaves", np.int32),  # the segment to leave in
        ("straight", np.bool_),  # leaves by crossing into the exit lane of the next segment
        ("ramp", np.int32),  # reports still to be made from the entry ramp
        ("haste", np.float32),  # own speed against that of the others
        ("stand", np.int32),  # reports still to be made from the place below
        ("stand_x", np.int32),
        ("stand_lane", np.int32),
        ("stand_speed", np.int32),  # what the speedometer says meanwhile: rarely not 0
        ("sways", np.bool_),  # changes the lane back and forth while it stands: that is movement
    ]
)

#: Cars that report in the same second of every half minute.
Cars: TypeAlias = NDArray[Any]
Integers: TypeAlias = NDArray[np.int32]
Floats: TypeAlias = NDArray[np.float64]


def entering(vids: Integers, ways: Integers, segments: Integers, rng: np.random.Generator) -> Cars:
    """Cars that begin a trip at the upstream end of a segment, on its entry ramp."""
    number = len(vids)
    cars = np.zeros(number, CAR)
    cars["vid"], cars["way"], cars["x"] = vids, ways, segments * FEET
    cars["speed"] = ENTRY_SPEED
    # many trips are short; some leave by the ramp of the very segment
    mean = np.where(rng.random(number) < 0.3, 5.0, 50.0)
    cars["leaves"] = np.minimum(segments + rng.exponential(mean).astype(np.int32), SEGMENTS - 1)
    cars["straight"] = rng.random(number) < 0.5
    cars["ramp"] = rng.integers(0, 4, number)
    cars["haste"] = np.clip(rng.normal(1.0, 0.08, number), 0.7, 1.3)
    return cars


def segment_of(cars: Cars) -> Integers:
    """The segment of the way that each car is in."""
    found: Integers = cars["x"] // FEET
    return found


def places_of(cars: Cars) -> Integers:
    """Way and segment as one number."""
    found: Integers = cars["way"] * SEGMENTS + segment_of(cars)
    return found


def drive(cars: Cars, limits: Floats, rng: np.random.Generator) -> None:
    """Move every car to where it is 30 seconds later, in place; *limits* holds the speed at every place."""
    number = len(cars)
    before = segment_of(cars)
    wish = limits[places_of(cars)] * cars["haste"] + rng.normal(0.0, 3.0, number)
    on_ramp = cars["ramp"] > 0
    wish = np.where(on_ramp, np.minimum(wish, RAMP_SPEED), wish)
    speed = np.clip(np.rint(wish), SLOWEST, FASTEST).astype(np.int32)
    x = cars["x"] + FEET_PER_MPH * speed
    lane = _lanes(cars, on_ramp, rng)
    arrives = x // FEET >= cars["leaves"]
    x = np.where(arrives, np.minimum(x, cars["leaves"] * FEET + FEET - 1), x)
    lane[arrives & (cars["straight"] | (before == cars["leaves"]))] = EXIT_LANE
    standing = cars["stand"] > 0
    cars["speed"] = np.where(standing, cars["stand_speed"], speed)
    cars["x"] = np.where(standing, cars["stand_x"], x)
    swing = cars["sways"] * (cars["stand"] // 2 % 2)
    cars["lane"] = np.where(standing, cars["stand_lane"] + swing, lane)
    cars["ramp"] = np.maximum(cars["ramp"] - 1, 0)
    cars["stand"] = np.maximum(cars["stand"] - 1, 0)


def _lanes(cars: Cars, on_ramp: NDArray[np.bool_], rng: np.random.Generator) -> Integers:
    """The ramp until its end, then a travel lane that is changed now and then."""
    drawn = rng.integers(1, 4, len(cars), dtype=np.int32)
    changes = (cars["lane"] == 0) | (rng.random(len(cars)) < 0.3)
    lanes: Integers = np.where(on_ramp, 0, np.where(changes, drawn, cars["lane"])).astype(np.int32)
    return lanes
