"""Spark queries as ExoP slets.

What a builder uses is imported when it is first touched: neither pyspark nor pyarrow is loaded with the plugin.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from exop import hookimpl

if TYPE_CHECKING:
    from exop.engine.pull import EventTime, Punctuate

    from .java import find_java
    from .plan import Input
    from .slets.aggregates import aggregate
    from .slets.factory import query
    from .slets.operators import Filter, GroupBy, Pipeline, Project
    from .slets.scripts import script
    from .slets.slet import SparkSlet
    from .storage.receipt import Receipt

_HOMES = {
    "EventTime": "exop.engine.pull",
    "Filter": ".slets.operators",
    "GroupBy": ".slets.operators",
    "Input": ".plan",
    "Pipeline": ".slets.operators",
    "Project": ".slets.operators",
    "Punctuate": "exop.engine.pull",
    "Receipt": ".storage.receipt",
    "SparkSlet": ".slets.slet",
    "aggregate": ".slets.aggregates",
    "find_java": ".java",
    "query": ".slets.factory",
    "script": ".slets.scripts",
}

__all__ = [
    "EventTime",
    "Filter",
    "GroupBy",
    "Input",
    "Pipeline",
    "Project",
    "Punctuate",
    "Receipt",
    "SparkSlet",
    "aggregate",
    "find_java",
    "query",
    "register_slets",
    "script",
]


@hookimpl
def register_slets() -> list[Any]:
    """Offer the slets that are written in a topology file: `spark:sql` and `spark:aggregate`."""
    from .slets.aggregates import aggregate
    from .slets.sql import sql

    return [sql, aggregate]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name], __name__), name)
