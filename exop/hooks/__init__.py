"""Pluggy hooks: what a plugin can add, and how plugins are found."""

from exop.hooks.manager import Plugins
from exop.hooks.specs import hookimpl

__all__ = ["Plugins", "hookimpl"]
