"""Accounts: what a vehicle owes now (type 2), and what it paid on a day of the past (type 3)."""

from collections.abc import Iterator
from dataclasses import field
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa

from exop import Memento, Punctuation, Slet, input_port

from .columns import column, columns, concatenated, grown, record_batch
from .history import History, load_history
from .schema import BALANCES, EXPENDITURES, Balances, Charges, Expenditures, Tuples
from .vehicles import vehicle_numbers

BALANCE: Final = 2
EXPENDITURE: Final = 3


class Ledger(Memento):
    """The sum of each vehicle's charges; charges and questions that wait until their second is complete."""

    balance: Any = field(default_factory=lambda: np.zeros(0, np.int64))
    sparse: dict[int, int] = field(default_factory=dict)
    charged: list[pa.RecordBatch] = field(default_factory=list)
    asked: list[pa.RecordBatch] = field(default_factory=list)
    charges_through: int = -1
    questions_through: int = -1


class Balance(Slet, name="balance"):
    """Answer type 2: the sum of a vehicle's charges, those of the question's own second included."""

    ledger: Ledger

    @input_port
    def charges(self, charges: Charges | Punctuation) -> Iterator[Balances]:
        """Tolls that became due; punctuation by second."""
        if isinstance(charges, Punctuation):
            self.ledger.charges_through = int(charges.time)
            yield from self._answers()
        elif charges.num_rows:
            self.ledger.charged.append(charges)

    @input_port
    def questions(self, tuples: Tuples | Punctuation) -> Iterator[Balances]:
        """The whole input, of which type 2 is picked; punctuation by second."""
        if isinstance(tuples, Punctuation):
            self.ledger.questions_through = int(tuples.time)
            yield from self._answers()
        elif (asked := _questions(tuples, BALANCE)) is not None:
            self.ledger.asked.append(asked)

    def _answers(self) -> Iterator[Balances]:
        """Answer what was asked in the seconds that are complete on both sides."""
        ledger = self.ledger
        through = min(ledger.charges_through, ledger.questions_through)
        now, ledger.asked = _until(ledger.asked, through)
        if now:
            times, vids, qids = concatenated(now, "time", "vid", "qid")
            for second in np.unique(times).tolist():
                self._charge(second)
                rows = times == second
                vehicles = vehicle_numbers(vids[rows], ledger.sparse)
                ledger.balance = grown(ledger.balance, int(vehicles.max()) + 1, 0)
                yield record_batch(BALANCES, times[rows], times[rows], qids[rows], ledger.balance[vehicles])
        self._charge(through)

    def _charge(self, through: int) -> None:
        """Book the charges through this second."""
        ledger = self.ledger
        now, ledger.charged = _until(ledger.charged, through)
        for batch in now:
            vids, amounts = columns(batch, "vid", "amount")
            vehicles = vehicle_numbers(vids, ledger.sparse)
            ledger.balance = grown(ledger.balance, int(vehicles.max()) + 1, 0)
            np.add.at(ledger.balance, vehicles, amounts)


class DailyExpenditure(Slet, name="daily_expenditure"):
    """Answer type 3 from the history of tolls, 0 where it has no row."""

    history: Path

    def __enter__(self) -> "DailyExpenditure":
        self._history: History = load_history(self.history)
        return self

    @input_port
    def questions(self, tuples: Tuples) -> Expenditures | None:
        """The whole input, of which type 3 is picked."""
        asked = _questions(tuples, EXPENDITURE)
        if asked is None:
            return None
        times, vids, days, xways, qids = columns(asked, "time", "vid", "day", "xway", "qid")
        return record_batch(EXPENDITURES, times, qids, self._history.spent(vids, days, xways))

    def metrics(self) -> dict[str, int | float | str]:
        """Return the number of rows of the history."""
        return {"history_rows": self._history.rows, "history_rejects": self._history.rejects}


def _questions(tuples: pa.RecordBatch, kind: int) -> pa.RecordBatch | None:
    """The rows of one type of question, if there are any."""
    wanted = column(tuples, "type") == kind
    return tuples.filter(pa.array(wanted)) if wanted.any() else None


def _until(batches: list[pa.RecordBatch], second: int) -> tuple[list[pa.RecordBatch], list[pa.RecordBatch]]:
    """Split batches ordered by time into what is due through *second* and the rest."""
    now: list[pa.RecordBatch] = []
    for place, batch in enumerate(batches):
        times = column(batch, "time")
        if int(times[-1]) <= second:
            now.append(batch)
            continue
        cut = int(np.searchsorted(times, second, side="right"))
        return now + ([batch.slice(0, cut)] if cut else []), [batch.slice(cut), *batches[place + 1 :]]
    return now, []
