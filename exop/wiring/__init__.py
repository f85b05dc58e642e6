"""The wiring: from a mesh to bound components, and from one mesh to the next while the stream runs."""

from exop.wiring.applications import Applications
from exop.wiring.changes.plan import Plan
from exop.wiring.controller import WiringController
from exop.wiring.deployments import Deployments

__all__ = ["Applications", "Deployments", "Plan", "WiringController"]
