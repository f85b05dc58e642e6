"""Car positions: what the road queries see of the input, its position reports."""

import pyarrow.compute as pc

from exop import slet

from .schema import REPORTS, Reports, Tuples

_COLUMNS = REPORTS.names


@slet
def positions(tuples: Tuples) -> Reports | None:
    """Pass on the position reports (type 0), without the fields that only questions use."""
    wanted = pc.equal(tuples.column("type"), 0)
    reports = tuples.select(_COLUMNS)
    if wanted.true_count < tuples.num_rows:
        reports = reports.filter(wanted)
    return reports if reports.num_rows else None
