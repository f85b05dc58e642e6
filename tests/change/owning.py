"""Slets that own something, such as a port: an instance that opens while another one has it fails, as a socket does."""

import errno
import os
import threading
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, Self

from exop import EndOfStream, Memento, OutputPort, Slet, input_port
from exop.errors import ChannelClosed
from tests.change.tools import PACE, Position
from tests.rig import PATIENCE


class Ports:
    """Who has each port, and in which order they came and went."""

    def __init__(self) -> None:
        self.owner: dict[int, Any] = {}
        self.log: list[str] = []
        self.numbers = [0]  # the last one is the last that was answered
        self.refused: set[str] = set()  # the slets that do not open

    def bind(self, port: int, one: Any) -> None:
        """Take a port, or fail as the system does."""
        name = type(one).__name__
        if name in self.refused:
            raise OSError(f"{name} is refused")
        if port in self.owner:
            self.log.append(f"{name} finds {port} in use")
            raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))
        self.owner[port] = one
        self.log.append(f"open {name} {port}")

    def free(self, port: int, one: Any) -> None:
        """Give a port back."""
        assert self.owner.pop(port) is one, "another one has it"
        self.log.append(f"close {type(one).__name__} {port}")


class Served(Memento):
    """How many items have passed."""

    count: int = 0


def owner(ports: Ports, kind: type, name: str, **traits: Any) -> Any:
    """A subclass of *kind* that owns a port while it is open."""

    class Owner(kind, name=name.lower(), **traits):  # type: ignore[misc, call-arg]
        port: int = 80

        def __enter__(self) -> Self:
            ports.bind(self.port, self)
            self.bound = self.port
            return self

        def __exit__(self, *exc: object) -> None:
            if isinstance(self, Answering):
                self.stop()
            ports.free(self.bound, self)

    Owner.ports = ports
    Owner.__name__ = Owner.__qualname__ = name
    return Owner


class Listening(Slet):
    """A source: counts, as long as it has its port."""

    position: Position

    def __iter__(self) -> Iterator[int | None]:
        while True:
            assert self.bound, "it is closed"  # type: ignore[attr-defined]
            self.position.number += 1
            yield self.position.number
            if self.position.number % 50 == 0:
                PACE.wait(0.0005)
                yield None


class Answering(Slet, own_driver=True):
    """A server: pushes what comes from outside, in a thread of its own for which it waits when it closes."""

    out: OutputPort[int]

    def ready(self) -> None:
        """Answer."""
        self.over, numbers = False, self.ports.numbers  # type: ignore[attr-defined]

        def answer() -> None:
            with suppress(ChannelClosed):
                while not self.over:
                    number = numbers[-1] + 1
                    self.out.push(number)
                    numbers.append(number)  # it has been answered

        self.thread = threading.Thread(target=answer, name="exop test answers")
        self.thread.start()

    def stop(self) -> None:
        """Answer no more."""
        self.over = True
        self.thread.join(PATIENCE)
        assert not self.thread.is_alive(), "a push does not return"


class Serving(Slet):
    """Passes items on, and serves them by its port."""

    served: Served

    @input_port
    def x(self, x: int) -> int:
        """Pass an item on."""
        self.served.count += 1
        assert x == self.served.count, f"{x} is not the next one behind {self.served.count - 1}"
        return x


class Pushing(Slet, own_driver=True):
    """Passes items on, from where they come in; its state says how many there were."""

    served: Served
    out: OutputPort[int]

    @input_port
    def x(self, x: int | EndOfStream) -> None:
        """Pass an item on."""
        if isinstance(x, EndOfStream):
            self.out.end()
        else:
            self.served.count += 1
            self.out.push(x)
