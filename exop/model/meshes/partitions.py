"""Partitions of a stream: the hash that assigns a partition to a key, and the ranges that the members of a group own.

The hash is part of the persisted format: it gives the same partition on every host, in every process and release, for
an item and for a column. Keys that are equal in Python (1, 1.0, True, Decimal(1); 0.0, -0.0) are one key.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from numbers import Integral, Real
from typing import Annotated, Any, Final, TypeAlias, TypeVar
from uuid import UUID
from zlib import crc32

from exop.model.types.description import type_of

#: The number of partitions of a channel, by default.
PARTITIONS: Final = 256
#: The maximum number of partitions.
MOST: Final = 65_536
#: A number is hashed as its residue modulo this prime, as in CPython: equal numbers of all types have one residue.
_PRIME: Final = 2**61 - 1
_NAN: Final = _PRIME
#: Fibonacci hashing: the high bits of the product with 2⁶⁴ divided by the golden ratio.
_GOLDEN: Final = 0x9E3779B97F4A7C15
_WORD: Final = 2**64 - 1
_EPOCHS: Final = {False: datetime(1970, 1, 1), True: datetime(1970, 1, 1, tzinfo=UTC)}


class _Keyed:
    """Marks the annotation of a field of a memento that is split by partitions."""

    def __repr__(self) -> str:
        return "Keyed"


KEYED: Final = _Keyed()
K = TypeVar("K")
V = TypeVar("V")
#: A field of a memento with the state of each key: `by_xway: Keyed[int, float] = field(default_factory=dict)`. The keys
#: are values of the field by which a channel is partitioned; when partitions move, their keys move to other members.
Keyed: TypeAlias = Annotated[dict[K, V], KEYED]


def keyed_fields(kind: type) -> list[str]:
    """The fields of a memento class that are split by partitions."""
    return [name for name, field in type_of(kind).fields.items() if KEYED in field.type.notes]


def partition_of(key: Any, partitions: int = PARTITIONS) -> int:
    """Return the partition of a key.

    >>> partition_of(7) == partition_of(7.0)
    True
    """
    residue = key % _PRIME if type(key) is int else _residue(key)
    return (((residue * _GOLDEN) & _WORD) >> 32) * partitions >> 32


def _residue(key: Any) -> int:
    """Return a number below 2⁶⁴ that is the same for equal keys."""
    if isinstance(key, str):
        return crc32(key.encode("utf-8", "surrogatepass"))
    if isinstance(key, (int, Integral)):
        return int(key) % _PRIME
    if isinstance(key, Decimal):
        # Without expanding the number, which may have a billion digits.
        sign, digits, exponent = key.as_tuple()
        if not isinstance(exponent, int):
            return _NAN
        return int(Decimal((sign, digits, 0))) * pow(10, exponent, _PRIME) % _PRIME
    if isinstance(key, (float, Real)):
        try:
            numerator, denominator = key.as_integer_ratio()  # type: ignore[union-attr]
            return int(numerator * pow(denominator, -1, _PRIME) % _PRIME)
        except (OverflowError, ValueError):  # infinite, no number, or a fraction of the prime
            return _NAN
    if key is None:
        return 0
    if isinstance(key, bytes):
        return crc32(key)
    if isinstance(key, tuple):
        return crc32(b"".join(_residue(one).to_bytes(8, "little") for one in key))
    if isinstance(key, datetime):
        since = key - _EPOCHS[key.utcoffset() is not None]
        return ((since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds) % _PRIME
    if isinstance(key, date):
        return key.toordinal()
    if isinstance(key, UUID):
        return key.int % _PRIME
    if getattr(key, "shape", None) == () and key.dtype.kind == "b":  # a `bool` of NumPy is no number to Python
        return int(key)
    cure = "partition by a number, text, bytes, a date, a UUID, None, or a tuple of these"
    raise TypeError(f"{key!r:.100} is a {type(key).__qualname__}, and belongs to no partition; {cure}")


def partitions_of_column(column: Any, partitions: int = PARTITIONS) -> Any:
    """Return the partition of each value of a column (an Arrow or NumPy array), as a NumPy array."""
    # Optional: a platform without columns runs without NumPy and pyarrow.
    import numpy as np

    mixed = _residues(column)
    mixed *= np.uint64(_GOLDEN)
    mixed >>= np.uint64(32)
    mixed *= np.uint64(partitions)
    mixed >>= np.uint64(32)
    return mixed.view(np.int64)


def rows_by_owner(column: Any, owners: Sequence[int]) -> tuple[Any, list[int]]:
    """Sort the rows of a column by the owners of their partitions; *owners* has the number of each partition's owner.

    Returns the row numbers, in order for each owner; and the position where the rows of each owner begin, then the end.
    """
    import numpy as np

    owned = np.array(owners, dtype=np.uint16)[partitions_of_column(column, len(owners))]
    rows = np.argsort(owned, kind="stable")
    return rows, np.searchsorted(owned[rows], np.arange(max(owners) + 2)).tolist()


def _residues(column: Any) -> Any:
    """Return the residues of the values of a column, as a new array."""
    import numpy as np
    import pyarrow as pa

    types = pa.types
    if not isinstance(column, np.ndarray) and (types.is_integer(column.type) or types.is_floating(column.type)):
        column = (column.fill_null(0) if column.null_count else column).to_numpy(zero_copy_only=False)
    if isinstance(column, np.ndarray) and column.dtype.kind in "iuf":
        return _residues_of_floats(column) if column.dtype.kind == "f" else _residues_of_integers(column)
    found = pa.array(column) if isinstance(column, np.ndarray) else column
    found = found.combine_chunks() if isinstance(found, pa.ChunkedArray) else found
    found = found.dictionary_decode() if pa.types.is_dictionary(found.type) else found
    try:
        coded = found.dictionary_encode(null_encoding="encode")
    except NotImplementedError:  # values that are no keys, or of an extension type
        return np.array([_residue(one) for one in found.to_pylist()], dtype=np.uint64)
    known = np.array([_residue(one) for one in coded.dictionary.to_pylist()], dtype=np.uint64)
    return known[coded.indices.to_numpy(zero_copy_only=False)]


def _residues_of_integers(column: Any) -> Any:
    import numpy as np

    if column.dtype == np.uint64:
        return column % np.uint64(_PRIME)
    if (found := column.astype(np.int64)).size and (found.min() < 0 or found.max() >= _PRIME):
        found %= _PRIME
    return found.view(np.uint64)


def _residues_of_floats(column: Any) -> Any:
    """Return m·2ᵉ modulo the prime: m, rotated by e within 61 bits."""
    import numpy as np

    fraction, exponent = np.frexp(column.astype(np.float64))
    finite = np.isfinite(fraction)
    fraction = np.where(finite, fraction, 0.0)
    whole = np.abs(fraction * 2.0**53).astype(np.uint64)
    turn = np.where(finite, (exponent - 53) % 61, 0).astype(np.uint64)
    prime = np.uint64(_PRIME)
    found = ((whole << turn) & prime) | (whole >> (np.uint64(61) - turn))
    found = np.where((fraction < 0) & (found > 0), prime - found, found)
    return np.where(finite, found, np.uint64(_NAN))


def ranges_text(owned: Mapping[str, range]) -> str:
    """Return ranges as text: `a 0-127, b 128-255`."""
    return ", ".join(f"{name} {part[0]}-{part[-1]}" if part else f"{name} none" for name, part in owned.items())


def ranges(members: Iterable[str], partitions: int) -> dict[str, range]:
    """Return the partitions that each member of a group owns: equal shares, in the order of the names."""
    names = sorted(set(members))
    ends = [number * partitions // len(names) for number in range(len(names) + 1)]
    return {name: range(*bounds) for name, *bounds in zip(names, ends, ends[1:], strict=False)}
