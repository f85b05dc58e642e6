"""A generation of a folder that is being edited; the statements a definition needs, and fingerprints for its reuse."""

from __future__ import annotations
import __future__

import ast
import re
import symtable
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from types import ModuleType
from typing import Any

from exop.bundle.manifest import MANIFEST, Manifest, name_from
from exop.bundle.modules import Namespace, Sources, import_module, load, load_offers, unload
from exop.bundle.store import checked_archive
from exop.errors import BundleBroken, BundleError
from exop.model.values.classes import package_name
from exop.remoting.api.folder_archive import files_of

#: Starts the bundles that a manifest requires; returns their packages by the names under which they are imported.
Wire = Callable[[Manifest], Mapping[str, str]]
#: The compiler flags of `from __future__ import …`.
_FEATURES = sum({getattr(__future__, name).compiler_flag for name in __future__.all_feature_names})


@dataclass(frozen=True)
class Statement:
    """One top-level statement of a module: the names that it binds, changes and uses."""

    node: ast.stmt
    binds: frozenset[str]
    changes: frozenset[str]
    uses: frozenset[str]


def statements_of(tree: ast.Module) -> list[Statement]:
    """The statements of a module; a quoted name counts as a use, because annotations may be quoted."""
    statements = []
    for node in tree.body:
        binds, changes = frozenset(_bound(node)), frozenset(_changed(node))
        statements.append(Statement(node, binds, changes - binds, frozenset(_used(node))))
    return statements


def needed(statements: Iterable[Statement], names: Iterable[str]) -> list[Statement]:
    """The statements that *names* need, in order: those that bind or change them, and those that these use.

    A statement that only uses a name (`app.add("average", average)`) is not needed for it. Imports from `__future__`
    hold for the whole module.
    """
    known, wanted = list(statements), set(names)
    chosen = {number for number, one in enumerate(known) if getattr(one.node, "module", None) == "__future__"}
    while more := [
        number
        for number, one in enumerate(known)
        if number not in chosen and (one.binds & wanted or one.changes & wanted)
    ]:
        chosen.update(more)
        wanted.update(*(known[number].uses for number in more))
    return [known[number] for number in sorted(chosen)]


def slet_names(tree: ast.Module) -> list[str]:
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


@dataclass
class Fingerprints:
    """The fingerprints of the definitions in a folder, as it was when it was read.

    A fingerprint is a digest of the code of a definition and of all that it needs, in its module and in others: equal
    ones mean that the code is the same except for comments and its place. Attributes that are looked up by a computed
    name (`getattr(module, text)`) do not count.
    """

    namespace: Namespace
    _statements: dict[str, list[Statement]] = field(default_factory=dict)
    _known: dict[tuple[str, str], str] = field(default_factory=dict)

    def statements(self, module: str) -> list[Statement]:
        """The statements of a module; none if it does not exist or is not valid Python."""
        if module not in self._statements:
            sources = self.namespace.sources
            found = sources.find(module)
            try:
                text = sources.files[found[0]] if found is not None and found[0] else b""
                self._statements[module] = statements_of(ast.parse(text))
            except (SyntaxError, ValueError):
                self._statements[module] = []
        return self._statements[module]

    def of(self, module: str, statement: Statement) -> str:
        """The fingerprint of one statement: of the names that it binds or changes, or else of itself."""
        bound = {name for one in self.statements(module) for name in one.binds}
        names = statement.binds or (statement.changes & bound)
        if names:
            return self._of_names(module, names)
        statements = [statement, *needed(self.statements(module), statement.uses)]
        return _digest(self._lines(module, statements))

    def _of_names(self, module: str, names: Iterable[str]) -> str:
        key = module, " ".join(sorted(names))
        if key not in self._known:
            self._known[key] = "itself"  # modules that import each other
            self._known[key] = _digest(self._lines(module, needed(self.statements(module), names)))
        return self._known[key]

    def _lines(self, module: str, statements: Iterable[Statement]) -> Iterator[str]:
        for statement in statements:
            yield ast.dump(statement.node)
            for target, name in self._imported(module, statement.node):
                yield f"{target}.{name} {self._of_imported(target, name)}"

    def _imported(self, module: str, node: ast.stmt) -> Iterator[tuple[str, str]]:
        """The imports of a statement from modules of the folder: the module, and a name in it (empty: all of it)."""
        for one in ast.walk(node):
            if isinstance(one, ast.Import):
                targets = [(self._resolved(alias.name), "") for alias in one.names]
            elif isinstance(one, ast.ImportFrom):
                base = self._base(module, one)
                targets = [(base, "" if alias.name == "*" else alias.name) for alias in one.names]
            else:
                continue
            yield from ((target, name) for target, name in targets if target is not None)

    def _base(self, module: str, node: ast.ImportFrom) -> str | None:
        if not node.level:
            return self._resolved(node.module or "")
        found = self.namespace.sources.find(module)
        package = module if found is not None and found[1] else module.rpartition(".")[0]
        for _ in range(node.level - 1):
            package = package.rpartition(".")[0]
        return ".".join(one for one in (package, node.module) if one)

    def _resolved(self, name: str) -> str | None:
        """The module of the folder that an absolute import names, relative to the folder; `None` for any other."""
        own, target = f"{self.namespace.name}.", self.namespace.resolve(name)
        return target[len(own) :] if target is not None and f"{target}.".startswith(own) else None

    def _of_imported(self, target: str, name: str) -> str:
        below = ".".join(one for one in (target, name) if one)
        if name and self.namespace.sources.find(below) is None:
            return self._of_names(target, [name])
        # A whole module: any definition in it may be used.
        return self._of_names(below, {each for statement in self.statements(below) for each in statement.binds})


