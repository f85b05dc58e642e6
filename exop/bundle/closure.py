"""What a definition in a module needs of that module, read from its syntax tree; nothing is imported for it."""

from __future__ import annotations

import ast
import re
import symtable
from collections.abc import Iterable, Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class Part:
    """One statement at the top of a module: the names that it binds, changes and uses."""

    node: ast.stmt
    binds: frozenset[str]
    changes: frozenset[str]
    uses: frozenset[str]


def parts_of(tree: ast.Module) -> list[Part]:
    """The statements of a module; a name in quotes counts as a use, since annotations may be written so."""
    parts = []
    for node in tree.body:
        binds, changes = frozenset(_bound(node)), frozenset(_changed(node))
        parts.append(Part(node, binds, changes - binds, frozenset(_used(node))))
    return parts


def needed(parts: Iterable[Part], names: Iterable[str]) -> list[Part]:
    """The statements that *names* need, in their order: what binds them, what changes that, and what these use.

    A statement that only uses a name (`app.add("average", average)`) is not needed for it. Imports from `__future__`
    hold for the whole module.
    """
    known = list(parts)
    wanted, chosen = set(names), set[int]()
    while True:
        more = [
            number
            for number, part in enumerate(known)
            if number not in chosen and (part.binds & wanted or part.changes & wanted or _is_future(part.node))
        ]
        if not more:
            return [known[number] for number in sorted(chosen)]
        chosen.update(more)
        for number in more:
            wanted |= known[number].uses


def slets_in(tree: ast.Module) -> list[str]:
    """The names of the slets that a module defines: functions marked `@slet`, and classes below `Slet`."""
    found: list[str] = []
    for node in tree.body:
        if isinstance(node, ast.FunctionDef):
            marks = [one.func if isinstance(one, ast.Call) else one for one in node.decorator_list]
            if any(_last(mark) == "slet" for mark in marks):
                found.append(node.name)
        elif isinstance(node, ast.ClassDef) and any(_last(base) in ("Slet", *found) for base in node.bases):
            found.append(node.name)
    return found


def _is_future(node: ast.stmt) -> bool:
    return isinstance(node, ast.ImportFrom) and node.module == "__future__"


def _last(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _bound(node: ast.stmt) -> Iterator[str]:
    """The names that a statement gives a value to, at the top of the module."""
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        yield node.name
    elif isinstance(node, (ast.Import, ast.ImportFrom)):
        yield from ((alias.asname or alias.name).partition(".")[0] for alias in node.names)
    elif isinstance(node, ast.AugAssign):
        return
    else:
        for one in _outside_of_scopes(node):
            if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store):
                yield one.id
            elif one is not node and isinstance(one, ast.stmt):
                yield from _bound(one)


def _changed(node: ast.stmt) -> Iterator[str]:
    """The names whose value a statement changes: `table[1] = …`, `table.update(…)`, `total += …`."""
    for one in _outside_of_scopes(node):
        if isinstance(one, (ast.Attribute, ast.Subscript)) and isinstance(one.ctx, (ast.Store, ast.Del)):
            yield _root(one)
        elif isinstance(one, ast.AugAssign):
            yield _root(one.target)
        elif isinstance(one, ast.Expr) and isinstance(one.value, ast.Call) and not isinstance(one.value.func, ast.Name):
            yield _root(one.value.func)


def _outside_of_scopes(node: ast.AST) -> Iterator[ast.AST]:
    """A statement and what is in it, but not what is in functions and classes."""
    yield node
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)):
        return
    for child in ast.iter_child_nodes(node):
        yield from _outside_of_scopes(child)


def _root(node: ast.expr) -> str:
    """The name at the beginning of `a.b[1].c`."""
    while isinstance(node, (ast.Attribute, ast.Subscript, ast.Call)):
        node = node.func if isinstance(node, ast.Call) else node.value
    return node.id if isinstance(node, ast.Name) else ""


def _used(node: ast.stmt) -> Iterator[str]:
    """The names of the module that a statement, or what it defines, asks for."""
    # A statement alone: `return` and the like stand inside of functions only.
    yield from _asked(symtable.symtable(ast.unparse(node), "statement", "exec"), outermost=True)
    for one in ast.walk(node):
        for annotation in (getattr(one, "annotation", None), getattr(one, "returns", None)):
            if isinstance(annotation, ast.Constant) and isinstance(annotation.value, str):
                yield from re.findall(r"[A-Za-z_]\w*", annotation.value)


def _asked(table: symtable.SymbolTable, *, outermost: bool) -> Iterator[str]:
    for symbol in table.get_symbols():
        if symbol.is_referenced() and (outermost or symbol.is_global()):
            yield symbol.get_name()
    for inner in table.get_children():
        yield from _asked(inner, outermost=False)
