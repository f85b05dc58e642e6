"""Between Arrow and NumPy: columns of a record batch as arrays without a copy, and arrays as a record batch."""

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Ints: TypeAlias = npt.NDArray[np.int32]
Longs: TypeAlias = npt.NDArray[np.int64]
Floats: TypeAlias = npt.NDArray[np.float64]
Mask: TypeAlias = npt.NDArray[np.bool_]


def no_ints() -> Ints:
    """An empty array, as a memento starts with."""
    return np.zeros(0, np.int32)


def column(batch: pa.RecordBatch, name: str) -> Any:
    """The values of one column; they must not be written to."""
    return batch.column(name).to_numpy()


def columns(batch: pa.RecordBatch, *names: str) -> list[Any]:
    """The values of several columns."""
    return [batch.column(name).to_numpy() for name in names]


def concatenated(batches: list[pa.RecordBatch], *names: str) -> list[Any]:
    """The values of several columns, each joined over all *batches* (at least one)."""
    return [np.concatenate([batch.column(name).to_numpy() for batch in batches]) for name in names]


def record_batch(schema: pa.Schema, *arrays: npt.NDArray[Any]) -> pa.RecordBatch:
    """A record batch of *schema*, its columns in that order."""
    return pa.RecordBatch.from_arrays([pa.array(array) for array in arrays], schema=schema)


def grown(array: npt.NDArray[Any], size: int, fill: int) -> npt.NDArray[Any]:
    """*array* itself when it has room for *size* values, otherwise a larger copy of it.

    Doubling keeps the cost per vehicle constant while new ones keep coming.
    """
    if len(array) >= size:
        return array
    wanted = max(size, 2 * len(array))
    # Zeros are not touched until they are used: one far-out number costs address space, not time.
    larger = np.full(wanted, fill, array.dtype) if fill else np.zeros(wanted, array.dtype)
    larger[: len(array)] = array
    return larger
