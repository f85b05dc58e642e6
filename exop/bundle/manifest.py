"""`bundle.toml`: the manifest of a bundle as a value, and the requirements in it that are missing."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import PurePosixPath
from typing import Any, Final, TypeVar

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion, Version

import exop
from exop.errors import BundleError, RegistryError, suggest
from exop.model.properties import freeze
from exop.model.values.classes import package_name
from exop.model.values.depth import read_toml

T = TypeVar("T")
MANIFEST: Final = "bundle.toml"
_NAME: Final = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
_OFFER: Final = re.compile(r"([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*):([A-Za-z_]\w*)")
#: The kinds of values, in words.
_TEXT, _TEXTS, _TABLE = "a text", "a list of texts", "a table"
#: The keys, each with the kind of its value.
_KEYS: Final = {
    **dict.fromkeys(("name", "version", "description"), _TEXT),
    **dict.fromkeys(("slets", "channels", "builders", "files", "wired"), _TEXTS),
    **dict.fromkeys(("requires", "properties"), _TABLE),
}
_REQUIRES: Final = {"exop": _TEXT, "bundles": _TEXTS, "distributions": _TEXTS}


@dataclass(frozen=True)
class Offer:
    """A slet, channel kind or builder of a bundle: an attribute of one of its modules."""

    module: str
    attribute: str

    def __str__(self) -> str:
        return f"{self.module}:{self.attribute}"


@dataclass(frozen=True)
class Manifest:
    """The name of a bundle, its requirements and its contents.

    Attributes:
        exop: The releases of ExoP that it works with.
        bundles: Other bundles that it imports from.
        wired: Those of them of which an update has chosen the version, which the local part of `version` names.
        distributions: Python distributions that must be installed.
        files: Patterns of the files beside its modules that belong to it.
        properties: Further properties of its services in the registry.
    """

    name: str
    version: Version
    description: str = ""
    slets: tuple[Offer, ...] = ()
    channels: tuple[Offer, ...] = ()
    builders: tuple[Offer, ...] = ()
    files: tuple[str, ...] = ()
    exop: SpecifierSet = field(default_factory=SpecifierSet)
    bundles: tuple[Requirement, ...] = ()
    wired: tuple[Requirement, ...] = ()
    distributions: tuple[Requirement, ...] = ()
    properties: Mapping[str, Any] = field(default_factory=dict)

    @property
    def key(self) -> str:
        """`name@version`: the name of this version on every platform."""
        return f"{self.name}@{self.version}"

    @property
    def package(self) -> str:
        """The package name in imports of its modules, its own and those of other bundles."""
        return self.name.replace("-", "_")

    @property
    def code_package(self) -> str:
        """The full name of the package of its modules."""
        return package_name(self.package, str(self.version))

    @property
    def needed(self) -> list[Requirement]:
        """The bundles that it requires, with the versions that an update has chosen."""
        chosen = {one.name: one for one in self.wired}
        return [chosen.get(one.name, one) for one in self.bundles]


def name_from(text: str) -> str:
    """The nearest valid name of a bundle: `Linear_Road` becomes `linear-road`."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-") or "bundle"


def read_manifest(text: str, place: str) -> Manifest:
    """Read a `bundle.toml`. Errors refer to it by *place*."""
    try:
        document = read_toml(text)
    except ValueError as problem:
        raise _wrong(place, f"has a {MANIFEST} that is no TOML: {problem}", "correct it") from None
    _check(place, "key", document, _KEYS)
    for key in ("name", "version"):
        if key not in document:
            raise _wrong(place, f"has no {key}", f'write {key} = "…" in its {MANIFEST}')
    if not _NAME.fullmatch(name := document["name"]):
        raise _wrong(place, f"is called {name!r}", "use small letters, digits and '-', beginning with a letter")
    requires = document.get("requires", {})
    _check(place, "key of [requires]", requires, _REQUIRES)
    try:
        properties = freeze(document.get("properties", {}))
    except RegistryError as problem:
        raise _wrong(place, f"has an invalid property: {problem}", "correct its [properties]") from None
    wired = tuple(_requirement(place, text) for text in document.get("wired", ()))
    version = document["version"]
    for one in wired:
        version += ("." if "+" in version else "+") + re.sub("[^a-z0-9]+", ".", str(one))
    return Manifest(
        name,
        _parsed(place, Version, version, "has the version", 'write one like "1.2.0"'),
        document.get("description", ""),
        _offers(place, "slets", document),
        _offers(place, "channels", document),
        _offers(place, "builders", document),
        files=tuple(_pattern(place, text) for text in document.get("files", ())),
        exop=_parsed(place, SpecifierSet, requires.get("exop", ""), "requires exop", 'write a range like ">=0.1,<1"'),
        bundles=tuple(_requirement(place, text) for text in requires.get("bundles", ())),
        wired=wired,
        distributions=tuple(_requirement(place, text) for text in requires.get("distributions", ())),
        properties=properties,
    )


