"""What a platform must offer to be changed from outside, as types: remoting imports nothing of the wiring."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

from exop.model.diff import Difference
from exop.model.handover import HandOver
from exop.model.memento import Memento
from exop.model.mesh import Mesh
from exop.model.shadow import Shadow
from exop.runtime.catalog import Catalog


class StepLike(Protocol):
    """A step of a plan, of which `exop.wiring.plan.Step` tells more."""

    @property
    def verb(self) -> str: ...
    @property
    def node(self) -> str: ...
    @property
    def text(self) -> str: ...
    @property
    def does(self) -> str: ...
    @property
    def state(self) -> HandOver | None: ...


class PlanLike(Protocol):
    """A plan, of which `exop.wiring.plan.Plan` tells more."""

    @property
    def before(self) -> Mesh: ...
    @property
    def after(self) -> Mesh: ...
    @property
    def steps(self) -> Iterable[StepLike]: ...
    @property
    def changes(self) -> Difference: ...
    @property
    def notes(self) -> tuple[str, ...]: ...

    def apply(self, *, timeout: float | None = None) -> Mesh: ...
    def proven(self, shadow: Shadow | None = None, keep: float | None = None) -> PlanLike: ...


class Changing(Protocol):
    """What a platform must offer to be changed; `exop.platform.Platform` tells what each does."""

    catalog: Catalog

    def status(self, application: str | None = None) -> dict[str, Any]: ...
    def mesh(self, application: str) -> Mesh: ...
    def plan(self, mesh: Mesh) -> PlanLike: ...
    def apply(self, mesh: Mesh, *, timeout: float | None = None) -> Mesh: ...
    def memento(self, application: str, node: str) -> Memento: ...
