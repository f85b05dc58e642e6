"""What a bundle requires, and whether it is there: ExoP's release, Python distributions, other bundles."""

from __future__ import annotations

from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, version

from packaging.requirements import Requirement
from packaging.version import InvalidVersion, Version

import exop
from exop.bundle.manifest import Manifest


def missing(manifest: Manifest, there: Iterable[Manifest]) -> list[str]:
    """What is missing for a bundle to be started, each with what cures it; *there* are the installed bundles."""
    known = list(there)
    found = []
    if not manifest.exop.contains(exop.__version__, prereleases=True):
        found.append(f"exop {manifest.exop} (this is {exop.__version__}: take another release of one of the two)")
    for needed in manifest.distributions:
        found += _missing_distribution(needed)
    for needed in manifest.bundles:
        if best(needed, known) is None:
            others = [str(one.version) for one in known if one.name == needed.name]
            has = f"installed: {', '.join(others)}; " if others else ""
            found.append(f"the bundle {needed} ({has}`exop bundle install FOLDER` of one that fits)")
    return found


def best(needed: Requirement, there: Iterable[Manifest]) -> Manifest | None:
    """The highest version that fits."""
    named = [one for one in there if one.name == needed.name]
    fitting = [one for one in named if needed.specifier.contains(one.version, prereleases=True)]
    return max(fitting, key=lambda one: one.version, default=None)


def _missing_distribution(needed: Requirement) -> list[str]:
    cure = f"`pip install '{needed}'` in the platform's environment"
    try:
        there = Version(version(needed.name))
    except PackageNotFoundError:
        return [f"the Python distribution {needed} ({cure})"]
    except InvalidVersion:
        return []  # it is there, and nobody can compare its version
    if needed.specifier.contains(there, prereleases=True):
        return []
    return [f"the Python distribution {needed} (installed: {there}; {cure})"]