def wired_to(text: str, manifest: Manifest, others: Iterable[Manifest]) -> str:
    """Return the text of a manifest for the same code that imports from these versions of required bundles.

    Its first line has them, in place of those of an earlier update.
    """
    chosen = {one.name: str(one) for one in manifest.wired}
    chosen |= {one.name: f"{one.name}==={one.version}" for one in others}
    # The key stands before all tables, one of which may have another of this name.
    rest = re.sub(r"(?m)^[ \t]*wired\s*=\s*\[[^]]*\].*\n?", "", text, count=1) if manifest.wired else text
    return f"wired = {json.dumps([chosen[name] for name in sorted(chosen)])}\n{rest}"


def missing_requirements(
    manifest: Manifest, known: Collection[Manifest], bring: str = "`exop bundle install FOLDER` of one that fits"
) -> list[str]:
    """The missing requirements of a bundle, each with its cure; *known* bundles are there, and *bring* adds others."""
    found = []
    if not manifest.exop.contains(exop.__version__, prereleases=True):
        found.append(f"exop {manifest.exop} (this is {exop.__version__}: take another release of one of the two)")
    for needed in manifest.distributions:
        try:
            there = Version(version(needed.name))
            fits, has = needed.specifier.contains(there, prereleases=True), f"installed: {there}; "
        except PackageNotFoundError:
            fits, has = False, ""
        except InvalidVersion:  # it is installed, and its version cannot be compared
            fits, has = True, ""
        if not fits:
            cure = f"`pip install '{needed}'` in the platform's environment"
            found.append(f"the Python distribution {needed} ({has}{cure})")
    for needed in manifest.needed:
        if best(needed, known) is None:
            others = [str(one.version) for one in known if one.name == needed.name]
            has = f"installed: {', '.join(others)}; " if others else ""
            found.append(f"the bundle {needed} ({has}{bring})")
    return found


def best(needed: Requirement, there: Iterable[Manifest]) -> Manifest | None:
    """The highest version among *there* that fits; `None` if none does."""
    named = [one for one in there if one.name == needed.name]
    fitting = [one for one in named if needed.specifier.contains(one.version, prereleases=True)]
    return max(fitting, key=lambda one: one.version, default=None)


def _check(place: str, what: str, table: Mapping[str, Any], known: Mapping[str, str]) -> None:
    for key, value in table.items():
        if key not in known:
            raise _wrong(place, f"has the unknown {what} {key!r} in its {MANIFEST}", suggest(key, known, "key"))
        texts = isinstance(value, list) and all(isinstance(one, str) for one in value)
        kind = _TEXT if isinstance(value, str) else _TABLE if isinstance(value, dict) else _TEXTS if texts else ""
        if kind != known[key]:
            raise _wrong(place, f"has {key} = {value!r} in its {MANIFEST}", f"write {known[key]}")


def _parsed(place: str, parse: Callable[[str], T], text: str, what: str, cure: str) -> T:
    try:
        return parse(text)
    except (ValueError, RecursionError):
        raise _wrong(place, f"{what} {text!r}", cure) from None


def _requirement(place: str, text: str) -> Requirement:
    found = _parsed(place, Requirement, text, "requires", 'write a name and a range, like "numbers>=1,<2"')
    if found.url or found.extras or found.marker:
        raise _wrong(place, f"requires {text!r}", "only a name and a range of versions can be required")
    return found


def _offers(place: str, key: str, document: Mapping[str, Any]) -> tuple[Offer, ...]:
    offers = []
    for text in document.get(key, ()):
        if (found := _OFFER.fullmatch(text)) is None:
            raise _wrong(place, f"offers {text!r} among its {key}", 'write "module:name", like "slets:average"')
        offers.append(Offer(found[1], found[2]))
    return tuple(offers)


def _pattern(place: str, text: str) -> str:
    if not text or (path := PurePosixPath(text)).is_absolute() or ".." in path.parts:
        raise _wrong(place, f"names the files {text!r}", "write paths or patterns inside the bundle's folder")
    return text


def _wrong(place: str, problem: str, cure: str) -> BundleError:
    return BundleError(bundle=place, problem=problem, cure=cure)
