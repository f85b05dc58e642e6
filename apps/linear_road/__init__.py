"""Linear Road (Arasu et al., VLDB 2004) on ExoP: the hook implementations and nothing else."""

from collections.abc import Callable
from typing import Any

from exop import hookimpl

# The slets are imported when they are asked for: generating and validating traffic needs none of them.


@hookimpl
def register_slets() -> list[Any]:
    """The slets of the mesh, those of both pipelines."""
    from .builder import native_slets, spark_slets

    return [*native_slets(), *spark_slets()]


@hookimpl
def register_builders() -> list[Callable[..., Any]]:
    """`exop run apps/linear_road …`."""
    from .builder import linear_road

    return [linear_road]
