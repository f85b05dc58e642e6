"""DuckDB queries as ExoP slets. Neither duckdb nor pyarrow is imported with the plugin."""

from __future__ import annotations

from typing import Any

from exop import hookimpl

from .aggregate import DuckDbAggregate
from .slets import DuckDbSql

__all__ = ["DuckDbAggregate", "DuckDbSql", "register_slets"]


@hookimpl
def register_slets() -> list[Any]:
    """Offer the slets `duckdb:sql` and `duckdb:aggregate`."""
    return [DuckDbSql, DuckDbAggregate]
