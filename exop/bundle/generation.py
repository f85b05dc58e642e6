"""A generation of a folder that is being edited; the statements a definition needs, and what an edit changes."""

from __future__ import annotations

import ast
import re
import symtable
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from hashlib import sha256
from pathlib import Path
from types import ModuleType
from typing import Any, TypeAlias

from exop.bundle.manifest import MANIFEST, Manifest, name_from
from exop.bundle.modules import Namespace, Sources, import_module, load, load_offers, unload
from exop.bundle.store import checked_archive
from exop.errors import BundleBroken, BundleError
from exop.model.values.classes import package_name
from exop.remoting.api.folder_archive import files_of

#: Starts the bundles that a manifest requires; returns their packages by the names under which they are imported.
Wire = Callable[[Manifest], Mapping[str, str]]
#: A definition of a folder: its module, and its name there; the empty name stands for all of the module.
Definition: TypeAlias = tuple[str, str]
#: Bound by imports that concern a whole module (of `__future__`, and of `*`), and used by all of its statements.
_ALL = "*"


@dataclass(frozen=True)
class Statement:
    """One top-level statement of a module: the names that it binds or changes (or its text), and those that it uses."""

    node: ast.stmt
    text: str
    binds: frozenset[str]
    uses: frozenset[str]


@lru_cache(maxsize=2_000)  # while a folder is edited, all files but the edited ones stay the same
def statements_of(source: str | bytes) -> list[Statement]:
    """The statements of a module; a quoted name counts as a use, because annotations may be quoted."""
    found = []
    for node in ast.parse(source).body:
        # Compiled alone: statements such as `return` are inside of functions only.
        text, table = ast.dump(node), symtable.symtable(ast.unparse(node), "statement", "exec")
        binds = frozenset(_bound(node, table)) or frozenset([text])
        found.append(Statement(node, text, binds, frozenset(_used(node, table))))
    return found


def needed(statements: Iterable[Statement], names: Iterable[str]) -> list[Statement]:
    """The statements that *names* need, in order: those that bind or change them, and those that these use.

    A statement that only uses a name (`app.add("average", average)`) is not needed for it.
    """
    known, wanted, chosen = list(statements), {_ALL, *names}, set[int]()
    while more := {number for number, one in enumerate(known) if one.binds & wanted} - chosen:
        chosen |= more
        wanted.update(*(known[number].uses for number in more))
    return [known[number] for number in sorted(chosen)]


def _bound(node: ast.stmt, table: symtable.SymbolTable) -> Iterator[str]:
    """The names that a statement binds, or whose value it changes: also `table[1] = …` and `table.update(…)`."""
    yield from (one.get_name() for one in table.get_symbols() if one.is_assigned() or one.is_imported())
    if isinstance(node, ast.ImportFrom) and (node.module == "__future__" or node.names[0].name == "*"):
        yield _ALL
    for one in ast.walk(node) if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)) else ():
        stored = isinstance(one, (ast.Attribute, ast.Subscript)) and not isinstance(one.ctx, ast.Load)
        called = (
            isinstance(one, ast.Expr) and isinstance(one.value, ast.Call) and not isinstance(one.value.func, ast.Name)
        )
        if stored or called:
            yield from re.findall(r"\w+", ast.unparse(one))[:1]


def _used(node: ast.stmt, table: symtable.SymbolTable) -> Iterator[str]:
    """The module-level names that a statement, or its definition, refers to."""
    yield _ALL
    scopes = [table]
    for scope in scopes:
        scopes += scope.get_children()
        symbols = [one for one in scope.get_symbols() if one.is_referenced()]
        yield from (one.get_name() for one in symbols if scope is table or one.is_global())
    for one in ast.walk(node):
        for annotation in (getattr(one, "annotation", None), getattr(one, "returns", None)):
            if annotation is not None:
                yield from re.findall(r"[A-Za-z_]\w*", ast.unparse(annotation))


def changed_between(old: Namespace, new: Namespace) -> set[Definition]:
    """The definitions that differ between two states of a folder, and those that use them, in any of its modules.

    Comments, and the place of a definition in its file, do not count; neither do attributes that are looked up by a
    computed name (`getattr(module, text)`).
    """
    before, after = _definitions(old), _definitions(new)
    changed = {one for one in before.keys() | after.keys() if before.get(one) != after.get(one)}
    while more := {one for one, (_, uses) in after.items() if not changed.isdisjoint(uses)} - changed:
        changed |= more
    return changed


