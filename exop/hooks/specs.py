"""The hooks: each one a plain function; a plugin implements those it needs with `@hookimpl`.

A hook implementation takes the parameters it needs and leaves the rest.
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
    """Slets of the plugin: `@slet` functions and `Slet` classes. They are known as `plugin:name`."""


@hookspec
def register_channels() -> list[type]:  # type: ignore[empty-body]
    """Channel kinds: subclasses of `exop.Channel`."""


@hookspec
def register_transports() -> dict[str, type]:  # type: ignore[empty-body]
    """Transports between platforms, by URI scheme."""


@hookspec
def register_builders() -> list[Callable[..., Any]]:  # type: ignore[empty-body]
    """Application builders: functions with keyword-only parameters that return an `Application`."""


@hookspec
def register_commands() -> list[Callable[..., Any]]:  # type: ignore[empty-body]
    """Commands for the command line: annotated functions; the docstring is their help."""


@hookspec
def platform_started(platform: Any) -> None:
    """Called when a platform is up, before any application runs on it."""


@hookspec
def platform_stopping(platform: Any) -> None:
    """Called when a platform begins to stop, while its applications still run."""


def names() -> list[str]:
    """The names of all hooks."""
    return [name for name, value in globals().items() if hasattr(value, f"{PROJECT}_spec")]
