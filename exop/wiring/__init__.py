"""The WiringController and the Deployer: from a mesh to bound components, and back."""

from exop.wiring.controller import WiringController
from exop.wiring.deployer import Deployer

__all__ = ["Deployer", "WiringController"]
