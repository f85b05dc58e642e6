"""The hooks: each one is a plain function; a plugin implements the hooks that it needs with `@hookimpl`.

An implementation of a hook may omit parameters that it does not need.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pluggy

PROJECT = "exop"

hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)


@hookspec
def register_slets() -> list[Any]:  # type: ignore[empty-body]
    """Slets of the plugin: `@slet` functions and `Slet` classes. Their identities are `plugin:name`."""


@hookspec
def register_channels() -> list[type]:  # type: ignore[empty-body]
    """Channel kinds: subclasses of `exop.Channel`."""


@hookspec
def register_functions() -> list[Any]:  # type: ignore[empty-body]
    """Pure functions for expressions: annotated functions, or `exop.expressions.Function`; the names are `plugin.name`.

    A function without an Arrow form is called for each row of a batch, which is some hundred times slower.
    """


@hookspec
def register_transports() -> dict[str, type]:  # type: ignore[empty-body]
    """Transports between platforms, by URI scheme."""


@hookspec
def register_builders() -> list[Callable[..., Any]]:  # type: ignore[empty-body]
    """Application builders: functions with keyword-only parameters that return an `Application`."""


@hookspec
def register_commands() -> list[Callable[..., Any]]:  # type: ignore[empty-body]
    """Commands for the command line: annotated functions, whose docstrings are the help texts."""


@hookspec
def platform_started(platform: Any) -> None:
    """Called when a platform is up, before any application runs on it."""


@hookspec
def platform_stopping(platform: Any) -> None:
    """Called when a platform begins to stop, while its applications still run."""
