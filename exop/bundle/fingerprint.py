"""What a definition comes down to: a digest of its code and of all that it needs, in its module and in others."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from hashlib import sha256

from exop.bundle.closure import Part, needed, parts_of
from exop.bundle.modules import Sources

#: What the name of an import means: a module of the same folder (relative to it), or `None` for one of elsewhere.
Resolve = Callable[[str], str | None]


@dataclass
class Fingerprints:
    """The fingerprints of the definitions in a folder, as it was when it was read.

    Equal fingerprints mean that the code is the same but for comments and where it stands. What is looked up by a name
    that is computed (`getattr(module, text)`) is not seen.
    """

    sources: Sources
    resolve: Resolve
    _parts: dict[str, list[Part]] = field(default_factory=dict)
    _known: dict[tuple[str, str], str] = field(default_factory=dict)

    def parts(self, module: str) -> list[Part]:
        """The statements of a module; none of one that is not there, or no Python."""
        if module not in self._parts:
            found = self.sources.find(module)
            try:
                text = self.sources.files[found[0]] if found is not None and found[0] else b""
                self._parts[module] = parts_of(ast.parse(text))
            except (SyntaxError, ValueError):
                self._parts[module] = []
        return self._parts[module]

    def of(self, module: str, part: Part) -> str:
        """The fingerprint of one statement: of what it binds, or changes; of itself, where it does neither."""
        bound = {name for one in self.parts(module) for name in one.binds}
        names = part.binds or (part.changes & bound)
        if names:
            return self._of_names(module, names)
        parts = [part, *needed(self.parts(module), part.uses)]
        return _digest(self._lines(module, parts))

    def _of_names(self, module: str, names: Iterable[str]) -> str:
        key = module, " ".join(sorted(names))
        if key not in self._known:
            self._known[key] = "itself"  # modules that import each other
            self._known[key] = _digest(self._lines(module, needed(self.parts(module), names)))
        return self._known[key]

    def _lines(self, module: str, parts: Iterable[Part]) -> Iterator[str]:
        for part in parts:
            yield ast.dump(part.node)
            for target, name in self._imported(module, part.node):
                yield f"{target}.{name} {self._of_imported(target, name)}"

    def _imported(self, module: str, node: ast.stmt) -> Iterator[tuple[str, str]]:
        """What a statement imports from modules of the folder: the module, and a name in it (empty: all of it)."""
        for one in ast.walk(node):
            if isinstance(one, ast.Import):
                targets = [(self.resolve(alias.name), "") for alias in one.names]
            elif isinstance(one, ast.ImportFrom):
                base = self._base(module, one)
                targets = [(base, "" if alias.name == "*" else alias.name) for alias in one.names]
            else:
                continue
            yield from ((target, name) for target, name in targets if target is not None)

    def _base(self, module: str, node: ast.ImportFrom) -> str | None:
        if not node.level:
            return self.resolve(node.module or "")
        found = self.sources.find(module)
        package = module if found is not None and found[1] else module.rpartition(".")[0]
        for _ in range(node.level - 1):
            package = package.rpartition(".")[0]
        return ".".join(one for one in (package, node.module) if one)

    def _of_imported(self, target: str, name: str) -> str:
        below = ".".join(one for one in (target, name) if one)
        if name and self.sources.find(below) is None:
            return self._of_names(target, [name])
        # A whole module: whatever stands in it may be used.
        return self._of_names(below, {each for part in self.parts(below) for each in part.binds})


def _digest(lines: Iterable[str]) -> str:
    total = sha256()
    for line in lines:
        total.update(line.encode() + b"\n")
    return total.hexdigest()
