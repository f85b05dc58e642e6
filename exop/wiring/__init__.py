"""The wiring: from a mesh to bound components, and from one mesh to the next while the stream runs."""

from exop.wiring.applications import Applications
from exop.wiring.changes.plan import Plan
from exop.wiring.controller import WiringController

__all__ = ["Applications", "Plan", "WiringController"]
