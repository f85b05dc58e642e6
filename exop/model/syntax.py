"""Python's parser, for one thread at a time."""

from __future__ import annotations

import ast
import warnings

from exop.safe_repr import PARSING


def parsed(source: str | bytes, file: str = "<unknown>") -> ast.Module:
    """Return the tree of a module; raise what `ast.parse` raises."""
    with PARSING:
        return ast.parse(source, file)


def parsed_expression(text: str) -> ast.expr:
    """Return the tree of an expression, likewise; warnings about its spelling are for no one to see."""
    with PARSING, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return ast.parse(text, mode="eval").body
