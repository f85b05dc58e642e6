"""Python's parser, for one thread at a time."""

from __future__ import annotations

import ast
import warnings
from threading import RLock
from typing import Final

_PARSING: Final = RLock()


def parsed(source: str | bytes, file: str = "<unknown>") -> ast.Module:
    """Return the tree of a module; raise what `ast.parse` raises.

    Python before 3.11.8 and 3.12.2 counts the depth of trees for all threads together, and one of two that read at the
    same time may get a `SystemError`.
    """
    with _PARSING:
        return ast.parse(source, file)


def parsed_expression(text: str) -> ast.expr:
    """Return the tree of an expression, likewise; warnings about its spelling are for no one to see."""
    with _PARSING, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return ast.parse(text, mode="eval").body
