"""Hands the checkpoint of a query over to its successor, also on another host."""

from __future__ import annotations

import errno
import io
import json
import re
import shutil
import uuid
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final
from zipfile import ZIP_DEFLATED, BadZipFile, ZipFile

from ..errors import SparkError
from ..plan import Input
from .folders import Folder, copy_folder, remove_folder

#: The folders in which Spark writes a file for each micro-batch: with its offsets, and when it is committed.
OFFSETS, COMMITS = "offsets", "commits"
#: How often a copy is begun again because Spark removed a file meanwhile.
_ATTEMPTS: Final = 5
#: The names of the files of a micro-batch, and of a version of the state in the two state stores.
_BATCH: Final = re.compile(r"(\d+)")
_VERSION: Final = re.compile(r"(\d+)(?:_[^.]*)?\.(?:delta|snapshot|zip|changelog)")
#: The beginning of the reason for which a file was not copied that Spark has removed.
_GONE: Final = f"[Errno {errno.ENOENT}]"
#: The comment of an archive: its kind and version.
_FORMAT: Final = b"exop-spark checkpoint 1"


def other_inputs(before: Mapping[str, Input], after: Mapping[str, Input]) -> str | None:
    """Return why a query with the inputs *after* cannot use the offsets of one with those *before*, or `None`."""
    if before.keys() != after.keys():
        return f"it reads {', '.join(after)}, the state is of a query over {', '.join(before)}"
    for port, one in after.items():
        other = before[port]
        if one.columns != other.columns or one.time != other.time or one.numbered != other.numbered:
            return f"its input {port!r} has other columns, or another event time"
    return None


def carry(source: Folder, place: Folder, batch: int) -> None:
    """Copy the checkpoint of a query whose last micro-batch is *batch* to *place*, which is empty or does not exist.

    Of a query that has failed in its first micro-batch, nothing is copied: with the files of its state, Spark would not
    start.

    Raises:
        SparkError: Spark has not committed that batch.
    """
    check_committed(source, batch)
    if batch < 0:
        return
    copy_folder(source, place)
    renamed(place)
    without_later(place, batch)


def copy_of_live(source: Folder, place: Folder) -> int | None:
    """Copy the checkpoint of a query that runs to *place*, as of the last batch that it has committed.

    Returns:
        The number of that batch; `None` if there is none.

    Raises:
        SparkError: Spark removes files faster than they are copied, or a file cannot be copied.
    """
    for _ in range(_ATTEMPTS):
        committed = [int(one.name) for one in (source / COMMITS).glob("*") if one.name.isdecimal()]
        if not committed:
            return None
        try:
            copy_folder(source, place)
        except (FileNotFoundError, shutil.Error) as error:
            remove_folder(place)
            problems = [why for *_, why in error.args[0]] if isinstance(error, shutil.Error) else []
            if lasting := next((why for why in problems if not why.startswith(_GONE)), ""):
                raise SparkError(f"the checkpoint {source} cannot be copied to {place}: {lasting}") from error
            continue
        batch = max(committed)
        renamed(place)
        without_later(place, batch)
        return batch
    raise SparkError(f"the checkpoint {source} changes faster than it can be copied")


def check_committed(source: Folder, batch: int) -> None:
    """Raise `SparkError` if Spark has not committed a batch."""
    if batch >= 0 and not (source / COMMITS / str(batch)).exists():
        raise SparkError(
            f"the results of micro-batch {batch} are sent, and Spark has not committed it; open the application again, "
            f"which computes it once more if it is durable, or begin without this state (lose_state=True, --lose-state)"
        )


def renamed(place: Folder) -> None:
    """Give a copied checkpoint a new identifier: Spark stops a query when another one with its identifier starts."""
    (place / ".metadata.crc").unlink(missing_ok=True)
    (place / "metadata").write_text(json.dumps({"id": str(uuid.uuid4())}))


def without_later(place: Folder, batch: int) -> None:
    """Remove the files of micro-batches after *batch*, which the successor computes again, perhaps from other rows.

    The version of the state after a micro-batch is the number of the next one. A snapshot of a later version, which
    Spark writes at any time, would take the place of what the successor has computed by then.
    """
    for folder in (OFFSETS, COMMITS):
        _remove(place / folder, _BATCH, batch)
    _remove(place / "state", _VERSION, batch + 1)


def _remove(place: Folder, form: re.Pattern[str], last: int) -> None:
    """Remove the files of a folder, and of those in it, whose number, by this form of their names, is above *last*."""
    for one in place.glob("*"):
        if found := form.fullmatch(one.name):
            if int(found[1]) > last:
                one.unlink()
                one.with_name(f".{one.name}.crc").unlink(missing_ok=True)
        elif "." not in one.name and one.is_dir():
            _remove(one, form, last)


def packed(source: Folder, batch: int) -> bytes:
    """Return the checkpoint of a query whose last micro-batch is *batch*, as an archive.

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
        SparkError: *data* is no such archive, or one of another version.
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
        raise SparkError(f"the state from the other platform is no checkpoint of a query: {error}") from error