def _definitions(namespace: Namespace) -> Mapping[Definition, tuple[list[str], set[Definition]]]:
    """The definitions of a folder, each with the text of its statements and the definitions that these use."""
    found: defaultdict[Definition, tuple[list[str], set[Definition]]] = defaultdict(lambda: ([], set()))
    for file, source in namespace.sources.files.items():
        place = file.removesuffix(".py").split("/")
        module = ".".join(place).removesuffix("__init__").rstrip(".")
        with suppress(SyntaxError, ValueError):  # it is reported when the module is imported
            for one in statements_of(source):
                uses = {(module, name) for name in one.uses | one.binds}
                found[module, ""][1].update(uses)
                uses.update(_imported(namespace, place, one.node))
                for name in one.binds:
                    found[module, name][0].append(one.text)
                    found[module, name][1].update(uses)
    return found


def _imported(namespace: Namespace, place: list[str], node: ast.stmt) -> Iterator[Definition]:
    """Yield what a statement imports from the folder: `a.b` is a whole module, or a name in `a`."""
    for one in ast.walk(node):
        if isinstance(one, (ast.Import, ast.ImportFrom)):
            level, base = getattr(one, "level", 0), getattr(one, "module", "")
            for alias in one.names:
                name = ".".join(filter(None, (base, alias.name.strip("*"))))
                above = ".".join([namespace.name, *place[:-level]])
                target = f"{above}.{name}".rstrip(".") if level else namespace.resolve(name) or ""
                if f"{target}.".startswith(f"{namespace.name}."):
                    target = target[len(namespace.name) + 1 :]
                    module, _, name = target.rpartition(".")
                    yield from ((target, ""), (module, name), (module, _ALL))


def reusing(old: Namespace, new: Namespace) -> Callable[[ModuleType, bytes, str], None]:
    """Return what executes the modules of *new*: the statements that have changed; what others have bound is reused.

    A class that was not edited stays the same class, for `isinstance` and for its mementos; a slet that was not edited
    stays the same function, and is not replaced; objects that a module makes when it is imported are not made twice.
    """
    changed = changed_between(old, new)

    def execute(module: ModuleType, source: bytes, file: str) -> None:
        tree = ast.parse(source, file)
        module.__doc__ = ast.get_docstring(tree, clean=False)
        name = module.__name__.removeprefix(new.name).removeprefix(".")
        try:
            known = vars(import_module("", old, name))
        except BundleBroken:
            known = {}
        flags = compile(tree, file, "exec", dont_inherit=True).co_flags & annotations.compiler_flag
        for one in statements_of(source):
            if known and _ALL not in one.binds and changed.isdisjoint((name, each) for each in one.binds):
                vars(module).update((each, known[each]) for each in one.binds & known.keys())
            else:
                exec(compile(ast.Module([one.node], []), file, "exec", flags=flags, dont_inherit=True), vars(module))

    return execute


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
    digest = sha256(repr(sorted(modules.items())).encode()).hexdigest()
    own = package_name(package, f"0+dev.{number}")
    here = Path.cwd().resolve()  # from there, too, the modules of the package may import each other
    place = ".".join(folder.relative_to(here).parts) if folder.is_relative_to(here) else folder.name
    aliases = {**dict.fromkeys((place, folder.name, package), own), **wires}
    namespace = Namespace(own, Sources(folder, modules, digest), aliases)
    if before is not None:
        namespace.execute = reusing(before.namespace, namespace)
    namespace = load(namespace, name)
    try:
        plugin = load_offers(manifest, namespace) if manifest is not None else import_module(name, namespace, "")
        begin = f"{before.namespace.name if before is not None else own}."
        for module in [one.removeprefix(begin) for one in list(sys.modules) if one.startswith(begin)]:
            if namespace.sources.find(module) is not None:  # a mistake in any module that was imported before counts
                import_module(name, namespace, module)
    except BaseException:
        unload(namespace)
        raise
    return Generation(name, namespace, plugin)
