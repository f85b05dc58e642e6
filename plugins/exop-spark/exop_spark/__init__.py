"""Spark queries as ExoP slets.

What a builder uses is imported when it is first touched: neither pyspark nor pyarrow is loaded with the plugin.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from exop import hookimpl

if TYPE_CHECKING:
    from exop.engine.event_time import EventTime
    from exop.engine.pull import Punctuate

    from .aggregates import aggregate
    from .factory import query
    from .java import find_java
    from .operators import Aggregate, Filter, Pipeline, Project
    from .plan import Input
    from .receipt import Receipt
    from .scripts import script
    from .slets import SparkSlet

_HOMES = {
    "Aggregate": ".operators",
    "EventTime": "exop.engine.event_time",
    "Filter": ".operators",
    "Input": ".plan",
    "Pipeline": ".operators",
    "Project": ".operators",
    "Punctuate": "exop.engine.pull",
    "Receipt": ".receipt",
    "SparkSlet": ".slets",
    "aggregate": ".aggregates",
    "find_java": ".java",
    "query": ".factory",
    "script": ".scripts",
}

__all__ = [
    "Aggregate",
    "EventTime",
    "Filter",
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
    from .aggregates import aggregate
    from .sql import sql

    return [sql, aggregate]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name], __name__), name)
