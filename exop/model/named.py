"""Classes by name: how a stored value says of which class it is, and how that class is found again."""

from __future__ import annotations

import importlib
import sys
from functools import lru_cache
from typing import Any, Final

from exop.errors import NotStorable, StoredStateError

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


@lru_cache(maxsize=4096)
def named(name: str) -> Any:
    """The class (or function) of this name.

    Raises:
        StoredStateError: there is none any more.
    """
    module, _, qualified = name.partition(":")
    try:
        found: Any = sys.modules.get(module) or importlib.import_module(module)
        for part in qualified.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError) as problem:
        raise StoredStateError(
            what=f"a value of {qualified}", problem=str(problem), cure=f"install the code that has {name}"
        ) from None
    return found


def forget(package: str) -> None:
    """Forget the classes of a package whose modules are no more."""
    for kind in [one for one in _names if one.__module__ == package or one.__module__.startswith(f"{package}.")]:
        del _names[kind]
    named.cache_clear()
