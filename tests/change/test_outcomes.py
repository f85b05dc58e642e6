"""The table of outcomes on the page about changes: code of a slet hangs or raises at every point, in every change."""

from collections.abc import Iterator
from itertools import product
from pathlib import Path

import pytest

from exop.errors import PlanError
from exop.runtime.supervision.budget import UserCall
from tests.change.outcomes import CHANGES, MODES, POINTS, SEEN, SHORT, TROUBLE, outcome, running
from tests.change.tools import grows, plain
from tests.rig import PATIENCE

PAGE = Path(__file__).parents[2] / "docs" / "explanation" / "change.md"


def rows() -> Iterator[list[str]]:
    """The rows of the table, its head first."""
    lines = iter(PAGE.read_text().splitlines())
    found = (line for line in lines if line.startswith("| code of the slet |"))
    for line in [next(found), *lines]:
        if not line.startswith("|"):
            return
        if not line.startswith("|---"):
            yield [cell.strip() for cell in line.strip("|").split("|")]


HEAD, *TABLE = rows()
#: Changes that take away what a suspended slet is suspended on: that item goes with it.
TAKEN_AWAY = ("remove", "rewire")


def test_the_page_has_every_point_and_every_change():
    """Its rows are all the points, hanging and raising; its columns are all the changes."""
    assert HEAD[1:] == list(CHANGES)
    assert [row[0] for row in TABLE] == [" ".join(row) for row in product(POINTS, MODES)]


@pytest.fixture
def impatient(monkeypatch, row):
    """A call has the time that it needs until it hangs; what is no call is waited for only briefly where it hangs."""
    monkeypatch.setattr(UserCall, "wait", lambda call, *_, **__: TROUBLE.wait(call))
    if row[0] == "item hangs":
        monkeypatch.setattr("exop.wiring.applications.LEAVING", SHORT)
    if row[0] == "listener hangs":
        monkeypatch.setattr("exop.registry.delivery.PATIENCE", SHORT)


@pytest.mark.parametrize("row", TABLE, ids=lambda row: row[0])
def test_the_outcome_of_every_change(row, impatient, tmp_path):
    """It is that of the page, and no item is lost, doubled or reordered."""
    found = [row[0]]
    for number, change in enumerate(CHANGES):
        platform = running(tmp_path / str(number))
        try:
            found.append(outcome(platform, *row[0].split(), change))
        finally:
            TROUBLE.end()
            platform.close()
        for driver in TROUBLE.hanging if row[0] == "item hangs" else ():
            driver.join(PATIENCE)  # it still passes its item on
        missing = set(range(1, SEEN[-1] + 1)) - set(SEEN)
        assert len(missing) <= (row[0] == "item raises" and change in TAKEN_AWAY)
        assert sorted(SEEN) == SEEN
        assert len(set(SEEN)) == len(SEEN)
    assert found == row


@pytest.mark.parametrize(("at", "mode"), [*product(("memento", "commit"), MODES)])
def test_the_cure_of_a_refused_removal(at, mode, monkeypatch, tmp_path):
    """The output is given up with the state; then the node can be removed, and the stream goes on."""
    monkeypatch.setattr(UserCall, "wait", lambda call, *_, **__: TROUBLE.wait(call))
    platform = running(tmp_path)
    TROUBLE.begin(at, mode)
    try:
        with pytest.raises(PlanError, match="replace b by stock:write_lines with another path and lose_state=True"):
            CHANGES["remove"](platform)
        platform.apply(platform.mesh("app").replace("b", plain, lose_state=True), timeout=PATIENCE)
        CHANGES["remove"](platform)
        assert sorted(platform.mesh("app").nodes) == ["a", "c", "d"]
        grows(SEEN, len(SEEN) + 1)
        seen = [*SEEN]  # it grows
        assert list(range(1, len(seen) + 1)) == seen
    finally:
        TROUBLE.end()
        platform.close()
