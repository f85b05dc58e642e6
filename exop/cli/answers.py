"""Being ready to answer other terminals before the drivers run."""

from __future__ import annotations

from importlib import import_module
from typing import Final

#: What the first peer, the first filter and the first log line would otherwise import.
_NEEDED: Final = (
    "exop.remoting.operations",
    "exop.remoting.session",
    "exop.remoting.paging",
    "exop.model.filter_text",
    "structlog",
)


def load_answers() -> None:
    """Import what answering takes.

    Beside busy drivers an import takes a hundred times as long: every look into a folder gives up the interpreter lock,
    and waits for it again.
    """
    for name in _NEEDED:
        import_module(name)
