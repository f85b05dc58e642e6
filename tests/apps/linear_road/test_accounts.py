"""Balances and daily expenditures."""

import numpy as np

from apps.linear_road.accounts import Balance, DailyExpenditure, Ledger
from apps.linear_road.columns import record_batch
from apps.linear_road.schema import CHARGES
from exop import Punctuation
from tests.apps.linear_road.batches import rows, tuples


def charges(*charged):
    """Charges as (time, vid, amount)."""
    return record_batch(CHARGES, *(np.array(part, np.int32) for part in zip(*charged, strict=True)))


def ask(time, qid, vid=1):
    """A balance question."""
    return {"type": 2, "time": time, "vid": vid, "qid": qid}


def answers(*steps):
    """(time, result time, question, balance) of all answers; a step is ("charges" or "questions", item)."""
    slet = Balance(ledger=Ledger())
    return rows([out for port, item in steps for out in getattr(slet, port)(item)])


def test_a_balance_holds_all_charges_through_its_second():
    """Charges of the question's own second are in, later ones are not, although they came first."""
    found = answers(
        ("charges", charges((10, 1, 5), (12, 1, 7), (13, 1, 100))),
        ("charges", Punctuation(20)),
        ("questions", tuples(ask(11, 1), ask(12, 2))),
        ("questions", Punctuation(20)),
    )
    assert found == [(11, 11, 1, 5), (12, 12, 2, 12)]


def test_an_expenditure_is_answered_from_the_history_at_once(tmp_path):
    """Type 3 needs nothing of the stream."""
    path = tmp_path / "history.csv"
    path.write_text("7,2,1,41\n7,2,1,1\n")
    with DailyExpenditure(history=path) as slet:
        question = {"type": 3, "time": 5, "vid": 7, "day": 2, "xway": 1, "qid": 11}
        found = slet.questions(tuples(question, question | {"day": 3, "qid": 12}, {"type": 2, "qid": 13}))
        assert rows(found) == [(5, 11, 42), (5, 12, 0)]
        assert slet.questions(tuples({})) is None
        assert slet.metrics() == {"history_rows": 2, "history_rejects": 0}
