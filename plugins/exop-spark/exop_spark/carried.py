"""Spark's own checkpoint, carried from one query to its successor: when it can be, and how."""

from __future__ import annotations

import json
import shutil
import uuid
from collections.abc import Mapping
from pathlib import Path

from .errors import SparkError
from .plan import Input

#: Where Spark notes the offsets of each micro-batch, and that it is committed.
OFFSETS, COMMITS = "offsets", "commits"


def other_inputs(before: Mapping[str, Input], after: Mapping[str, Input]) -> str | None:
    """Why a query with the inputs *after* cannot go on with the offsets of one with those *before*; `None`: it can."""
    if before.keys() != after.keys():
        return f"it reads {', '.join(after)}, the state is of a query over {', '.join(before)}"
    for port, one in after.items():
        other = before[port]
        if one.columns != other.columns or one.time != other.time or one.numbered != other.numbered:
            return f"its input {port!r} has other columns, or another event time"
    return None


def carry(source: Path, place: Path, batch: int) -> None:
    """Copy the checkpoint of a query that stands behind *batch* to *place*, which is empty or not there.

    Raises:
        SparkError: Spark has not committed that batch.
    """
    if batch >= 0 and not (source / COMMITS / str(batch)).exists():
        raise SparkError(
            f"the micro-batch {batch} was put out, and Spark has not committed it: it did not come to rest"
        )
    shutil.copytree(source, place, dirs_exist_ok=True)
    renamed(place)
    without_later(place, batch)


def renamed(place: Path) -> None:
    """Give a copied checkpoint an identity of its own: Spark stops a query when another one of its identity starts."""
    (place / ".metadata.crc").unlink(missing_ok=True)
    (place / "metadata").write_text(json.dumps({"id": str(uuid.uuid4())}))


def without_later(place: Path, batch: int) -> None:
    """Remove what was begun after *batch*: whoever goes on with the checkpoint does it anew."""
    for folder in (OFFSETS, COMMITS):
        for one in (place / folder).glob("*"):
            if one.name.isdecimal() and int(one.name) > batch:
                one.unlink()
                one.with_name(f".{one.name}.crc").unlink(missing_ok=True)