def _last(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _bound(node: ast.stmt) -> Iterator[str]:
    """The names that a statement binds at the top level of the module."""
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
    """A statement and its parts, but not those inside of functions and classes."""
    yield node
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)):
        return
    for child in ast.iter_child_nodes(node):
        yield from _outside_of_scopes(child)


def _root(node: ast.expr) -> str:
    """The name `a` of `a.b[1].c`."""
    while isinstance(node, (ast.Attribute, ast.Subscript, ast.Call)):
        node = node.func if isinstance(node, ast.Call) else node.value
    return node.id if isinstance(node, ast.Name) else ""


def _used(node: ast.stmt) -> Iterator[str]:
    """The module-level names that a statement, or its definition, refers to."""
    # Compiled alone: statements such as `return` are inside of functions only.
    yield from _referenced(symtable.symtable(ast.unparse(node), "statement", "exec"), outermost=True)
    for one in ast.walk(node):
        for annotation in (getattr(one, "annotation", None), getattr(one, "returns", None)):
            if isinstance(annotation, ast.Constant) and isinstance(annotation.value, str):
                yield from re.findall(r"[A-Za-z_]\w*", annotation.value)


def _referenced(table: symtable.SymbolTable, *, outermost: bool) -> Iterator[str]:
    for symbol in table.get_symbols():
        if symbol.is_referenced() and (outermost or symbol.is_global()):
            yield symbol.get_name()
    for inner in table.get_children():
        yield from _referenced(inner, outermost=False)


def _digest(lines: Iterable[str]) -> str:
    return sha256("".join(f"{line}\n" for line in lines).encode()).hexdigest()


@dataclass(frozen=True)
class Generation:
    """The slets and builders of a folder as it was loaded: *plugin* has the hooks, all generations have one *name*."""

    name: str
    namespace: Namespace
    plugin: Any


def load_generation(folder: Path, number: int, before: Generation | None, wire: Wire) -> Generation:
    """Import a folder; definitions that have not changed since *before* are taken over from it."""
    files = {str(path): (folder / path).read_bytes() for path in files_of(folder)}
    modules = {path: content for path, content in files.items() if path.endswith(".py")}
    manifest: Manifest | None = None
    wires: Mapping[str, str] = {}
    if MANIFEST in files:
        manifest = checked_archive(files, str(folder)).manifest
        name, package, wires = manifest.key, manifest.package, wire(manifest)
    elif "__init__.py" in files:
        name, package = folder.name, name_from(folder.name).replace("-", "_")
    else:
        problem = f"cannot be developed: {folder} has neither a {MANIFEST} nor an __init__.py"
        cure = "make it a package with a @hookimpl register_builders(), or `exop bundle new`"
        raise BundleError(bundle=folder.name, problem=problem, cure=cure)
    # The number is part of the digest: each generation has a package of its own, even with the sources of another.
    digest = sha256(repr((number, sorted(modules.items()))).encode()).hexdigest()
    own = package_name(package, f"0+dev.{number}")
    aliases = {**dict.fromkeys((*_names(folder), package), own), **wires}
    namespace = Namespace(own, Sources(folder, modules, digest), aliases)
    known: list[str] = []
    if before is not None:
        namespace.execute = Reuse(namespace, before.namespace).execute
        begin = f"{before.namespace.name}."
        known = sorted(one.removeprefix(begin) for one in list(sys.modules) if one.startswith(begin))
    namespace = load(namespace, name)
    try:
        plugin = load_offers(manifest, namespace) if manifest is not None else import_module(name, namespace, "")
        for module in known:  # a mistake in any module that was imported before counts
            if namespace.sources.find(module) is not None:
                import_module(name, namespace, module)
    except BaseException:
        unload(namespace)
        raise
    return Generation(name, namespace, plugin)


def _names(folder: Path) -> tuple[str, str]:
    """The names by which the modules of a package import each other: from the working directory, and on its own."""
    here = Path.cwd().resolve()
    return ".".join(folder.relative_to(here).parts) if folder.is_relative_to(here) else folder.name, folder.name


class Reuse:
    """Executes the modules of a namespace statement by statement, and takes over unchanged results from another one.

    A class that was not edited stays the same class, for `isinstance` and for its mementos; a slet that was not edited
    stays the same function, and is not replaced; objects that a module makes when it is imported are not made twice.
    """

    def __init__(self, namespace: Namespace, before: Namespace) -> None:
        self._new, self._old = Fingerprints(namespace), Fingerprints(before)

    def execute(self, module: ModuleType, source: bytes, file: str) -> None:
        """Execute the statements of a module that have changed, and those that need them."""
        name = module.__name__[len(self._new.namespace.name) + 1 :]
        tree = ast.parse(source, file)
        module.__doc__ = ast.get_docstring(tree, clean=False)
        try:
            known: ModuleType | None = import_module("", self._old.namespace, name)
        except BundleBroken:
            known = None
        old = {self._old.of(name, statement) for statement in self._old.statements(name)}
        flags = compile(tree, file, "exec", dont_inherit=True).co_flags & _FEATURES
        for statement in self._new.statements(name):
            if known is not None and self._new.of(name, statement) in old and statement.binds <= vars(known).keys():
                vars(module).update({each: vars(known)[each] for each in statement.binds})
            else:
                code = compile(ast.Module([statement.node], []), file, "exec", flags=flags, dont_inherit=True)
                exec(code, vars(module))
