"""Which questions there are, and how their options are read from the signature of `measure`."""

from __future__ import annotations

import argparse
import ast
import importlib
import inspect
from collections.abc import Callable, Iterable
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, TypeAlias, Union, get_args, get_origin, get_type_hints

from bench.harness import Result

#: What a question's module defines; its keyword-only parameters are the options.
Measure: TypeAlias = Callable[..., Iterable[Result]]


def questions(folder: Path = Path(__file__).parent) -> dict[str, str]:
    """The questions in *folder* with their one-line help, without importing any: a bench may need what is missing."""
    found = {}
    for path in sorted(folder.glob("*.py")):
        tree = ast.parse(path.read_text("utf-8"), str(path))
        if any(isinstance(node, ast.FunctionDef) and node.name == "measure" for node in tree.body):
            found[path.stem] = (ast.get_docstring(tree) or "").partition("\n")[0]
    return found


def load(name: str) -> Measure:
    """Import the question *name*."""
    measure: Measure = importlib.import_module(f"bench.{name}").measure
    return measure


def add_options(parser: argparse.ArgumentParser, measure: Measure) -> list[str]:
    """Give *parser* an option for every keyword-only parameter of *measure*; return the parameters' names.

    Its positional parameters become arguments that have to be given, as text. The annotation of an option is the type,
    or `Annotated[type, "help"]`: something callable with text, `bool` (which becomes
    `--name` and `--no-name`), a `Literal` of the values that there are, or one of these with `| None`.
    """
    hints = get_type_hints(measure, include_extras=True)
    names = []
    for name, parameter in inspect.signature(measure).parameters.items():
        if parameter.kind is parameter.KEYWORD_ONLY:
            kind, words = hints.get(name, str), ""
            if get_origin(kind) is Annotated:
                kind, words = get_args(kind)[:2]
            helped = f"{words} (default: {parameter.default})".strip()
            option = {"default": parameter.default, "help": helped, **_conversion(kind)}
            parser.add_argument(f"--{name.replace('_', '-')}", **option)
        else:
            helped = get_args(hints[name])[1] if get_origin(hints[name]) is Annotated else ""
            parser.add_argument(name, help=helped)
        names.append(name)
    return names


def _conversion(kind: Any) -> dict[str, Any]:
    """How argparse reads a value of the type *kind*."""
    if get_origin(kind) in (Union, UnionType):
        (kind,) = (member for member in get_args(kind) if member is not NoneType)
    if get_origin(kind) is Literal:
        choices = get_args(kind)
        return {"choices": choices, "type": type(choices[0])}
    return {"action": argparse.BooleanOptionalAction} if kind is bool else {"type": kind}
