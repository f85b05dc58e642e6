"""`exop dev`: an edited folder is loaded again, and what has changed in it is replaced in the running mesh.

A generation is the folder as it was loaded: of its definitions, only those are executed that have changed.
"""

from __future__ import annotations

import ast
import dataclasses
import re
import symtable
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from functools import lru_cache
from itertools import count
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

from exop.bundle.manifest import MANIFEST, Manifest, name_from
from exop.bundle.modules import Namespace, import_module, load, load_offers, place_of, unload
from exop.bundle.store import checked_archive
from exop.errors import BundleBroken, BundleError, StaleMesh
from exop.model.meshes.mesh import Mesh
from exop.model.syntax import parsed
from exop.model.values.classes import package_name
from exop.remoting.api.folder_archive import belongs, files_of
from exop.remoting.identity import file_stamps
from exop.safe_repr import RAISED

if TYPE_CHECKING:
    from exop.bundle.installed import BundleContext
    from exop.wiring import Plan

#: Starts the bundles that a manifest requires; returns their manifests.
Wire = Callable[[Manifest], Iterable[Manifest]]
#: A definition of a folder: its module, and its name there; the empty name stands for all of the module.
Definition: TypeAlias = tuple[str, str]
#: Bound by imports that concern a whole module (of `__future__`, and of `*`), and used by all of its statements.
_ALL = "*"
#: Builds the mesh with the application builders of the folder.
Build: TypeAlias = "Callable[[Generation], Mesh]"
_SUFFIXES: Final = (".py", ".toml")
_UNSET: Final = object()
#: The numbers of the generations of this process: no two have modules of one name.
_numbers = count(1)


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
    for node in parsed(source).body:
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
        call = one.value if isinstance(one, ast.Expr) else None
        if stored or (isinstance(call, ast.Call) and not isinstance(call.func, ast.Name)):
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
    for file, source in namespace.files.items():
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
        tree = parsed(source, file)
        module.__doc__ = ast.get_docstring(tree, clean=False)
        name = module.__name__.removeprefix(new.name).removeprefix(".")
        known: dict[str, Any] = {}
        with suppress(BundleBroken):
            known = vars(import_module("", old, name))
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


def check_folder(folder: Path) -> None:
    """Raise `BundleError` unless a folder is a package or a bundle."""
    if not any((folder / one).is_file() for one in (MANIFEST, "__init__.py")):
        lacks = f"has neither a {MANIFEST} nor an __init__.py" if folder.is_dir() else "is no folder"
        problem = f"cannot be developed: {folder} {lacks}"
        cure = "make it a package with a @hookimpl register_builders(), or `exop bundle new`"
        raise BundleError(bundle=folder.name, problem=problem, cure=cure)


def load_generation(folder: Path, before: Generation | None, wire: Wire) -> Generation:
    """Import a folder; definitions that have not changed since *before* are taken over from it."""
    check_folder(folder)
    files = {str(path): (folder / path).read_bytes() for path in files_of(folder)}
    modules = {path: content for path, content in files.items() if path.endswith(".py")}
    manifest: Manifest | None = None
    required: Iterable[Manifest] = ()
    if MANIFEST in files:
        manifest = checked_archive(files, str(folder)).manifest
        name, package, required = manifest.key, manifest.package, wire(manifest)
    else:
        name, package = folder.name, name_from(folder.name).replace("-", "_")
    own = package_name(package, f"0+dev.{next(_numbers)}")
    here = Path.cwd().resolve()  # from there, too, the modules of the package may import each other
    place = ".".join(folder.relative_to(here).parts) if folder.is_relative_to(here) else folder.name
    aliases = dict.fromkeys((place, folder.name, package), own) | {one.package: one.code_package for one in required}
    namespace = Namespace(own, folder, modules, "", aliases)
    if before is not None:
        namespace.execute = reusing(before.namespace, namespace)
    namespace = load(namespace, name)
    try:
        plugin = load_offers(manifest, namespace) if manifest is not None else import_module(name, namespace, "")
        begin = f"{before.namespace.name if before is not None else own}."
        for module in [one.removeprefix(begin) for one in list(sys.modules) if one.startswith(begin)]:
            if namespace.find(module) is not None:  # a mistake in any module that was imported before counts
                import_module(name, namespace, module)
    except BaseException:
        unload(namespace)
        raise
    return Generation(name, namespace, plugin)


@dataclass(frozen=True)
class Outcome:
    """The result of saving a folder: the steps of the change, the seconds that it paused the stream, or the error."""

    verb: Literal["runs", "changed", "unchanged", "refused"]
    application: str = ""
    steps: tuple[str, ...] = ()
    paused: float = 0.0
    error: BaseException | None = None


