"""Where the state of a query is, and in how many key groups."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Final

from exop.errors import PlanError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: The key groups of a query on a cluster that names no number.
ON_A_CLUSTER: Final = 4
_GROUPS: Final = "spark.sql.shuffle.partitions"
_ROCKSDB: Final = {
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    # A micro-batch uploads what it has changed, not the whole state.
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    # The store wants Hadoop's own local file system, not the faster one that the context has.
    "fs.file.impl": "org.apache.hadoop.fs.LocalFileSystem",
    "fs.file.impl.disable.cache": "true",
}


def set_up(session: SparkSession, key_groups: int, *, local: bool) -> int:
    """Set the key groups of the queries of *session*; with more than one, state is in RocksDB. Return their number.

    In one key group, a small state in the memory of the Java process is faster.
    """
    groups = key_groups or (1 if local else ON_A_CLUSTER)
    options = {_GROUPS: str(groups), **(_ROCKSDB if groups > 1 else {})}
    for name, value in options.items():
        session.conf.set(name, value)
    return groups


def check_groups(slet: str, checkpoint: Path, groups: int) -> None:
    """Raise `PlanError` if the state in *checkpoint* is in another number of key groups: Spark would keep that one."""
    offsets = checkpoint / "offsets"
    numbers = [int(one.name) for one in offsets.glob("*") if one.name.isdecimal()] if offsets.is_dir() else []
    if not numbers:
        return
    lines = (offsets / str(max(numbers))).read_text().splitlines()
    kept = int(json.loads(lines[1]).get("conf", {}).get(_GROUPS, groups)) if len(lines) > 1 else groups
    if kept != groups:
        raise PlanError(
            f"{slet}: its state is in {kept} key groups, which were fixed when it first started, and key_groups is "
            f"{groups}; set key_groups={kept}, or replace it with lose_state=True"
        )
