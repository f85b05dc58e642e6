"""Spark's own checkpoint, carried from one query to its successor, here or at another host."""

from __future__ import annotations

import io
import json
import uuid
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final
from zipfile import ZIP_DEFLATED, BadZipFile, ZipFile

from ..errors import SparkError
from ..plan import Input
from .folders import Folder, copy_folder

#: Where Spark notes the offsets of each micro-batch, and that it is committed.
OFFSETS, COMMITS = "offsets", "commits"
#: The comment of an archive: its kind and version.
_FORMAT: Final = b"exop-spark checkpoint 1"


def other_inputs(before: Mapping[str, Input], after: Mapping[str, Input]) -> str | None:
    """Why a query with the inputs *after* cannot go on with the offsets of one with those *before*; `None`: it can."""
    if before.keys() != after.keys():
        return f"it reads {', '.join(after)}, the state is of a query over {', '.join(before)}"
    for port, one in after.items():
        other = before[port]
        if one.columns != other.columns or one.time != other.time or one.numbered != other.numbered:
            return f"its input {port!r} has other columns, or another event time"
    return None


def carry(source: Folder, place: Folder, batch: int) -> None:
    """Copy the checkpoint of a query that stands behind *batch* to *place*, which is empty or not there.

    Raises:
        SparkError: Spark has not committed that batch.
    """
    check_committed(source, batch)
    copy_folder(source, place)
    renamed(place)
    without_later(place, batch)


def check_committed(source: Folder, batch: int) -> None:
    """Raise `SparkError` if Spark has not committed a batch."""
    if batch >= 0 and not (source / COMMITS / str(batch)).exists():
        raise SparkError(
            f"the micro-batch {batch} was put out, and Spark has not committed it: it did not come to rest"
        )


def renamed(place: Folder) -> None:
    """Give a copied checkpoint an identity of its own: Spark stops a query when another one of its identity starts."""
    (place / ".metadata.crc").unlink(missing_ok=True)
    (place / "metadata").write_text(json.dumps({"id": str(uuid.uuid4())}))


def without_later(place: Folder, batch: int) -> None:
    """Remove what was begun after *batch*: whoever goes on with the checkpoint does it anew."""
    for folder in (OFFSETS, COMMITS):
        for one in (place / folder).glob("*"):
            if one.name.isdecimal() and int(one.name) > batch:
                one.unlink()
                one.with_name(f".{one.name}.crc").unlink(missing_ok=True)


def packed(source: Folder, batch: int) -> bytes:
    """Return the checkpoint of a query that stands behind *batch* as an archive.

    Raises:
        SparkError: Spark has not committed that batch.
    """
    found = io.BytesIO()
    with TemporaryDirectory(prefix="exop-spark-pack-") as folder, ZipFile(found, "w", ZIP_DEFLATED) as archive:
        carry(source, Path(folder), batch)
        archive.comment = _FORMAT
        for one in sorted(Path(folder).rglob("*")):
            if one.is_file():
                archive.write(one, one.relative_to(folder))
    return found.getvalue()


def unpack(data: bytes, place: Folder) -> None:
    """Extract an archive of `packed` to *place*.

    Raises:
        SparkError: it is no such archive, or of another version.
    """
    try:
        with ZipFile(io.BytesIO(data)) as archive:
            if archive.comment != _FORMAT:
                raise SparkError(
                    f"the checkpoint is {archive.comment!r}, not {_FORMAT!r}; update exop-spark everywhere"
                )
            if isinstance(place, Path):
                archive.extractall(place)
                return
            with TemporaryDirectory(prefix="exop-spark-unpack-") as folder:
                archive.extractall(folder)
                copy_folder(Path(folder), place)
    except BadZipFile as error:
        raise SparkError(f"what came from the other platform is no checkpoint of a query: {error}") from error
