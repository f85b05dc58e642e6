"""How Spark is set up: which masters are possible, and the options that matter, each with its reason."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from .errors import MasterRefused

DEFAULT_MASTER: Final = "local[*]"
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


def check_master(master: str) -> None:
    """Accept `local`, `local[n]`, `local[*]` and `spark://…`.

    Raises:
        MasterRefused: another master; in particular Spark Connect, whose `foreachBatch` runs on the server, where the
            platform's output port is not.
    """
    if master == "local" or master.startswith(("local[", "spark://")):
        return
    if master.startswith("sc://"):
        raise MasterRefused(
            master=master,
            problem="over Spark Connect the output of a query arrives on the server, not in this process",
            cure="use the cluster's own URL, spark://HOST:PORT, or local[*]",
        )
    raise MasterRefused(
        master=master, problem="it is none that exop-spark knows", cure="use local[*], local[N] or spark://HOST:PORT"
    )


def is_on_loopback(master: str) -> bool:
    """Whether nothing of the cluster is outside this machine, so that nobody outside needs to reach the driver."""
    hosts = ("127.0.0.1", "localhost", "[::1]")
    return master.startswith("local") or master.partition("://")[2].startswith(tuple(f"{one}:" for one in hosts))


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
    own = {"spark.connect.grpc.binding.port": str(port), "spark.connect.grpc.binding.address": "127.0.0.1"}
    return spark_options("local", directory) | own


def spark_options(master: str, directory: Path) -> dict[str, str]:
    """Return the options of a context; *directory* is for its scratch files."""
    options = {
        "spark.master": master,
        "spark.app.name": "exop",
        "spark.ui.enabled": "false",
        "spark.local.dir": str(directory / "scratch"),
        "spark.sql.warehouse.dir": str(directory / "warehouse"),
        # Event time is seconds since the epoch: local time zones have no say in it.
        "spark.sql.session.timeZone": "UTC",
        # One partition keeps the order of the rows, and a shuffle of small batches into more costs more than it brings.
        "spark.sql.shuffle.partitions": "1",
        # Planning a micro-batch anew in its middle costs more than it saves.
        "spark.sql.adaptive.enabled": "false",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        "spark.sql.execution.arrow.maxRecordsPerBatch": "100000",
        # Two keys that take the forks out of every write to a checkpoint: about 70 ms less per micro-batch.
        "spark.hadoop.fs.file.impl": "org.apache.hadoop.fs.RawLocalFileSystem",
        "spark.sql.streaming.checkpointFileManagerClass": _CHECKPOINTS,
        "spark.sql.streaming.stopTimeout": "10s",
        "spark.sql.streaming.metricsEnabled": "false",
        # Values that do not fit are errors, never silently other values.
        "spark.sql.ansi.enabled": "true",
    }
    if is_on_loopback(master):
        options |= {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
    return options
