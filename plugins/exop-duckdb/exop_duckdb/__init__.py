"""DuckDB queries as ExoP slets. Neither duckdb nor pyarrow is imported with the plugin."""

from __future__ import annotations

from typing import Any

from exop import hookimpl

from .slets import DuckDbSql

__all__ = ["DuckDbSql", "register_slets"]


@hookimpl
def register_slets() -> list[Any]:
    """Offer the slet `duckdb:sql`."""
    return [DuckDbSql]
