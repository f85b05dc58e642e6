"""What a move costs is estimated from samples of the state."""

from __future__ import annotations

from dataclasses import field
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from exop import Memento
from exop.model.slets.stored_memento import dump_memento
from exop.model.values.pieces import LARGE, large_parts
from exop.wiring.changes.arrivals import MoveCost, estimated

BATCH = pa.record_batch([np.arange(LARGE)], names=["n"])


class State(Memento):
    """A state of several kinds."""

    name: str = ""
    keys: dict[Any, Any] = field(default_factory=dict)
    rows: list[Any] = field(default_factory=list)


def cost(**state: Any) -> MoveCost:
    """The estimate for a state."""
    made = State(**state)
    return estimated(made, [*large_parts(made)])


def test_a_small_state_travels_in_the_cut():
    """Its bytes are counted, without the header of a stored memento."""
    state = {"name": "x", "keys": {1: 2.0}, "rows": [3]}
    found = cost(**state)
    assert found["ahead"] == 0
    assert found["whole"] == ""
    assert 0 < found["cut"] < len(dump_memento(State(**state), "n"))


@pytest.mark.parametrize("value", [bytes(1000), [bytes(1000)]], ids=["immutable", "mutable"])
def test_a_large_dict_travels_ahead(value: Any):
    """Its size is that of the sample, many times."""
    found = cost(keys=dict.fromkeys(range(100_000), value))
    assert found["ahead"] == pytest.approx(100_800_000, rel=0.02)
    assert found["cut"] < 100
    assert found["whole"] == ""


def test_columns_travel_ahead():
    """Each once, also if two fields have it."""
    found = cost(rows=[BATCH, BATCH], keys={1: BATCH})
    assert BATCH.nbytes <= found["ahead"] < BATCH.nbytes + 100
    assert found["cut"] < 100


def test_a_large_list_is_one_piece_that_travels_in_the_cut():
    """It is named."""
    found = cost(rows=[float(n) for n in range(1_000_000)], keys={1: 2})
    assert found["ahead"] == 0
    assert found["cut"] == pytest.approx(9_000_000, rel=0.02)
    assert found["whole"] == "rows"
