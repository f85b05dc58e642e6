"""The state store of a query, and the number of its key groups."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

from ..errors import SparkError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from .folders import Folder

#: The default number of key groups on a cluster.
ON_A_CLUSTER: Final = 4
_GROUPS: Final = "spark.sql.shuffle.partitions"
_PROVIDER: Final = "spark.sql.streaming.stateStore.providerClass"
_ROCKSDB: Final = {
    _PROVIDER: ("org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"),
    # A micro-batch uploads its changes, not the whole state.
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    # The store needs Hadoop's `LocalFileSystem`, not the faster one of the context.
    "fs.file.impl": "org.apache.hadoop.fs.LocalFileSystem",
    "fs.file.impl.disable.cache": "true",
}


def set_up(session: SparkSession, slet: str, key_groups: int, checkpoint: Folder, *, local: bool) -> int:
    """Set the number of key groups and the state store of a query before it starts; return the number.

    A query with a checkpoint keeps both. With several key groups, the state is in RocksDB; with one, it is in the
    memory of the Java process, which is faster for a small state.

    Raises:
        SparkError: *key_groups* differs from the number in the checkpoint.
    """
    kept = fixed(checkpoint)
    groups = int(kept.get(_GROUPS, 0)) or key_groups or (1 if local else ON_A_CLUSTER)
    if key_groups not in (0, groups):
        raise SparkError(
            f"{slet}: its state is in {groups} key groups, which were fixed when it first started, and key_groups is "
            f"{key_groups}; set key_groups={groups}, or replace it with lose_state=True (--lose-state)"
        )
    large = "RocksDB" in kept[_PROVIDER] if _PROVIDER in kept else groups > 1
    for name, value in {_GROUPS: str(groups), **(_ROCKSDB if large else {})}.items():
        session.conf.set(name, value)
    return groups


def fixed(checkpoint: Folder) -> dict[str, str]:
    """Return the options that Spark has stored in a checkpoint; none if no micro-batch has begun."""
    offsets = checkpoint / "offsets"
    numbers = [int(one.name) for one in offsets.glob("*") if one.name.isdecimal()] if offsets.is_dir() else []
    lines = (offsets / str(max(numbers))).read_text().splitlines() if numbers else []
    return dict(json.loads(lines[1]).get("conf", {})) if len(lines) > 1 else {}
