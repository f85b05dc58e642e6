"""The calling side of mementos."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from exop.errors import StoredStateError
from exop.model.memento import Memento
from exop.model.named import Declared, class_named
from exop.model.stored import declared_by, header, unpack
from exop.remoting.client import ControlClient
from exop.remoting.mementos import Exported
from exop.remoting.pieces import fetch
from exop.runtime.catalog import known_slets


def export_memento(client: ControlClient, request: Mapping[str, Any]) -> tuple[str, bytes]:
    """Ask for a memento as the content of a file; returns its form, and it."""
    found = client.call("export_memento", request, Exported, timeout=60.0)
    return found.form, fetch(client, found.number, found.size)


def as_memento(data: bytes, place: str) -> Memento:
    """A memento that has travelled, of its class; only plugins that are installed here are loaded for it.

    Raises:
        StoredStateError: its class is not here, or no memento.
    """
    known_slets()
    name = header(data, place).kind
    try:
        kind = class_named(name, "memento", lambda one: issubclass(one, Memento), Declared(Any))
    except StoredStateError as error:
        raise StoredStateError(
            what=place, problem=f"{name}: {error.problem}", cure="install the same code here"
        ) from None
    return unpack(data, kind, place, declared=declared_by(kind))
