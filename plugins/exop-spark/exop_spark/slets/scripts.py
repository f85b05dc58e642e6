"""An existing streaming script of PySpark, unchanged, as one slet (paper §3.1, encapsulation).

The script runs when the slet opens. Meanwhile methods of pyspark are patched, for the thread of the script only: its
session is that of the platform, its sources are the input ports, and the query that it starts is that of the slet.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from exop.errors import SletError

from ..errors import SparkError
from ..plan import Input
from .factory import query
from .slet import SparkSlet

#: The methods by which a script reads a stream.
_READS: Final = ("load", "table", "json", "csv", "parquet", "orc", "text", "xml")
#: The methods by which a script starts a query.
_STARTS: Final = ("start", "toTable")
#: One script runs at a time, because it changes `sys.argv` and the search path of modules.
_LOCK: Final = threading.Lock()


def script(
    name: str,
    path: str | Path,
    *,
    out: pa.Schema,
    inputs: Mapping[str, Input | pa.Schema],
    arguments: Sequence[str] = (),
    **settings: Any,
) -> type[SparkSlet]:
    """Make a slet of a script that starts one streaming query.

    Each stream that the script reads is an input, in the order of reading; its format and options are ignored. The
    output of the script leaves by `out`; its format, trigger, checkpoint and `foreachBatch` are ignored. A watermark on
    the timestamp of an event time (`EventTime(column, alias=…)`) is that of the input; give its delay as `watermark`.

    Args:
        name: The slet's name.
        path: The script.
        out: The columns of its result.
        inputs: The columns of its sources.
        arguments: The arguments of its command line, `sys.argv[1:]`.
        settings: As for `query`; `mode` is the output mode of the script.

    Raises:
        SletError: the script cannot be read.
    """
    place = Path(path)
    try:
        code = compile(place.read_bytes(), str(place), "exec")
    except OSError as error:
        raise SletError(slet=name, problem=f"its script cannot be read: {error}", cure="give its path") from error
    times = [one.time for one in inputs.values() if isinstance(one, Input) and one.time is not None]
    aliases = dict.fromkeys((one.alias for one in times), settings.get("watermark", "0 seconds"))

    def run(**frames: Any) -> Any:
        endpoints = _Endpoints(str(place), [*frames.values()], settings.get("mode", "append"), aliases)
        with _LOCK, endpoints.patched(), _script_process(place, arguments):
            try:
                exec(code, {"__name__": "__main__", "__file__": str(place)})
            except SystemExit as error:
                if error.code:
                    raise SparkError(f"the script {place} has exited: {error.code}") from error
        return endpoints.result()

    run.__doc__ = f"Run the script {place.name}."
    run.__qualname__ = place.name
    return query(name, run, out=out, inputs=inputs, **settings)


class _Endpoints:
    """The inputs of a script, and the query that it starts.

    Args:
        path: The script, for errors.
        frames: The inputs.
        mode: The output mode of the slet.
        aliases: The timestamps that have a watermark, each with its delay.
    """

    def __init__(self, path: str, frames: list[Any], mode: str, aliases: Mapping[str, str]) -> None:
        self._path, self._frames, self._mode, self._aliases = path, frames, mode, aliases
        self._session = frames[0].sparkSession
        if not hasattr(self._session, "_jsparkSession"):
            raise SparkError(f"the script {path} cannot run over Spark Connect; use local[*] or spark://HOST:PORT")
        self._read = 0
        self._started: list[Any] = []

    @contextmanager
    def patched(self) -> Iterator[None]:
        """Patch methods of pyspark for this thread while the block runs."""
        from pyspark.sql import SparkSession
        from pyspark.sql.classic.dataframe import DataFrame
        from pyspark.sql.streaming.query import StreamingQueryManager
        from pyspark.sql.streaming.readwriter import DataStreamReader, DataStreamWriter

        with ExitStack() as patches:

            def patch(kind: type, names: Sequence[str], method: Callable[..., Any]) -> None:
                for name in names:
                    patches.enter_context(_patched_method(kind, name, method))

            patch(SparkSession.Builder, ["getOrCreate"], lambda *_: self._session)
            patch(SparkSession, ["stop"], lambda *_: None)
            patch(DataStreamReader, _READS, self._next_frame)
            patch(DataStreamWriter, _STARTS, self._start)
            patch(DataStreamWriter, ["outputMode"], self._check_mode)
            patch(DataFrame, ["withWatermark"], self._with_watermark)
            patch(StreamingQueryManager, ["awaitAnyTermination"], lambda *_, **__: None)
            yield

    def result(self) -> Any:
        """Return the DataFrame that the script writes.

        Raises:
            SparkError: the script has started no query, or several, or has not read all inputs.
        """
        if len(self._started) != 1:
            raise SparkError(f"the script {self._path} starts {len(self._started)} queries; a slet runs exactly one")
        if self._read != len(self._frames):
            raise SparkError(f"the script {self._path} reads {self._read} streams; the slet has {len(self._frames)}")
        return self._started[0]

    def _next_frame(self, original: Callable[..., Any], reader: Any, *_: Any, **__: Any) -> Any:
        if self._read == len(self._frames):
            problem = f"more streams than the {len(self._frames)} inputs of the slet"
            raise SparkError(f"the script {self._path} reads {problem}; declare one for each")
        self._read += 1
        return self._frames[self._read - 1]

    def _start(self, original: Callable[..., Any], writer: Any, *_: Any, **__: Any) -> _Started:
        self._started.append(writer._df)
        return _Started()

    def _check_mode(self, original: Callable[..., Any], writer: Any, mode: str) -> Any:
        if mode.lower() != self._mode:
            raise SparkError(
                f"the script {self._path} writes in the mode {mode!r}: give the slet mode={mode.lower()!r}"
            )
        return original(writer, mode)

    def _with_watermark(self, original: Callable[..., Any], frame: Any, column: str, delay: str) -> Any:
        if column not in self._aliases:
            return original(frame, column, delay)
        if delay != self._aliases[column]:
            raise SparkError(
                f"the watermark of the script {self._path} is {delay!r}: give the slet watermark={delay!r}"
            )
        return frame


class _Started:
    """The query object that a script gets; the platform starts the query after the script has returned."""

    def awaitTermination(self, timeout: float | None = None) -> bool:  # noqa: N802 - Spark's name
        """Return at once."""
        return True

    def processAllAvailable(self) -> None:  # noqa: N802
        """Return at once."""

    def stop(self) -> None:
        """Do nothing: the platform stops the query."""


@contextmanager
def _patched_method(kind: type, name: str, method: Callable[..., Any]) -> Iterator[None]:
    """Replace a method of a class for this thread; the new one gets the original method and the arguments."""
    original, owner = getattr(kind, name), threading.get_ident()

    def either(*arguments: Any, **named: Any) -> Any:
        if threading.get_ident() != owner:
            return original(*arguments, **named)
        return method(original, *arguments, **named)

    setattr(kind, name, either)
    try:
        yield
    finally:
        setattr(kind, name, original)


@contextmanager
def _script_process(place: Path, arguments: Sequence[str]) -> Iterator[None]:
    """Set the command line of the script, and let it import the modules in its folder."""
    before, folder = sys.argv, str(place.parent)
    sys.argv = [str(place), *arguments]
    sys.path.insert(0, folder)
    try:
        yield
    finally:
        sys.argv = before
        sys.path.remove(folder)
