"""`Receipt`: stands for the rows that one task of a micro-batch has put into a file."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from exop.engine import Reference


@dataclass(frozen=True)
class Receipt(Reference):
    """The reference to a file of rows, which passes through the platform in place of the rows.

    Attributes:
        query: The query's name, and Spark's number of it.
        batch, partition: The micro-batch, and the partition of its result.
        bytes: The size of the file.
        offsets: For each input, how far it had been read behind the micro-batch.
    """

    query: str
    batch: int
    partition: int
    bytes: int
    offsets: dict[str, Any]
