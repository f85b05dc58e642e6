"""The requests for mementos to a running platform: export one, and plan that a node goes on from another."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from exop.model.exported import Form, document, exported, imported
from exop.model.memento import memento_of
from exop.remoting.changes import ChangeOperations
from exop.remoting.declare import Request, operation
from exop.remoting.offered import Changing
from exop.remoting.pieces import LARGEST_REQUEST, PIECE, Pieces
from exop.remoting.planned import Planned
from exop.shown import json_text


class OfMemento(Request, frozen=True):
    """Names a node whose memento is meant, and the form in which it leaves; `shown` is JSON for people alone."""

    application: str
    node: str
    form: Literal["json", "msgpack", "shown"] | None = None


class Exported(msgspec.Struct, frozen=True):
    """A memento that waits to be fetched: its form and size, and the number under which it is kept."""

    number: str
    form: Form
    size: int


class SomePiece(Request, frozen=True):
    """Names a piece of what is kept."""

    number: str
    offset: Annotated[int, msgspec.Meta(ge=0)]


class NextPiece(Request, frozen=True):
    """One more piece of what is to be kept."""

    number: str
    data: Annotated[bytes, msgspec.Meta(max_length=PIECE)]


class NewMemento(Request, frozen=True):
    """The state from which a node is to go on, kept under a number."""

    application: str
    node: str
    number: str


class MementoOperations:
    """The operations of one platform that are about mementos."""

    def __init__(self, platform: Changing, pieces: Pieces, changes: ChangeOperations) -> None:
        self._platform = platform
        self._pieces = pieces
        self._changes = changes

    @operation
    def export_memento(self, request: OfMemento) -> Exported:
        """Take a node's memento at a safe point, and keep it as the content of a file."""
        memento = self._platform.memento(request.application, request.node)
        place = f"{request.application}.{request.node}"
        if request.form == "shown":
            shown, _ = document(memento, place)
            data = json_text(shown).encode()
            return Exported(self._pieces.put(data), "json", len(data))
        form, data = exported(memento, place, request.form)
        return Exported(self._pieces.put(data), form, len(data))

    @operation
    def read_piece(self, request: SomePiece) -> bytes:
        """One piece of what was exported; the last one is given out once."""
        return self._pieces.read(request.number, request.offset)

    @operation(max_request=LARGEST_REQUEST)
    def send_piece(self, request: NextPiece) -> str:
        """Keep one more piece of a memento; returns the number under which."""
        return self._pieces.put(request.data, request.number)

    @operation
    def import_memento(self, request: NewMemento) -> Planned:
        """Plan that a node goes on from another state; the plan waits to be carried out."""
        mesh = self._platform.mesh(request.application)
        place = f"{request.application}.{request.node}"
        kind = memento_of(place, mesh.node(request.node).slet)
        memento = imported(self._pieces.take(request.number), kind, place)
        return self._changes.planned(mesh.restore(request.node, memento))
