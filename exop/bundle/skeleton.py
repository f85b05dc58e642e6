"""`exop bundle new`: a folder that is a bundle, with a slet to begin with, or with what a script offers."""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path
from typing import Final

from exop.bundle.dev import needed, statements_of
from exop.bundle.manifest import MANIFEST, Manifest, name_from, read_manifest
from exop.errors import BundleError
from exop.model.syntax import parsed

_MANIFEST: Final = """\
name = "{}"
version = "0.1.0"
description = "{}"
{}

[requires]
exop = ">=0.1"
"""
_SLETS: Final = '''\
"""The slets of the bundle: plain functions."""

from exop import Memento, slet


class Total(Memento):
    """The sum of the items so far."""

    sum: int = 0


@slet
def add_up(number: int, total: Total, *, factor: int = 1) -> int:
    """Add up the numbers, each times *factor*."""
    total.sum += number * factor
    return total.sum
'''
_TEST: Final = '''\
"""Run with pytest in this folder."""

from slets import Total, add_up


def test_numbers_are_added_up():
    total = Total()
    assert [add_up(number, total, factor=2) for number in (1, 2, 3)] == [2, 6, 12]
'''


def make_skeleton(folder: Path, script: Path | None = None) -> Manifest:
    """Make the folder of a new bundle, and return its manifest; with *script*, it offers what that file does."""
    name = name_from(folder.resolve().name)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise BundleError(bundle=name, problem=f"cannot be made: {folder} exists already", cure="name another folder")
    files, slets, builders = {"slets.py": _SLETS, "test_slets.py": _TEST}, ["add_up"], list[str]()
    if script is not None:
        source, slets, builders = _taken(name, script)
        files = {"slets.py": source}
    description = "Adds up numbers" if script is None else f"The slets of {script.name}".replace('"', "'")
    offers = {"slets": slets, "builders": builders}
    lines = (f"{key} = {json.dumps([f'slets:{one}' for one in found])}" for key, found in offers.items() if found)
    text = _MANIFEST.format(name, description, "\n".join(lines))
    manifest = read_manifest(text, name)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for path, content in {MANIFEST: text, **files}.items():
            (folder / path).write_text(content, encoding="utf-8")
    except OSError as problem:
        why = f"cannot be made in {folder}: {problem.strerror or problem}"
        raise BundleError(bundle=name, problem=why, cure="name another folder") from problem
    return manifest


def _taken(name: str, script: Path) -> tuple[str, list[str], list[str]]:
    """The text of a module with the slets and builders of a script, and everything that they need; their names."""
    try:
        text = script.read_text(encoding="utf-8")
        tree = parsed(text, str(script))
    except (OSError, UnicodeDecodeError, SyntaxError) as problem:
        raise BundleError(bundle=name, problem=f"cannot be made of {script}: {problem}", cure="correct it") from problem
    if not (slets := slet_names(tree)):
        cure = "mark a function with @slet, or write a class below Slet, at the top of the file"
        raise BundleError(bundle=name, problem=f"cannot be made of {script}: it defines no slet", cure=cure)
    lines, statements = text.splitlines(), [one for one in statements_of(text) if not _runs(one.node)]
    functions = [one for one in tree.body if isinstance(one, ast.FunctionDef)]
    builders = [one.name for one in functions if re.search(r"\bApplication'?$", ast.unparse(one.returns or one))]
    pieces = [f'"""The slets of {script.name}."""']
    for part in needed(statements, [*slets, *builders]):
        first = min([part.node.lineno, *(one.lineno for one in getattr(part.node, "decorator_list", ()))])
        gap = "\n\n" if isinstance(part.node, (ast.FunctionDef, ast.ClassDef)) else ""
        pieces.append(gap + "\n".join(lines[first - 1 : part.node.end_lineno]))
    return "\n".join(pieces) + "\n", slets, builders


def _runs(node: ast.stmt) -> bool:
    """Whether a statement is what a script does when it is run: `if __name__ …`, or a call `….run()` or `….build()`."""
    if isinstance(node, (ast.If, ast.With)):
        is_main = isinstance(node, ast.If) and "id='__name__'" in ast.dump(node.test)
        return is_main or all(map(_runs, [*node.body, *getattr(node, "orelse", ())]))
    call = node.value if isinstance(node, ast.Expr) else None
    return isinstance(call, ast.Call) and getattr(call.func, "attr", "") in ("run", "build")


def slet_names(tree: ast.Module) -> list[str]:
    """The names of the slets that a module defines: functions marked `@slet`, and classes below `Slet`."""
    found: list[str] = []
    for node in tree.body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            marks = node.bases if isinstance(node, ast.ClassDef) else node.decorator_list
            names = {ast.unparse(one).partition("(")[0].rpartition(".")[2] for one in marks}
            if not names.isdisjoint({"slet", "Slet", *found}):
                found.append(node.name)
    return found
