"""The questions that drivers ask, and the history that answers some of them."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from apps.linear_road.traffic_model.cars import Integers
from apps.linear_road.traffic_model.settings import Settings

#: The fields of an input line, in their order.
FIELDS = (
    "type",
    "time",
    "vid",
    "spd",
    "xway",
    "lane",
    "dir",
    "seg",
    "pos",
    "qid",
    "s_init",
    "s_end",
    "dow",
    "tod",
    "day",
)
TIME, VID, XWAY, QID, DAY = 1, 2, 4, 9, 14
BALANCE, EXPENDITURE = 2, 3
DAYS = 69

#: One report in so many carries a question: half of them for the balance, a tenth for a day's expenditure; the
#: remainder would be for the travel time (type 4), which is left out of the stream.
ASKED_EVERY = 100
SHARE_OF_BALANCES, SHARE_OF_EXPENDITURES = 0.5, 0.1
#: So many of the days asked for have a row in the history, and so many of those have two, which add up.
SHARE_KNOWN, SHARE_DOUBLE = 0.9, 0.05
#: Rows of other days and roads per vehicle that asks.
OTHER_ROWS = 3


class Questions:
    """Adds questions to reports and remembers what a history must hold."""

    def __init__(self, settings: Settings, rng: np.random.Generator) -> None:
        self._roads = settings.roads
        self._rng = rng
        self._next = 1
        self._history: list[Integers] = []
        self.balances = 0
        self.expenditures = 0

    def ask(self, reports: Integers) -> Integers:
        """Give *reports* (rows of 15 fields) with questions between them, each behind the report it came with."""
        asked = np.flatnonzero(self._rng.random(len(reports)) < 1 / ASKED_EVERY)
        kind = self._rng.random(len(asked))
        balance = kind < SHARE_OF_BALANCES
        wanted = kind < SHARE_OF_BALANCES + SHARE_OF_EXPENDITURES
        asked, balance = asked[wanted], balance[wanted]
        rows: Integers = np.full((len(asked), len(FIELDS)), -1, np.int32)
        rows[:, 0] = np.where(balance, BALANCE, EXPENDITURE)
        rows[:, [TIME, VID]] = reports[asked][:, [TIME, VID]]
        rows[:, QID] = np.arange(self._next, self._next + len(asked))
        self._next += len(asked)
        self._add_day(rows, ~balance)
        self.balances += int(balance.sum())
        self.expenditures += int((~balance).sum())
        return np.insert(reports, asked + 1, rows, axis=0)

    def _add_day(self, rows: Integers, expenditure: NDArray[np.bool_]) -> None:
        """Complete the questions for an expenditure, and put most of their answers into the history."""
        number = int(expenditure.sum())
        rows[expenditure, XWAY] = self._rng.integers(0, self._roads, number)
        rows[expenditure, DAY] = self._rng.integers(1, DAYS + 1, number)
        asked = rows[expenditure][:, [VID, DAY, XWAY]]
        known = asked[self._rng.random(number) < SHARE_KNOWN]
        twice = known[self._rng.random(len(known)) < SHARE_DOUBLE]
        others = np.repeat(asked, OTHER_ROWS, axis=0)
        others[:, 1] = self._rng.integers(1, DAYS + 1, len(others))
        others[:, 2] = self._rng.integers(0, self._roads, len(others))
        rows_of_history = np.concatenate([known, twice, others])
        tolls = self._rng.integers(10, 100, (len(rows_of_history), 1))
        self._history.append(np.concatenate([rows_of_history, tolls], axis=1).astype(np.int32))

    def history(self) -> Integers:
        """Rows of VID, Day, XWay, Toll, ordered."""
        rows: NDArray[Any] = np.concatenate([np.empty((0, 4), np.int32), *self._history])
        return rows[np.lexsort(rows.T[::-1])]
