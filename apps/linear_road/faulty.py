"""A version of the car positions with a mistake, for the demo: the proof of a change has to find it."""

import pyarrow.compute as pc

from exop import slet

from .schema import REPORTS, Reports, Tuples


@slet
def faulty_positions(tuples: Tuples) -> Reports | None:
    """Take questions for balances (type 2) for position reports."""
    reports = tuples.select(REPORTS.names).filter(pc.less_equal(tuples.column("type"), 2))
    return reports if reports.num_rows else None
