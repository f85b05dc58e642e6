"""Campaigns: cases are seeded, counted by outcome, resumed from a record, and a failure is repeatable by its number."""

import random

from bench.cases import carry_out, failures


def _case(chance: random.Random) -> str:
    number = chance.randrange(3)
    assert number != 2, "two is refused"
    return f"was {number}"


def test_cases_are_counted_by_outcome():
    """Every case is counted under its outcome, and failed ones apart."""
    found = {result.name: result.value for result in carry_out("x", _case, runs=30)}
    counted = sum(value for name, value in found.items() if name.startswith("x/outcome/"))
    assert set(found) == {"x/outcome/was-0", "x/outcome/was-1", "x/cases", "x/failures"}
    assert found["x/cases"] == 30
    assert counted + found["x/failures"] == 30
    assert len(failures(_case, 30)) == found["x/failures"] > 0


def test_a_campaign_goes_on_where_it_was_interrupted(tmp_path):
    """With a record, cases that have run do not run again, not even behind a line that a kill has cut off."""
    record, ran = tmp_path / "record", []

    def case(chance: random.Random) -> str:
        ran.append(chance.random())
        return "done"

    list(carry_out("x", case, runs=3, record=record))
    record.write_text(record.read_text()[:-5])
    found = {result.name: result.value for result in carry_out("x", case, runs=5, record=record)}
    assert found["x/cases"] == 5
    assert len(ran) == 3 + 3
    assert ran[2] == ran[3]
