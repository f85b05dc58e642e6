"""Shared fixtures of exop-spark's tests: a port that notes what leaves, and one Spark for all of them."""

import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pytest
from exop_spark.execution import run
from exop_spark.session.engine import Lease, lease

from exop import OutputPort, Punctuation
from exop.engine import following


@dataclass
class Noted(OutputPort[Any]):
    """An output port that notes what leaves; `wait_for` waits until enough did."""

    items: list[Any] = field(default_factory=list)
    ended: bool = False
    error: BaseException | None = None

    def __post_init__(self) -> None:
        self._changed = threading.Condition()

    def push(self, item: Any) -> None:
        """Note an item."""
        self._note(lambda: self.items.append(item))

    def push_batch(self, batch: Any) -> None:
        """Note a batch."""
        self._note(lambda: self.items.append(batch))

    def end(self) -> None:
        """Note the end."""
        self._note(lambda: setattr(self, "ended", True))

    def fail(self, error: BaseException) -> None:
        """Note a failure."""
        self._note(lambda: setattr(self, "error", error))

    @property
    def batches(self) -> list[pa.RecordBatch]:
        """The batches that left."""
        return [item for item in self.items if isinstance(item, pa.RecordBatch)]

    @property
    def punctuations(self) -> list[float]:
        """The times of the punctuations that left."""
        return [item.time for item in self.items if isinstance(item, Punctuation)]

    def table(self) -> list[tuple[Any, ...]]:
        """All rows that left."""
        return [tuple(row.values()) for batch in self.batches for row in batch.to_pylist()]

    def wait_for(self, condition: Any, timeout: float = 240.0) -> None:
        """Wait until *condition()* holds, or something failed."""
        with self._changed:
            assert self._changed.wait_for(lambda: condition() or self.error is not None, timeout), self.items

    def _note(self, change: Any) -> None:
        with self._changed:
            change()
            self._changed.notify_all()


@pytest.fixture
def out() -> Noted:
    """A port that notes what leaves."""
    return Noted()


@pytest.fixture
def noted() -> type[Noted]:
    """To make several such ports."""
    return Noted


@pytest.fixture
def unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a successor take long to come where its predecessor is, as it does on a busy machine."""
    for module, limit in ((following, "_SENDING"), (following, "_PATIENCE"), (run, "_PATIENCE")):
        monkeypatch.setattr(module, limit, 240.0)


@pytest.fixture(scope="session")
def spark() -> Iterator[Lease]:
    """Keep one Spark running for all tests that need it."""
    share = lease()
    yield share
    share.release()
