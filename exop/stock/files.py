"""`read_parquet`: the files of a folder as a stream of references to their rows."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import field
from pathlib import Path
from typing import Any

from exop.model.items import Batch, Reference
from exop.model.slets.memento import Memento
from exop.model.slets.ports import OUT, PortType
from exop.model.slets.slet import slet, spec_of
from exop.model.slets.spec import SletSpec

#: Seconds between two looks into a folder without new files.
PAUSE = 0.1


class Emitted(Memento):
    """The names of the files that a source has emitted, and that are still in its folder."""

    names: list[str] = field(default_factory=list)


def _with_columns(settings: Mapping[str, Any], inputs: Mapping[str, PortType]) -> SletSpec:
    """Return the slet with the columns of its output."""
    from exop.engine.columns import schema_of
    from exop.model.values.columns import batch_type

    out = PortType(batch_type(), "columns", schema_of(settings["columns"]), pauses=True, reference=Reference)
    return spec_of(read_parquet).with_outputs({OUT: out})


@slet(specialised=_with_columns)
def read_parquet(
    emitted: Emitted, *, path: Path, columns: str, follow: bool = False
) -> Iterator[Batch[Reference] | None]:
    """Emit the rows of the Parquet files in a folder, in the order of their names.

    The files are emitted by reference: the tasks of a Spark query read them themselves, other slets get the rows. A
    file must be complete when it gets its name, and not change or disappear before its rows are processed, as the files
    of `write_parquet` do. Names that begin with `.` or `_` are skipped.

    Args:
        emitted: The state.
        path: The path of the folder.
        columns: The columns of the files, such as `time int, speed double`.
        follow: Whether to wait for new files, instead of ending the stream.
    """
    # Imported lazily: only this needs pyarrow.
    from exop.engine.columns import schema_of
    from exop.model.values.columns import rows_of_file

    declared = schema_of(columns)
    if not path.is_dir():
        raise NotADirectoryError(f"{path} is no folder; create it, or correct the setting `path`")
    while True:
        there = sorted(one.name for one in path.glob("*.parquet") if one.name[0] not in "._")
        known = set(emitted.names)
        if not known <= set(there):
            emitted.names = [name for name in emitted.names if name in set(there)]
        fresh = [name for name in there if name not in known]
        for name in fresh:
            place = (path / name).absolute()
            rows = rows_of_file(place, declared)
            emitted.names.append(name)
            yield Batch([Reference(place.as_uri(), rows)]) if rows else None
        if not fresh:
            if not follow:
                return
            yield None  # a safe point
            time.sleep(PAUSE)