class Development:
    """One folder that is being edited (a package with hooks, or a bundle), and the application that it describes."""

    def __init__(self, context: BundleContext, folder: Path, build: Build, wire: Wire) -> None:
        self._context = context
        self._wire = wire
        self._loaded: list[Generation] = []
        self._offered = ""
        self._folder = folder.resolve()
        self._build = build
        self._built: Mesh | None = None

    @property
    def application(self) -> str:
        """The application that was built last; empty before that."""
        return self._built.name if self._built is not None else ""

    def take(self) -> Outcome:
        """Load the folder as it is now, and change the running application to it.

        Problems are returned, never raised: the application runs on, and the next save is tried again.
        """
        before, made = self._loaded[-1] if self._loaded else None, None
        try:
            made = load_generation(self._folder, before, self._wire)
            self._offer(made)
            mesh = self._build(made)
            outcome = self._apply(mesh)
        except RAISED as error:
            if made is not None:
                self._offer(before)
                unload(made.namespace)
            return Outcome("refused", self.application, error=error)
        self._built = mesh
        self._loaded.append(made)
        return outcome

    def close(self) -> None:
        """Withdraw the slets of the folder, and remove its modules from Python; nothing of it runs any more."""
        self._offer(None)
        while self._loaded:
            unload(self._loaded.pop().namespace)
        self._built = None

    def _offer(self, generation: Generation | None) -> None:
        """Register the slets of one generation under the plugin name of the folder, in place of those before."""
        plugins = self._context.catalog.plugins
        plugins.unregister(self._offered)
        self._offered = ""
        self._context.gather()  # the old slets must be forgotten before others get their names
        if generation is None:
            return
        plugins.register(generation.name, generation.plugin)
        self._offered = generation.name
        self._context.gather()
        if (problem := plugins.broken.get(generation.name)) is not None:
            file, line = place_of(problem.__cause__ or problem, self._folder)
            raise BundleBroken(bundle=generation.name, file=file, line=line, problem=str(problem.problem)) from problem

    def _apply(self, mesh: Mesh) -> Outcome:
        hosts, deployed = self._context.hosts, self._context.applications.deployed
        for left in reversed(range(3)):  # the application may be changed meanwhile
            if (running := next((one for one, _ in hosts.running() if one.name == mesh.name), None)) is None:
                hosts.apply(mesh.at(0))
                return Outcome("runs", mesh.name)
            with suppress(StaleMesh) if left else nullcontext():
                if not (plan := hosts.plan(self._merged(running, mesh))):
                    return Outcome("unchanged", mesh.name)
                plan.apply(stall=True)
                last = deployed[mesh.name].last_change if mesh.name in deployed else None
                return Outcome("changed", mesh.name, _steps(plan), last[1] if last is not None else 0.0)
        raise AssertionError("the last try raises or returns")

    def _merged(self, running: Mesh, mesh: Mesh) -> Mesh:
        """Merge the new mesh with the settings that an operator has changed meanwhile; edited settings win."""
        nodes = dict(mesh.nodes)
        built = self._built.nodes if self._built is not None else {}
        for name in nodes.keys() & built.keys() & running.nodes.keys():
            was, now, node = built[name], running.nodes[name], nodes[name]
            before, current, edited = was.set_settings(), now.set_settings(), node.set_settings()
            kept = {key for key in node.slet.settings if edited.get(key, _UNSET) == before.get(key, _UNSET)}
            known = {key: value for key, value in edited.items() if key not in kept}
            known |= {key: value for key, value in current.items() if key in kept}
            node = dataclasses.replace(node, settings=node.slet.configured(name, known), given=frozenset(known))
            host = now.host if node.host == was.host else node.host
            nodes[name] = dataclasses.replace(node, suspended=now.suspended, host=host)
        return dataclasses.replace(mesh, nodes=nodes, revision=running.revision)


class WatchedFolder:
    """The sources of a folder, polled for changes.

    A change counts when two polls in a row find the same: then an editor that writes several files, or one file in
    several steps, has finished. Polling some dozens of files is cheap, so it needs no library.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._reported = self._last = self._files()

    def changed(self) -> bool:
        """Poll; whether there is a change, and nothing has changed since the last poll."""
        before, self._last = self._last, self._files()
        if self._last != before or self._last == self._reported:
            return False
        self._reported = self._last
        return True

    def _files(self) -> tuple[object, ...]:
        """The files now; those that come and go meanwhile are found by the next poll."""
        files = (path for path in self._folder.rglob("*") if path.suffix in _SUFFIXES)
        return file_stamps(path for path in files if belongs(path.relative_to(self._folder).as_posix(), None))


def _steps(plan: Plan) -> tuple[str, ...]:
    done = [
        "; ".join([f"{step.verb} {step.node}", *([step.state.text] if step.state else []), *map(str, step.settings)])
        for step in plan.steps
    ]
    return (*done, *plan.notes)
