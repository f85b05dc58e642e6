"""Engines as slets: an engine implements `Engine` or `PullEngine`, its slet derives from `EngineSlet` or `PullSlet`.

A query is one slet (partial assimilation, paper §5.3). The engine computes; everything else belongs to the slet: time,
mementos or the progress, limits, and errors. An `Engine` is called with each batch. A `PullEngine` has threads of its
own, reads its input from a `Feed`, and commits its batches itself.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from exop.engine.engine import Engine, EngineState
from exop.engine.pull import Emit, EventTime, PullEngine, Punctuate
from exop.engine.slet import EngineSlet
from exop.model.items import Reference

if TYPE_CHECKING:
    from exop.engine.feed import Feed
    from exop.engine.pull_slet import PullSlet

__all__ = ["Emit", "Engine", "EngineSlet", "EngineState", "EventTime"]
__all__ += ["Feed", "PullEngine", "PullSlet", "Punctuate", "Reference"]


def __getattr__(name: str) -> Any:
    """Import the names that need pyarrow when they are used."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.pull_slet"), name)
