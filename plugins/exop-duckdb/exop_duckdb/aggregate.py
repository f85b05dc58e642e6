"""`duckdb:aggregate`: a keyed aggregate over windows, on a DuckDB in the memory of this process."""

from __future__ import annotations

from exop.engine import Engine
from exop.engine.slet import AggregateSlet, aggregation_of


class DuckDbAggregate(AggregateSlet, name="aggregate"):
    """Group rows by keys and windows, and emit counts, sums, means, minima and maxima: `stock:aggregate` on DuckDB.

    Args:
        memory: The memory limit of the database.
        threads: The number of threads of the database.
    """

    memory: str = "1GB"
    threads: int = 1

    def make_engine(self) -> Engine:
        """Return a new database."""
        # Imported lazily: duckdb and pyarrow are loaded with the first node that needs them.
        from .groups import DuckDbGroups

        return DuckDbGroups(aggregation_of(vars(self)), self.memory, self.threads)
