"""Items of the user's own classes as text: one that cannot be shown must not end what reports on it."""

from __future__ import annotations

from typing import Any


def shown(item: Any, most: int = 500) -> str:
    """The item's `repr()`, shortened; whose `repr()` raises, of that the class."""
    try:
        text = repr(item)
    except Exception as problem:  # noqa: BLE001 (whatever a class of the user's raises)
        return f"{type(item).__name__} (its repr() raised {type(problem).__name__})"
    return text if len(text) <= most else f"{text[:most]}… ({len(text)} characters)"
