"""The code of one version of a bundle: imported into its own namespace, and registered like any plugin."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from exop.bundle.manifest import Manifest, Offer
from exop.bundle.modules import Namespace, Sources, load, unload
from exop.errors import BundleBroken, ExopError, suggest
from exop.hooks import hookimpl
from exop.model.slets.slet import spec_of
from exop.model.values.classes import package_name
from exop.runtime.channels.base import Channel
from exop.safe_repr import RAISED, class_of, frames_of, message


@dataclass(frozen=True)
class Code:
    """The contents of a started bundle: a plugin like any other, with the bundle's `name@version` as its name."""

    namespace: Namespace
    slets: tuple[Any, ...] = ()
    channels: tuple[type[Channel], ...] = ()
    builders: tuple[Callable[..., Any], ...] = ()

    @hookimpl
    def register_slets(self) -> list[Any]:
        """The slets that the manifest names."""
        return list(self.slets)

    @hookimpl
    def register_channels(self) -> list[type[Channel]]:
        """The channel kinds that the manifest names."""
        return list(self.channels)

    @hookimpl
    def register_builders(self) -> list[Callable[..., Any]]:
        """The application builders that the manifest names."""
        return list(self.builders)


def load_code(manifest: Manifest, sources: Sources, wires: Mapping[str, str]) -> Code:
    """Import what a bundle offers; *wires* has the packages of other bundles that it imports, by their names there."""
    name = package_name(manifest.package, str(manifest.version))
    aliases = {manifest.package: name, **wires}
    namespace = load(Namespace(name, sources, aliases, tuple(sorted(wires.values()))), manifest.key)
    try:
        return load_offers(manifest, namespace)
    except BaseException:
        unload(namespace)
        raise


def load_offers(manifest: Manifest, namespace: Namespace) -> Code:
    """Import the attributes that a manifest names from a loaded namespace."""
    slets, names = [], set[str]()
    for offer in manifest.slets:
        slet = _find(manifest, namespace, offer)
        try:
            name = spec_of(slet).name
        except ExopError as problem:
            raise _broken(manifest, namespace, offer, str(problem)) from problem
        if name in names:
            raise _broken(manifest, namespace, offer, f"two slets are called {name!r}; give one another name=")
        slets.append(slet)
        names.add(name)
    channels = []
    for offer in manifest.channels:
        channel = _find(manifest, namespace, offer)
        if not (isinstance(channel, type) and issubclass(channel, Channel)):
            raise _broken(manifest, namespace, offer, f"{offer.attribute} is no sub-class of exop.Channel")
        channels.append(channel)
    builders = [_find(manifest, namespace, offer) for offer in manifest.builders]
    return Code(namespace, tuple(slets), tuple(channels), tuple(builders))


def import_module(bundle: str, namespace: Namespace, module: str) -> ModuleType:
    """Import one module of a bundle (`""`: the package itself)."""
    try:
        return importlib.import_module(f"{namespace.name}.{module}" if module else namespace.name)
    except RAISED as problem:
        file, line = place_of(problem, namespace.sources.folder)
        text = problem.msg if isinstance(problem, SyntaxError) else message(problem)
        text = text if isinstance(problem, ExopError) else f"{class_of(problem)}: {text}"
        raise BundleBroken(bundle=bundle, file=file, line=line, problem=text) from problem


def place_of(error: BaseException, folder: Path) -> tuple[str, int]:
    """The innermost line of an error's traceback in *folder*; the folder itself if there is none."""
    if isinstance(error, SyntaxError) and error.filename and Path(error.filename).is_relative_to(folder):
        return error.filename, error.lineno or 1
    for frame in reversed(frames_of(error)):
        if Path(frame.filename).is_relative_to(folder):
            return frame.filename, frame.lineno or 1
    return str(folder), 1


def _find(manifest: Manifest, namespace: Namespace, offer: Offer) -> Any:
    """Return the attribute of a module that a manifest names."""
    module = import_module(manifest.key, namespace, offer.module)
    if not hasattr(module, offer.attribute):
        known = [name for name, value in vars(module).items() if not name.startswith("_") and callable(value)]
        problem = f"{offer.module} has no {offer.attribute!r}; {suggest(offer.attribute, known)}"
        raise _broken(manifest, namespace, offer, problem)
    return getattr(module, offer.attribute)


def _broken(manifest: Manifest, namespace: Namespace, offer: Offer, problem: str) -> BundleBroken:
    module = import_module(manifest.key, namespace, offer.module)
    code = getattr(getattr(module, offer.attribute, None), "__code__", None)
    file, line = (code.co_filename, code.co_firstlineno) if code is not None else (module.__file__, 1)
    return BundleBroken(bundle=manifest.key, file=str(file), line=line, problem=problem)
