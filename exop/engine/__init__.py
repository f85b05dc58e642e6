"""Engines that the platform calls, as slets: an engine implements `Engine`, and its slet derives from `EngineSlet`.

A query is one slet (partial assimilation, paper §5.3). The engine computes; everything else belongs to `EngineSlet`:
time, mementos, time limits, and errors.
"""

from exop.engine.engine import Engine, EngineState
from exop.engine.slet import EngineSlet

__all__ = ["Engine", "EngineSlet", "EngineState"]
