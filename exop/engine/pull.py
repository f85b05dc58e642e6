"""`PullEngine`: the methods by which a platform runs one query on an engine that has threads of its own."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, Self

if TYPE_CHECKING:
    from exop.engine.feed import Feed


class Emit(Protocol):
    """The function by which an engine emits the results of a batch, before it commits the batch."""

    def __call__(self, batch: int, results: Iterable[Any], watermark: float | None = None) -> bool:
        """Send the results, each a payload for the output port, once per number of a batch.

        The watermark is that of the batch, if punctuations follow it. An exception means that the batch must not be
        committed, and ends the query. Return whether the results are sent, now or before; a slet that was replaced
        sends none.
        """


class PullEngine(ABC):
    """One query on an engine that pulls its input, and commits numbered batches itself.

    An `Engine` is called: the platform decides when a batch is processed (`push`, `advance`), and stores the state
    (`snapshot`, `restore`). A `PullEngine` decides both: instead of `push`, it reads the rows of each input from a
    `Feed`, by offset, and sends the results by `emit`; instead of `advance`, the platform derives the punctuations of
    the output from the offsets that the batches have reached, or from the watermark; instead of `snapshot` and
    `restore`, the engine commits its state, with its offsets, to a directory. `interrupt` and `close` may be called at
    any time.

    After a crash, the engine continues after the last batch that it has committed. A batch that was emitted but not
    committed is computed again under the same number, and its results are dropped. `Feed.latest` returns the same end
    for this batch.
    """

    #: Several batches may be computed as one, at the watermark of the first one, if no row is late.
    merges: bool = True

    @abstractmethod
    def compile(self, query: Any, feeds: Mapping[str, Feed]) -> None:
        """Check the query without data; *feeds* are its inputs. Called once, before all other methods.

        Raises:
            QueryError: the query is invalid. Give `problem` and, if known, the `position` in the text, from 0.
        """

    @abstractmethod
    def start(
        self, emit: Emit, directory: Path | None = None, predecessor: Self | bytes | None = None, batch: int = -1
    ) -> None:
        """Start to read the feeds, beginning after the last batch that is committed in *directory*.

        Without a directory, the state does not survive the process. With a *predecessor*, which is at rest, continue
        with a copy of its state after this batch; from another host, this is the result of its `pack`. The first batch
        has the number 0.
        """

    @abstractmethod
    def wait(self) -> None:
        """Wait until the query ends; raise the exception that has ended it. Called by a thread of the platform."""

    @abstractmethod
    def close(self) -> None:
        """Stop the query, perhaps amid a batch, and release all resources. The feeds return at once."""

    def interrupt(self) -> None:
        """Stop the query, perhaps amid a batch, and keep its state; called when a batch exceeds `time_limit`."""
        self.close()

    def settle(self) -> None:
        """Return when all emitted batches are committed, and no batch follows from the rows in the feeds."""

    def copy(self, predecessor: Self, directory: Path | None, batch: int) -> int | None:
        """Copy the state of a predecessor that runs, as of a batch that it has committed: *batch*, or a later one.

        Called between `compile` and `start`, which begins with the copy in *directory*, for slets that can follow
        others (`PullSlet.can_follow`). Return the number of the batch; `None` if there is nothing to copy.
        """
        raise NotImplementedError(f"{type(self).__name__} has no copy()")

    def pack(self, batch: int) -> bytes:
        """Return the state of the engine, which is at rest, after this batch. For slets that set `packs`."""
        raise NotImplementedError(f"{type(self).__name__} has no pack()")

    def metrics(self) -> dict[str, int | float | str]:
        """Return metrics of the engine; with event times and `copy`, also `late_rows`, the number of dropped rows."""
        return {}


@dataclass(frozen=True)
class Punctuate:
    """The rule by which punctuations leave.

    With `by="input"`, a punctuation leaves when all rows before it were processed; for queries whose results leave in
    the batch of their rows. With `by="watermark"`, it follows the watermark of the batch, for which windows wait.

    Args:
        by: The rule.
        complete: From that time to the time up to which the output is complete (`None`: not yet); by default the same.
    """

    by: Literal["input", "watermark"] = "input"
    complete: Callable[[float], float | None] = field(default=lambda time: time)
