"""One streaming query on Spark: feeds at one end, the results of its micro-batches at the other."""

from __future__ import annotations

import logging
import re
import shutil
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

from exop.engine.feed import Feed
from exop.engine.pull import Emit, PullEngine
from exop.errors import EngineError

from ..errors import AGAIN, EngineLost, OutputMismatch, QueryError, QueryFailed, QueryRefused, SparkError
from ..failure import SLOW, explained, is_suspicious
from ..feed.native import NativeFeed
from ..plan import Plan
from ..storage.carried import COMMITS, OFFSETS, carry, copy_of_live, packed, unpack
from ..storage.folders import Folder, remove_folder
from ..storage.staging import check_folder, conform
from ..storage.state_store import set_up
from .frames import differences, input_frame, watermark_of
from .progress import Progress

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from ..session.engine import Lease
    from ..storage.staged import Stage

_log = logging.getLogger(__name__)
#: The folder of the checkpoint in the directory of a query.
FOLDER: Final = "spark"
#: The file there that says where it is instead.
NOTE: Final = "checkpoint"
#: How often a query is analysed, when a Python process of Spark's does not start in time.
_ATTEMPTS: Final = 6
#: Seconds to wait for the commit of a micro-batch that was put out, and between two looks.
_PATIENCE, _GLANCE = 30.0, 0.01
#: A semicolon at the end of a SQL text, and the comments behind it.
_END: Final = re.compile(r";(\s|--[^\n]*|/\*.*?\*/)*\Z", re.DOTALL)
#: The conditions of a checkpoint that Spark cannot read; mostly, it names none.
_UNREADABLE: Final = re.compile(r"(|STREAM_FAILED|CANNOT_LOAD_STATE_STORE\..*|STREAMING_CHECKPOINT_MISSING.*)\Z")
#: Errors of a file system that cannot be written to.
_NO_ROOM: Final = ("No space left on device", "Read-only file system", "Disk quota exceeded")
#: The output port.
OUT: Final = "out"


