"""The options of Spark that ExoP sets, with the reasons."""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import Final

from .errors import SparkError

DEFAULT_MASTER: Final = "local[*]"
LOOPBACK: Final = "127.0.0.1"
#: The file name of the log of the Java process.
LOG: Final = "spark.log"
#: The heap of the Java process; EXOP_SPARK_MEMORY takes precedence.
MEMORY: Final = "2g"
#: The options of the Java virtual machine; EXOP_SPARK_JAVA_OPTIONS takes precedence. Only the first compiler is used,
#: because each micro-batch is planned again and runs little of the same code for long. Compared with both compilers,
#: this takes a third less CPU and a third of the time to warm up, but has a quarter less throughput in a long backlog.
JAVA_OPTIONS: Final = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"
_CHECKPOINTS: Final = "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
#: The options of ours that EXOP_SPARK_CONF may replace: nothing else of the platform depends on them.
_REPLACEABLE: Final = (
    "spark.app.name",
    "spark.ui.enabled",
    "spark.local.dir",
    "spark.sql.warehouse.dir",
    "spark.sql.streaming.metricsEnabled",
)
#: The options that have a variable of their own, or are those of the slets.
_ELSEWHERE: Final = {
    "spark.driver.memory": "set EXOP_SPARK_MEMORY",
    "spark.driver.extraJavaOptions": "set EXOP_SPARK_JAVA_OPTIONS",
    "spark.master": "give the slets the setting master",
    "spark.driver.host": "set EXOP_SPARK_HOST",
}
_KEPT: Final = """rootLogger.appenderRef.kept.ref = kept
appender.kept.type = File
appender.kept.name = kept
appender.kept.fileName = {log}
appender.kept.layout.type = PatternLayout
appender.kept.layout.pattern = %d %p %c{{1}}: %m%n%ex
"""
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
    """Return the options of the Java process, which writes its log to a file in *directory*, not to the terminal."""
    logging = directory / "log4j2.properties"
    kept = os.environ.get("EXOP_SPARK_LOG", "")
    also = _KEPT.format(log=Path(kept).absolute()) if kept else ""
    logging.write_text(_LOGGING.format(log=directory / LOG) + also)
    java = [f"-Dlog4j2.configurationFile=file:{logging}", f"-Dderby.system.home={directory}"]
    java += os.environ.get("EXOP_SPARK_JAVA_OPTIONS", JAVA_OPTIONS).split()
    return {
        "spark.driver.memory": os.environ.get("EXOP_SPARK_MEMORY", MEMORY),
        "spark.driver.extraJavaOptions": " ".join(java),
    }


def connect_server_options(port: int, directory: Path) -> dict[str, str]:
    """Return the options of a Connect server at *port* of the loopback, with scratch files in *directory*."""
    own = {"spark.connect.grpc.binding.port": str(port), "spark.connect.grpc.binding.address": LOOPBACK}
    return spark_options("local", directory, LOOPBACK) | own


def session_options() -> dict[str, str]:
    """Return the options of a session, which any Spark accepts."""
    return {
        # Event times are numbers since 1970: local time zones must have no effect.
        "spark.sql.session.timeZone": "UTC",
        # One partition keeps the order of the rows; for small batches, a shuffle into several is slower.
        "spark.sql.shuffle.partitions": "1",
        # Planning again in the middle of a micro-batch costs more than it saves.
        "spark.sql.adaptive.enabled": "false",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        "spark.sql.execution.arrow.maxRecordsPerBatch": "100000",
        "spark.sql.streaming.stopTimeout": "10s",
        # Values that do not fit are errors, and are not changed silently.
        "spark.sql.ansi.enabled": "true",
    }


def spark_options(master: str, directory: Path, host: str) -> dict[str, str]:
    """Return the options of a context with scratch files in *directory*; workers reach this process at *host*."""
    own = session_options() | {
        "spark.master": master,
        "spark.app.name": "exop",
        "spark.ui.enabled": "false",
        "spark.local.dir": str(directory / "scratch"),
        "spark.sql.warehouse.dir": str(directory / "warehouse"),
        # These two avoid that each write to a checkpoint forks processes: about 70 ms less per micro-batch.
        "spark.hadoop.fs.file.impl": "org.apache.hadoop.fs.RawLocalFileSystem",
        "spark.sql.streaming.checkpointFileManagerClass": _CHECKPOINTS,
        "spark.sql.streaming.metricsEnabled": "false",
        "spark.driver.host": host or LOOPBACK,
        "spark.driver.bindAddress": host or LOOPBACK,
    }
    return own | _of_user(own)


def _of_user(own: dict[str, str]) -> dict[str, str]:
    """Return the options of EXOP_SPARK_CONF: `spark.ui.enabled=true spark.jars=/opt/geo.jar`, quoted as in a shell.

    Raises:
        SparkError: one is not an option of Spark, or is one that the platform depends on.
    """
    found: dict[str, str] = {}
    for text in shlex.split(os.environ.get("EXOP_SPARK_CONF", "")):
        name, is_option, value = text.partition("=")
        problem = ""
        if not is_option or not name.startswith("spark."):
            problem = "it is not an option of Spark; write spark.NAME=VALUE, with a space between two of them"
        elif name in _ELSEWHERE:
            problem = f"it has its own place; {_ELSEWHERE[name]}"
        elif name in own and name not in _REPLACEABLE:
            problem = f"the queries need {own[name]!r}; leave it out"
        if problem:
            raise SparkError(f"EXOP_SPARK_CONF has {text!r}: {problem}")
        found[name] = value
    return found
