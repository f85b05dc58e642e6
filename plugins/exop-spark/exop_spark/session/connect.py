"""Spark behind a Connect server: the same queries, with neither Java nor a driver in this process."""

from __future__ import annotations

import os
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
from .engine import Engine

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from ..plan import Plan

#: By it pyspark's functions know that the frames of this process are remote.
_REMOTE: Final = "SPARK_CONNECT_MODE_ENABLED"
#: How often a call is repeated when the server does not answer: for some seconds, not the ten minutes of the default.
_RETRIES: Final = 5


class ConnectEngine(Engine):
    """A Connect server, and the server of the feeds.

    The functions of `foreachBatch` run on the server. They send their rows to this process, which puts them out and
    answers; then Spark commits the batch.
    """

    @property
    def alive(self) -> bool:
        """Tell whether the server has answered until now."""
        return not self._lost

    def answers(self) -> bool:
        """Ask the server whether it is there."""
        try:
            check_reachable(self.master)
        except MasterRefused:
            self._lost = True
        return not self._lost

    @contextmanager
    def building(self, session: SparkSession) -> Iterator[None]:
        """Do nothing: the client notes the lines by itself."""
        yield

    def session(self) -> SparkSession:
        """Return a new session on the server, with settings of its own."""
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
        """End a session on the server, whose query has ended."""
        if self.alive:
            session.stop()

    def deliver(self, frame: DataFrame, plan: Plan, checkpoint: str, put_out: Output) -> tuple[Any, str]:
        """Return a writer whose batches arrive at *put_out*, and the key by which the server of the feeds knows it."""
        from . import sending

        if plan.stage:
            raise QueryRefused(**plan.facts(), detail="behind a Connect server output cannot be staged; use spark://…")
        key = self.server.add_output(put_out)
        offsets = f"{checkpoint}/offsets" if plan.by_watermark else ""
        return frame.writeStream.foreachBatch(sending.sender(self.server.options(key), offsets)), key

    def check_streams(self, session: SparkSession, frame: DataFrame, mode: str) -> None:
        """Nothing can be asked: the server checks whether a query can stream when it starts."""

    def folder(self, uri: str) -> Folder:
        """Return the folder at a URI of this machine.

        Raises:
            MasterRefused: it is elsewhere: only the server could look into it.
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
    """The URL with the token of a server that this user has started here."""
    secret = secret_of(master.rstrip("/"))
    if not secret:
        return master
    # The client sends a token without encryption to this name alone.
    return f"sc://localhost:{urlsplit(master).port}/;token={secret}"
