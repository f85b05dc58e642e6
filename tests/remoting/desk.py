"""The operations that the tests ask."""

import threading
from typing import Annotated

import msgspec

from exop.errors import ComponentFailed, ExopError
from exop.remoting import Page, PageRequest, Request, operation, page


class Words(Request, frozen=True):
    """A few words."""

    words: Annotated[list[str], msgspec.Meta(max_length=1000)]
    times: int = 1


class Size(Request, frozen=True):
    """How much is wanted."""

    size: int


class Upload(Request, frozen=True):
    """Something large."""

    data: bytes


class Answer(msgspec.Struct, frozen=True):
    """A typed reply."""

    text: str
    count: int


class PluginError(ExopError):
    """A class that only this side knows."""


class Desk:
    """Asked over a connection, or directly: the methods stay methods."""

    def __init__(self) -> None:
        self.open = threading.Event()
        self.waiting = threading.Semaphore(0)
        self.names = [f"service {number:03}" for number in range(250)]

    @operation
    def echo(self, request: Words) -> Answer:
        """Say the words again."""
        return Answer(" ".join(request.words * request.times), len(request.words))

    @operation
    def ready(self) -> bool:
        """Say yes."""
        return True

    @operation
    def fill(self, request: Size) -> bytes:
        """Answer with so many bytes."""
        return bytes(request.size)

    @operation(max_request=4_000_000)
    def upload(self, request: Upload) -> int:
        """Take something large."""
        return len(request.data)

    @operation
    def linger(self) -> str:
        """Answer when the desk opens."""
        self.waiting.release()
        self.open.wait(60)
        return "open"

    @operation(name="services")
    def list_services(self, request: PageRequest) -> Page[str]:
        """Name all services, a page at a time."""
        return page(self.names, request, key=str)

    @operation
    def refuse(self) -> None:
        """Fail on purpose."""
        error = ComponentFailed(node="average", phase="open", problem="no room", port={"a", "b"}, thing=object)
        error.add_note("item 17")
        raise error

    @operation
    def plugin(self) -> None:
        """Fail with an error of a plugin."""
        raise PluginError("the engine is out of oil", engine="spark")

    @operation
    def stumble(self) -> None:
        """Fail by mistake."""
        raise ZeroDivisionError("secret: 42")

    @operation
    def leave(self) -> None:
        """Try to end the process."""
        raise SystemExit(3)

    @operation
    def unpackable(self) -> object:
        """Answer with what has no plain form."""
        return object()
