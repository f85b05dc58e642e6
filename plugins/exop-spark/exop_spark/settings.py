"""How Spark is set up: the options that matter, each with its reason."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

DEFAULT_MASTER: Final = "local[*]"
LOOPBACK: Final = "127.0.0.1"
#: The log of the Java process, in its directory.
LOG: Final = "spark.log"
#: Heap of the Java process. EXOP_SPARK_MEMORY sets another.
MEMORY: Final = "2g"
#: The quick compiler alone: a micro-batch is a little of everything, planned anew each time. Measured against the
#: full compiler: a third less CPU, warm in a third of the time, a quarter less in a long backlog.
#: EXOP_SPARK_JAVA_OPTIONS sets others.
JAVA_OPTIONS: Final = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"
_CHECKPOINTS: Final = "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
_LOGGING: Final = """rootLogger.level = warn
rootLogger.appenderRef.file.ref = file
appender.file.type = File
appender.file.name = file
appender.file.fileName = {log}
appender.file.layout.type = PatternLayout
appender.file.layout.pattern = %d{{HH:mm:ss}} %p %c{{1}}: %m%n%ex{{8}}
logger.python.name = org.apache.spark.api.python
logger.python.level = error
"""


def java_options(directory: Path) -> dict[str, str]:
    """Return the options of the Java process; it writes its log in *directory*, and nothing to the terminal."""
    logging = directory / "log4j2.properties"
    logging.write_text(_LOGGING.format(log=directory / LOG))
    java = [f"-Dlog4j2.configurationFile=file:{logging}", f"-Dderby.system.home={directory}"]
    java += os.environ.get("EXOP_SPARK_JAVA_OPTIONS", JAVA_OPTIONS).split()
    return {
        "spark.driver.memory": os.environ.get("EXOP_SPARK_MEMORY", MEMORY),
        "spark.driver.extraJavaOptions": " ".join(java),
    }


def connect_server_options(port: int, directory: Path) -> dict[str, str]:
    """Return the options of a Connect server at *port* of the loopback; *directory* is for its scratch files."""
    own = {"spark.connect.grpc.binding.port": str(port), "spark.connect.grpc.binding.address": LOOPBACK}
    return spark_options("local", directory, LOOPBACK) | own


def session_options() -> dict[str, str]:
    """Return the options that a session may have for itself, on any Spark."""
    return {
        # Event time is seconds since the epoch: local time zones have no say in it.
        "spark.sql.session.timeZone": "UTC",
        # One partition keeps the order of the rows, and a shuffle of small batches into more costs more than it brings.
        "spark.sql.shuffle.partitions": "1",
        # Planning a micro-batch anew in its middle costs more than it saves.
        "spark.sql.adaptive.enabled": "false",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        "spark.sql.execution.arrow.maxRecordsPerBatch": "100000",
        "spark.sql.streaming.stopTimeout": "10s",
        # Values that do not fit are errors, never silently other values.
        "spark.sql.ansi.enabled": "true",
    }


def spark_options(master: str, directory: Path, host: str) -> dict[str, str]:
    """Return the options of a context with scratch files in *directory*, whose workers reach this process at *host*."""
    return session_options() | {
        "spark.master": master,
        "spark.app.name": "exop",
        "spark.ui.enabled": "false",
        "spark.local.dir": str(directory / "scratch"),
        "spark.sql.warehouse.dir": str(directory / "warehouse"),
        # Two keys that take the forks out of every write to a checkpoint: about 70 ms less per micro-batch.
        "spark.hadoop.fs.file.impl": "org.apache.hadoop.fs.RawLocalFileSystem",
        "spark.sql.streaming.checkpointFileManagerClass": _CHECKPOINTS,
        "spark.sql.streaming.metricsEnabled": "false",
        "spark.driver.host": host or LOOPBACK,
        "spark.driver.bindAddress": host or LOOPBACK,
    }
