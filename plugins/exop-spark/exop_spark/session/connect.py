"""`ConnectSpark`: the same queries on a Spark Connect server; this process has neither Java nor the driver."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from .. import settings
from ..cluster.master import check_encrypted, check_reachable, is_on_loopback
from ..cluster.standalone import secret_of
from ..errors import MasterRefused, QueryRefused
from ..feed.server import Output
from ..storage.folders import Folder, local_path
from .engine import Spark

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from ..plan import Plan

#: The environment variable that lets pyspark's functions make expressions for a server.
_REMOTE: Final = "SPARK_CONNECT_MODE_ENABLED"
#: The number of attempts if the server does not answer: they take some seconds; those by default take ten minutes.
_RETRIES: Final = 5


class ConnectSpark(Spark):
    """A session on a Connect server, and the server of the feeds.

    The functions of `foreachBatch` run on the Connect server. They send the rows of a batch to this process, which
    emits them and answers; then Spark commits the batch.
    """

    @property
    def alive(self) -> bool:
        """Whether the server has answered the last question of `answers`."""
        return not self._lost

    def answers(self) -> bool:
        """Return whether the server accepts a connection; if it does not, it is regarded as lost from now on."""
        try:
            check_reachable(self.master)
        except MasterRefused:
            self._lost = True
        return not self._lost

    def reason(self) -> str:
        """Return an empty text: the log is at the server."""
        return ""

    @contextmanager
    def building(self, session: SparkSession) -> Iterator[None]:
        """Do nothing: the client records the lines without help."""
        yield

    def session(self) -> SparkSession:
        """Return a new session on the server, with its own settings."""
        from pyspark.sql.connect.client.retries import DefaultPolicy
        from pyspark.sql.connect.session import SparkSession as RemoteSession

        from ..feed.source import FeedSource

        builder = RemoteSession.builder.remote(_with_token(self.master))
        with self._lock:
            session: Any = builder.create()
        session.client.set_retry_policies([DefaultPolicy(max_retries=_RETRIES)])
        for name, value in settings.session_options().items():
            session.conf.set(name, value)
        session.dataSource.register(FeedSource)
        return session  # type: ignore[no-any-return]

    def release(self, session: SparkSession) -> None:
        """End a session on the server."""
        if self.alive:
            session.stop()

    def deliver(self, frame: DataFrame, plan: Plan, checkpoint: str, put_out: Output) -> tuple[Any, str]:
        """Return a writer whose batches are passed to *put_out*, and the key of this output at our server."""
        from . import sending

        if plan.stage:
            raise QueryRefused(**plan.facts(), detail="behind a Connect server output cannot be staged; use spark://…")
        key = self.server.add_output(put_out)
        offsets = f"{checkpoint}/offsets" if plan.by_watermark else ""
        return frame.writeStream.foreachBatch(sending.sender(self.server.options(key), offsets)), key

    def parse(self, session: SparkSession, text: str) -> None:
        """Let the server explain a SQL text, which is then parsed, and not carried out."""
        from pyspark.errors import ParseException

        try:
            session.sql(f"EXPLAIN\n{text}")
        except ParseException as error:
            own = re.sub(r"(?<=\(line )\d+", lambda number: str(int(number[0]) - 1), str(error))
            raise ParseException(own) from None

    def check_streams(self, session: SparkSession, frame: DataFrame, mode: str) -> None:
        """Check nothing: the server checks whether a query can stream when the query starts."""

    def keeps_state(self, frame: DataFrame) -> bool:
        """Return `False`: the plan is at the server, and the checkpoint shows state after the first micro-batch."""
        return False

    def merges(self, frame: DataFrame) -> bool:
        """Return `False`: the plan is at the server."""
        return False

    def folder(self, uri: str) -> Folder:
        """Return the folder at a URI of this machine.

        Raises:
            MasterRefused: the folder is on another file system, which only the server can read.
        """
        path = local_path(uri)
        if path is None:
            cure = "set it to a folder that both see (file:///…), or use spark://…"
            raise MasterRefused(master=self.master, problem=f"checkpoints={uri} cannot be seen from here", cure=cure)
        return path

    @contextmanager
    def _started(self) -> Iterator[SparkSession]:
        """Connect to the server, check it, and yield a session; disconnect at the end."""
        import pyspark

        self._by_value()
        try:
            import grpc  # noqa: F401 - the client needs it
        except ImportError:
            cure = "pip install 'exop-spark[connect]'"
            raise MasterRefused(master=self.master, problem="the client's libraries are missing", cure=cure) from None
        if not is_on_loopback(self.master) and "use_ssl=true" not in self.master:
            raise MasterRefused(
                master=self.master, problem="it is on another host, and unencrypted", cure="add ;use_ssl=true"
            )
        os.environ[_REMOTE] = "1"
        with ExitStack() as opened:
            opened.callback(os.environ.pop, _REMOTE, None)
            try:
                session = self.session()
                version = session.version
            except Exception as error:
                problem = " ".join(str(error).split())[:300]
                cure = "write the token into the URL, sc://HOST:PORT/;token=…, and ;use_ssl=true for another host"
                raise MasterRefused(master=self.master, problem=problem, cure=cure) from error
            opened.callback(self.release, session)
            if version != pyspark.__version__:
                problem = f"it runs Spark {version}, this is pyspark {pyspark.__version__}"
                raise MasterRefused(master=self.master, problem=problem, cure="install the same version in both places")
            check_encrypted(self.master, session.conf.get)
            yield session


def _with_token(master: str) -> str:
    """Return the URL, with the token if the server was started by `exop-spark cluster up` of this user."""
    secret = secret_of(master.rstrip("/"))
    if not secret:
        return master
    # The client sends a token without encryption only to this name.
    return f"sc://localhost:{urlsplit(master).port}/;token={secret}"