class Run(PullEngine):
    """One streaming query of a plan.

    Each micro-batch is emitted once, in order, in a thread of Spark's.

    Attributes:
        directory: Where Spark keeps its checkpoint.
    """

    def __init__(self, plan: Plan, share: Lease) -> None:
        self.plan = plan
        self.progress = Progress()
        self.directory: Folder | None = None
        self._share = share
        self._engine = share.engine
        self._keys: dict[str, str] = {}
        self._query: Any = None
        self._session: SparkSession | None = None
        self._known = threading.Event()
        self._scratch: Folder | None = None
        self._error: BaseException | None = None
        self.stage: Stage | None = None
        self._stateful = False
        #: Whether it continues with a checkpoint, and has not computed anything since.
        self._resumes = False

    def compile(self, query: Any, feeds: Mapping[str, Feed]) -> None:
        """Analyse the query, and check that it can stream.

        Raises:
            QueryRefused: Spark's analysis says no.
            OutputMismatch: the columns are not those declared.
            SparkError: the folder of the staged output cannot be reached.
        """
        self._feeds = feeds
        check_folder(self.plan.stage, self.plan.name)
        try:
            self._session = session = self._engine.session()
            self._frame = self._patiently(lambda: self._checked(session, query))
            self._engine.check_streams(session, self._frame, self.plan.mode)
            self._stateful = self._engine.keeps_state(self._frame)
            self.merges = self._engine.merges(self._frame)
        except Exception as error:
            raise self._explained(error, QueryRefused) from error

    def start(
        self, emit: Emit, directory: Path | None = None, predecessor: Self | bytes | None = None, batch: int = -1
    ) -> None:
        """Start the query, with its checkpoint in *directory*, or in one that goes with it.

        With a *predecessor*, it continues with a copy of its checkpoint, behind that micro-batch, or with its archive.

        Raises:
            QueryRefused: Spark cannot start it.
            SparkError: the predecessor has not come to rest, or the checkpoint or the staged output cannot be used.
        """
        self._emit = emit
        check_folder(self.plan.stage, self.plan.name, create=True)
        try:
            folder = self.directory = self.directory or self._folder(directory)
            if predecessor is not None:
                remove_folder(folder)  # of an attempt to catch up beside it
            if isinstance(predecessor, bytes):
                unpack(predecessor, folder)
            elif predecessor is not None:
                assert predecessor.directory is not None
                carry(predecessor.directory, folder, batch)
            local = self._engine.master.startswith("local")
            assert self._session is not None
            self._resumes = (folder / OFFSETS).is_dir()
            if batch >= 0 and directory is not None and not self._resumes:
                raise FileNotFoundError(f"it is missing, and micro-batch {batch} has been computed")
            set_up(self._session, self.plan.name, self.plan.key_groups, folder, local=local)
            place = folder.as_uri()
            writer, self._keys[OUT] = self._engine.deliver(self._frame, self.plan, place, self._put_out)
            self._query = writer.outputMode(self.plan.mode).option("checkpointLocation", place).start()
        except Exception as error:
            if isinstance(error, OSError | ValueError) and not is_suspicious(error):
                self._scratch = None  # it cannot be removed either
                where = self.directory or self.plan.checkpoints
                why = error.args[0][0][-1] if isinstance(error, shutil.Error) else error  # of a copy, for each file
                cure = "correct the setting checkpoints, or restore the folder, or begin anew with lose_state=True "
                cure += "(--lose-state)"
                if any(sign in str(why) for sign in _NO_ROOM):
                    cure = "make room or make it writable, and try again"
                problem = f"{self.plan.name}: the checkpoint {where} cannot be used: {why}; {cure}"
                raise SparkError(problem) from error
            raise self._explained(error, QueryRefused) from error
        finally:
            self._known.set()

    @property
    def keeps_state(self) -> bool:
        """Whether the query keeps state between two micro-batches."""
        return self._stateful or (self.directory is not None and (self.directory / "state").exists())

    @property
    def active(self) -> bool:
        """Tell whether the query runs; Java may have died without anybody having noticed."""
        return self._query is not None and self._engine.answers() and bool(self._query.isActive)

    def check(self) -> None:
        """Raise what has ended the query, if something has."""
        if self._query is not None and (error := self._query.exception()) is not None:
            raise self._explained(error)

    def wait(self) -> None:
        """Wait until the query ends; raises what ended it, unless it was stopped."""
        try:
            self._query.awaitTermination()
        except Exception as error:
            raise self._explained(error) from error

    def settle(self) -> None:
        """Wait until Spark has nothing left to do, windows that the watermark closes included."""
        try:
            self._query.processAllAvailable()
        except Exception as error:
            raise self._explained(error) from error

    def interrupt(self) -> None:
        """Stop the query, perhaps amid a micro-batch; a Python process that computes is killed. Its state remains."""
        if self._query is not None and self._engine.alive:
            try:
                self._query.stop()
            except Exception as error:  # noqa: BLE001 - the query is given up; the log has the reason
                _log.warning("%s: the query did not stop cleanly: %s", self.plan.name, error)

    def close(self) -> None:
        """Stop the query, remove its scratch files, and release its share in Spark."""
        with ExitStack() as undo:  # each step is carried out, whatever another one raises
            undo.callback(self._share.release)
            if self._session is not None:
                undo.callback(self._engine.release, self._session)
            if self._scratch is not None:
                undo.callback(remove_folder, self._scratch)
            for key in self._keys.values():
                undo.callback(self._engine.server.remove, key)
            self.interrupt()

    def copy(self, predecessor: Self, directory: Path | None, batch: int) -> int | None:
        """Copy the checkpoint of a query that runs, as of a micro-batch that it has committed."""
        source = predecessor.directory
        if source is None or not predecessor.active:
            return None
        self.directory = self._folder(directory)
        deadline = time.monotonic() + _PATIENCE
        while batch >= 0 and predecessor.active and not (source / COMMITS / str(batch)).exists():
            if time.monotonic() > deadline:
                return None
            time.sleep(_GLANCE)
        return copy_of_live(source, self.directory)

    def pack(self, batch: int) -> bytes:
        """Return an archive of Spark's checkpoint."""
        assert self.directory is not None
        return packed(self.directory, batch)

    def session(self) -> SparkSession:
        """Return the session of the query, which can read its state."""
        assert self._session is not None
        return self._session

    def metrics(self) -> dict[str, int | float | str]:
        """Rows, micro-batches and their times, watermark, state, and the rows that each executor has read."""
        if self._query is not None and self._engine.alive:
            try:
                self.progress.learn(self._query)
            except Exception as error:
                # Spark may be gone already without anybody having noticed: then the last figures are what there is.
                if not is_suspicious(error):
                    raise
        read = sum((Counter(self._engine.server.read_by(key)) for key in self._keys.values()), Counter[str]())
        return self.progress.figures() | {f"rows read by {executor}": rows for executor, rows in read.items()}

    def _folder(self, directory: Path | None) -> Folder:
        """Return the folder of the checkpoint of a query whose own directory is *directory*, if it is to last."""
        if directory is None:
            self._scratch = self._engine.checkpoint(self.plan.checkpoints)
            return self._scratch
        if not self.plan.checkpoints:
            return directory / FOLDER
        # The executors write it where they all can; here is noted where.
        noted = directory / NOTE
        if not noted.exists():
            from exop.runtime.log.segment import DISK, replace_file  # only durable applications need it

            replace_file(DISK, noted, self._engine.checkpoint(self.plan.checkpoints).as_uri().encode())
        return self._engine.folder(noted.read_text())

    def _patiently(self, analyse: Callable[[], DataFrame]) -> DataFrame:
        """Analyse again if a Python process has not started within Spark's ten seconds: the machine is very busy."""
        for _ in range(_ATTEMPTS - 1):
            try:
                return analyse()
            except Exception as error:
                if SLOW not in str(error):
                    raise
                for key in self._keys.values():
                    self._engine.server.remove(key)
        return analyse()

    def _checked(self, session: SparkSession, query: Any) -> DataFrame:
        frame = self._analysed(session, query)
        self._check_columns(frame)
        return frame

    def _analysed(self, session: SparkSession, query: Any) -> DataFrame:
        frames: dict[str, DataFrame] = {}
        for port, one in self.plan.inputs.items():
            feed = self._feeds[port]
            key = self._keys[port] = self._engine.server.add(feed)
            frames[port] = input_frame(
                session, self._engine, feed, key, delay=self.plan.watermark, numbered=one.numbered
            )
            frames[port].createOrReplaceTempView(port)
        if isinstance(query, str):
            self._check_is_query(session, query)
            return session.sql(query)
        _ship(query)
        with self._engine.building(session):
            made = query(**frames)
        if not hasattr(type(made), "isStreaming"):  # of the class: on an instance, Spark would be asked
            for started in session.streams.active:
                started.stop()
            detail = (
                f"the function returns a {type(made).__name__}; return the DataFrame itself, without `writeStream`: "
                f"its rows leave by `out`, for example to a sink slet"
            )
            raise QueryRefused(**self.plan.facts(), detail=detail)
        frame: DataFrame = made
        return frame

    def _check_is_query(self, session: SparkSession, text: str) -> None:
        """Refuse a command, such as `DROP TABLE` or `INSERT`: Spark carries it out as soon as it is analysed."""
        from pyspark.errors import ParseException

        try:
            self._engine.parse(session, f"WITH query AS (\n{_END.sub('', text)}\n) SELECT * FROM query")
        except ParseException:
            self._engine.parse(session, text)  # it names the position in the text if there is a mistake
            detail = "it is a command, which would be carried out at once; write a query (SELECT, WITH, VALUES or FROM)"
            raise QueryRefused(**self.plan.facts(), detail=detail) from None

    def _check_columns(self, frame: DataFrame) -> None:
        from pyspark.sql.pandas.types import to_arrow_schema

        wrong = differences(to_arrow_schema(frame.schema, timezone="UTC"), self.plan.out)
        if wrong:
            raise OutputMismatch(slet=self.plan.name, query=self.plan.text, port=OUT, detail="; ".join(wrong))
        if not frame.isStreaming:
            raise QueryRefused(**self.plan.facts(), detail="it reads none of its input ports")

    def _put_out(self, batch: int, rows: Any, milliseconds: int | None) -> None:
        """Emit one micro-batch; Spark calls this, and calls it again with the same number after a failure."""
        self._known.wait()
        try:
            count, results = self._results(rows, batch)
            self._resumes = False
            moment = self._watermark(milliseconds) if self.plan.by_watermark else None
            self.progress.learn(self._query)  # what is emitted, Spark is to commit without further calls into Java
            sent = self._emit(batch, results, moment)
            for feed in self._feeds.values() if sent else ():
                if isinstance(feed, NativeFeed):
                    feed.apply_policy()
            if self.stage is not None:
                self.stage.settle(batch, sent=sent)
            markers = sum(feed.markers for feed in self._feeds.values())
            self.progress.delivered(batch, count if sent else 0, markers)
        except BaseException as error:
            # Spark would turn it into text: keep the original for the error that ended the query.
            self._error = error
            raise

    def _results(self, rows: Any, batch: int) -> tuple[int, list[Any]]:
        """Return the number of rows of a micro-batch, and what leaves: the rows, or receipts for staged ones."""
        if not self.plan.stage:
            # Behind a Connect server they are here already; else it is a DataFrame.
            here = conform(rows.toArrow() if hasattr(rows, "toArrow") else rows, self.plan.out)
            return here.num_rows, [here] if here.num_rows else []
        from ..storage.staged import Stage

        self.stage = self.stage or Stage(self.plan.stage, f"{self.plan.name}-{self._query.id}")
        offsets = {port: feed.planned for port, feed in self._feeds.items()}
        receipts = self.stage.put(rows, batch, self.plan.out, offsets)
        return sum(one.rows for one in receipts), [receipts] if receipts else []

    def _watermark(self, milliseconds: int | None) -> float:
        """The watermark that the micro-batch under way was computed with, in the unit of the event time."""
        if milliseconds is None:
            execution = self._query._jsq.streamingQuery().lastExecution()
            milliseconds = int(execution.offsetSeqMetadata().batchWatermarkMs())
        self.progress.watermark = moment = watermark_of(self.plan.times[0], milliseconds)
        return moment

    def _explained(self, error: BaseException, kind: type[QueryError] = QueryFailed) -> EngineError:
        """Return the error that ended the query: that of a delivery takes precedence over Spark's account of it."""
        lost = not self._engine.alive or (is_suspicious(error) and not self._engine.answers())
        if not lost and self._error is not None:
            error = self._error
        found = explained(error, kind, lost=lost, **self.plan.facts())
        if isinstance(found, EngineLost) and (reason := self._engine.reason()):
            found = EngineLost(**{**found.facts, "detail": reason})
        elif isinstance(found, QueryError) and any(sign in str(error) for sign in _NO_ROOM):
            places = " and ".join(
                filter(
                    None,
                    (f"its checkpoint to {self.directory}", self.plan.stage and f"its output to {self.plan.stage}"),
                )
            )
            hint = f"Spark writes {places}; make room or make it writable, and {AGAIN}"
            found = type(found)(**{**found.facts, "detail": f"{found.detail.rstrip('.')}. {hint}"})
        elif isinstance(found, QueryError) and self._resumes and _UNREADABLE.match(found.condition):
            # For what a query does wrong, Spark names another condition.
            cure = "if it is damaged, restore the folder, or begin anew with lose_state=True (--lose-state)"
            hint = f"Spark has computed nothing since it continued with the checkpoint {self.directory}; {cure}"
            found = type(found)(**{**found.facts, "detail": f"{found.detail.rstrip('.')}. {hint}"})
        if found is not error:
            found.__cause__ = error
        return found


def _ship(function: Callable[..., Any]) -> None:
    """Let Spark's workers get the functions of the query's module by value: they need not be able to import it."""
    from pyspark import cloudpickle

    module = sys.modules.get(function.__module__)
    if module is not None and module.__name__ != "__main__":
        cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]
