"""The wiring: from a mesh to bound components, and from one mesh to the next while the stream runs."""

from exop.wiring.applications import Applications
from exop.wiring.controller import WiringController
from exop.wiring.deployer import Deployer
from exop.wiring.plan import Plan

__all__ = ["Applications", "Deployer", "Plan", "WiringController"]
