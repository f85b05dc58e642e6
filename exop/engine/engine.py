"""`Engine`: the methods by which a platform runs one query on an engine; and the memento of an engine."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import field
from typing import Any, ClassVar

from exop.model.slets.memento import Memento


class Engine(ABC):
    """One query on an engine. Each instance of a slet has an engine of its own.

    The methods are called by one thread at a time, but not always by the same thread; only `interrupt` is called while
    another method runs. `push` and `advance` either return, or raise and leave the state as it was before the call: the
    same batch may be pushed again.

    Attributes:
        name, version: The format of the snapshots. A snapshot of another name, or of a newer version, is not restored.
    """

    name: ClassVar[str]
    version: ClassVar[int] = 1

    @abstractmethod
    def compile(self, query: str) -> None:
        """Open the engine, and check the query without data. Called once, before all other methods.

        Raises:
            QueryError: the query is invalid. Give `problem` and, if known, the `position` in the text, from 0.
        """

    @abstractmethod
    def push(self, port: str, batch: Any) -> Iterable[Any]:
        """Process a batch that arrives at an input port; return the results, each a payload for the output port.

        *batch* is a list or a `pyarrow.RecordBatch`, as the annotation of the port declares.
        """

    @abstractmethod
    def advance(self, time: float) -> Iterable[Any]:
        """Return the results that are final because all inputs are complete up to *time*; infinite at their end."""

    def windows(self, time: float) -> list[float]:
        """Return the times, the last of which is *time*, at which one window after the other is complete."""
        return [time]

    def take_out(self, time: float) -> Sequence[tuple[str, Any]] | None:
        """Remove the rows of a window for which `advance` raises, and return them with their ports; `None`: it cannot.

        They may be pushed again: mark them, for example in the metadata of their schema, so that they are not late.
        """
        return None

    @abstractmethod
    def snapshot(self) -> bytes:
        """Return the whole state."""

    @abstractmethod
    def restore(self, state: bytes, version: int) -> None:
        """Replace the whole state by a snapshot, which may be from another instance, query, process or host.

        Raises:
            QueryError: the query cannot continue with this state.
        """

    @abstractmethod
    def interrupt(self) -> None:
        """Make the call in progress raise an exception soon. Called by another thread, perhaps more than once."""

    @abstractmethod
    def close(self) -> None:
        """Release all resources. Called once, also if `compile` has raised."""

    def metrics(self) -> dict[str, int | float | str]:
        """Return metrics of the engine."""
        return {}


class EngineState(Memento):
    """The state of a query: a snapshot of its engine, and the time of each input.

    Attributes:
        engine, version: The format of the snapshot.
        snapshot: The last snapshot; empty if the engine has not processed any input.
        times: The time up to which each input is complete; infinite if the input has ended.
    """

    engine: str = ""
    version: int = 0
    snapshot: bytes = b""
    times: dict[str, float] = field(default_factory=dict)
