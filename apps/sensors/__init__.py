"""Readings of sensors, over several engines: the hook implementations and nothing else."""

from collections.abc import Callable
from typing import Any

from exop import hookimpl


@hookimpl
def register_slets() -> list[Any]:
    """The slets of the mesh that no plugin offers."""
    from .slets import SLETS

    return list(SLETS)


@hookimpl
def register_builders() -> list[Callable[..., Any]]:
    """`exop run apps/sensors …`."""
    from .builder import sensors

    return [sensors]
