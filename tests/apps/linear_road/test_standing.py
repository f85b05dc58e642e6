"""Accident detection as a function of Spark's: the same as one report at a time, however the reports are batched."""

from collections import defaultdict

import numpy as np
import pandas as pd
import pytest

from apps.linear_road.standing import detect

LANES, EXIT, ENTRY = (0, 1, 2, 3), 4, 0
SEEDS = range(4)


class State:
    """What Spark keeps for a group between micro-batches."""

    def __init__(self):
        self.get = ()

    @property
    def exists(self):
        """Something was kept."""
        return bool(self.get)

    def update(self, value):
        """Keep a value: bytes only, as the state's columns are."""
        assert all(isinstance(part, bytes) for part in value)
        self.get = value


def place_of(xway, direction, lane, segment, position):
    """A place as one number, as the query computes it."""
    return ((((xway * 2 + direction) * 8 + lane) * 128 + segment) << 20) + position


def events_of(reports, cuts):
    """The events of (time, vid, place) reports, in batches that end at *cuts*: of every batch in the order of time."""
    frame = pd.DataFrame(reports, columns=["time", "vid", "place"]).rename_axis("_row").reset_index()
    states, found = defaultdict(State), []
    for start, stop in zip([0, *cuts], [*cuts, len(frame)], strict=True):
        batch, events = frame[start:stop], []
        for road, group in batch.groupby(batch["place"] // (1 << 30)):
            # Spark may hand over one group in pieces, in any order.
            pieces = [piece for piece in (group[1::2], group[::2]) if len(piece)]
            for some in detect((road,), pieces, states[road]):
                events += some.itertuples(index=False, name=None)
        found += sorted(events)
    return found


def one_by_one(reports):
    """The same by the definition: four reports in a row from one place, two vehicles there."""
    last, in_a_row, standing, found = {}, {}, defaultdict(set), []
    for time, vid, place in reports:
        before = last.get(vid)
        if before == place:
            in_a_row[vid] += 1
        else:
            if in_a_row.get(vid, 0) >= 4:
                standing[before].discard(vid)
                if len(standing[before]) == 1:
                    found.append((time, before, 1))
            last[vid], in_a_row[vid] = place, 1
        if in_a_row[vid] == 4:
            standing[place].add(vid)
            if len(standing[place]) == 2:
                found.append((time, place, 0))
    return found


def random_reports(seed):
    """Vehicles that mostly stay where they are, at few places of a road, and leave it by the ramp now and then."""
    rng = np.random.default_rng(seed)
    at, found = {}, []
    for time in range(0, 1200, 3):
        vid = int(rng.integers(1, 9))
        if vid not in at or rng.random() < 0.12:
            enters = vid not in at or at[vid][2] == EXIT
            lane = ENTRY if enters else int(rng.choice([*LANES, EXIT]))
            road = rng.integers(0, 2, 2).tolist() if enters else at[vid][:2]
            segment = int(rng.integers(0, 2))
            at[vid] = (*road, lane, segment, segment * 5280)
        elif at[vid][2] == EXIT:
            at[vid] = (at[vid][0], at[vid][1], ENTRY, *at[vid][3:])
        found.append((time, vid, place_of(*at[vid])))
    return found


def described(time, place, cleared):
    """An event as it leaves."""
    road, lane, segment, position = place >> 30, place >> 27 & 7, place >> 20 & 127, place & 0xFFFFF
    return (time // 60 + 1, time, road >> 1, road & 1, segment, lane, position, cleared)


@pytest.mark.parametrize("seed", SEEDS)
def test_batches_do_not_matter(seed):
    """Row by row, in two pieces, or in random ones: the events are those of the definition, in their order."""
    reports = random_reports(seed)
    expected = [described(*event) for event in one_by_one(reports)]
    rng = np.random.default_rng(seed)
    random_cuts = sorted(rng.integers(0, len(reports) + 1, 20).tolist())
    singly = [range(1, len(reports))] if seed == SEEDS[0] else []
    for cuts in ([], [len(reports) // 2], random_cuts, *singly):
        assert events_of(reports, cuts) == expected


def test_the_traffic_of_these_tests_has_accidents():
    """Detected and cleared ones: otherwise the comparison would prove nothing."""
    found = [event for seed in SEEDS for event in one_by_one(random_reports(seed))]
    assert sum(cleared for *_, cleared in found) > 5
    assert sum(not cleared for *_, cleared in found) > 5


def test_a_vehicle_that_has_left_is_forgotten():
    """After the exit lane the next trip starts anew: nothing has to be kept for it."""
    state = State()
    reports = [(0, 1, place_of(0, 0, 1, 3, 16000)), (30, 1, place_of(0, 0, EXIT, 3, 16100))]
    frame = pd.DataFrame(reports, columns=["time", "vid", "place"]).rename_axis("_row").reset_index()
    list(detect((0,), [frame[:1]], state))
    assert state.get[0] != b""
    list(detect((0,), [frame[1:]], state))
    assert state.get == (b"", b"")
