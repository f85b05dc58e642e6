"""Classes by name: how a stored value says of which class it is, and how that class is found again."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache
from typing import Any, Final

from exop.errors import NotStorable, StoredStateError
from exop.model.versions import find_version

_names: Final[dict[Any, str]] = {}


def name_of(kind: Any) -> str:
    """The name `module:Qualified.Name` under which another process finds a class (or a function) again.

    Raises:
        NotStorable: it stands in a function, or in a script, or under another name than its own.
    """
    known = _names.get(kind)
    if known is not None:
        return known
    module, qualified = kind.__module__, kind.__qualname__
    if module == "__main__":
        raise NotStorable(value=qualified, problem="it stands in a script", cure="define it in a module of a package")
    found: Any = sys.modules.get(module)
    for part in qualified.split("."):
        found = getattr(found, part, None)
    if found is not kind:
        problem = f"{module} does not have it under the name {qualified}"
        raise NotStorable(value=qualified, problem=problem, cure="define it at the top of a module, under its own name")
    return _names.setdefault(kind, f"{module}:{qualified}")


_LOADED_ONLY: ContextVar[bool] = ContextVar("exop loaded only", default=False)


@contextmanager
def loaded_only() -> Iterator[None]:
    """Import nothing in the block: for what comes from a file, or from somebody else."""
    token = _LOADED_ONLY.set(True)
    try:
        yield
    finally:
        _LOADED_ONLY.reset(token)


@lru_cache(maxsize=4096)
def named(name: str) -> Any:
    """The class (or function) of this name.

    Raises:
        StoredStateError: there is none any more.
    """
    # Of a version of a bundle that is loaded no more, the class of the version that is takes its place.
    module, _, qualified = (find_version(name) or name).partition(":")
    try:
        found: Any = sys.modules.get(module) or _imported(module)
        for part in qualified.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError) as problem:
        raise StoredStateError(
            what=f"a value of {qualified}", problem=str(problem), cure=f"install the code that has {name}"
        ) from None
    return found


def forget(package: str) -> None:
    """Forget the classes of a package whose modules come or go."""
    for kind in [one for one in _names if one.__module__ == package or one.__module__.startswith(f"{package}.")]:
        del _names[kind]
    named.cache_clear()


def class_named(name: str, kind: str, fits: Callable[[type], bool]) -> Any:
    """The class of this name, which must be *kind*: what is stored names classes, and nothing else is ever called.

    Raises:
        StoredStateError: there is none any more, or it is something else.
    """
    found = named(name)
    if not isinstance(found, type) or not fits(found):
        cure = "it was not written by ExoP, or the code has changed since"
        raise StoredStateError(what=f"a value of {name}", problem=f"that is no {kind}", cure=cure)
    return found


def factory_named(name: str) -> Any:
    """What makes the missing values of a `defaultdict`: of what comes from a file, or from somebody else, only a class.

    Raises:
        StoredStateError: there is none any more, or it makes nothing.
    """
    return class_named(name, "class", lambda _: True) if _LOADED_ONLY.get() else named(name)


def _imported(module: str) -> Any:
    if _LOADED_ONLY.get():
        raise ImportError(f"the module {module} is not loaded here")
    return importlib.import_module(module)
