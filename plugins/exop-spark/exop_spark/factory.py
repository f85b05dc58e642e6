"""Making a slet of a query."""

from __future__ import annotations

import sys
import typing
from collections.abc import Callable, Mapping
from types import new_class
from typing import Annotated, Any

import pyarrow as pa

from exop import EndOfStream, OutputPort, Punctuation, input_port

from .plan import Input, Punctuate, Query
from .slets import SparkSlet


def query(
    name: str,
    text: Query,
    *,
    out: pa.Schema,
    inputs: Mapping[str, Input | pa.Schema],
    punctuate: Punctuate | None = None,
    **settings: Any,
) -> type[SparkSlet]:
    """Make a slet of a query.

    Args:
        name: The slet's name.
        text: Spark SQL over the input ports, which are its tables; or a function that gets their streaming DataFrames
            by name and returns one. SQL text is the setting `query`, so that an application can change it.
        out: The columns of the output. What the query gives is cast to them; names must agree.
        inputs: The input ports, each a schema or an `Input`.
        punctuate: How punctuations leave: by the inputs' own, or by the watermark. By default by the watermark, less
            one step, if an input has an event time.
        settings: Other defaults for the settings of `SparkSlet`.

    >>> from exop_spark import query
    >>> fast = query(
    ...     "fast", "SELECT vid, spd FROM reports WHERE spd > 60", inputs={"reports": REPORTS}, out=SPEEDS
    ... )
    """
    ports = {port: one if isinstance(one, Input) else Input(one) for port, one in inputs.items()}
    fields: dict[str, Any] = {"out": OutputPort[Annotated[pa.RecordBatch, out]]}
    body: dict[str, Any] = {"title": name, "ports": ports, "columns": out, "function": text}
    body["punctuation"] = punctuate or _usual(ports)
    if isinstance(text, str):
        fields["query"], body["query"] = str, text
    hints = typing.get_type_hints(SparkSlet)
    for setting, value in settings.items():
        fields[setting], body[setting] = hints[setting], value
    for port, one in ports.items():
        body[port] = _input_method(port, one.columns)
    body |= {"__annotations__": fields, "__doc__": _doc(name, text), "__module__": _caller()}
    made = new_class(name, (SparkSlet,), {"own_driver": True, "name": name}, lambda namespace: namespace.update(body))
    return typing.cast("type[SparkSlet]", made)


def _caller() -> str:
    """The module that made the slet: its identity names it."""
    return str(sys._getframe(2).f_globals.get("__name__", __name__))


def _usual(ports: Mapping[str, Input]) -> Punctuate:
    times = [one.time for one in ports.values() if one.time is not None]
    if not times:
        return Punctuate("input")
    step = times[0].step
    return Punctuate("watermark", lambda watermark: watermark - step)


def _input_method(port: str, columns: pa.Schema) -> Callable[..., None]:
    def method(self: SparkSlet, item: Any) -> None:
        self.take(port, item)

    carried = typing.Union[Annotated[pa.RecordBatch, columns], Punctuation, EndOfStream]  # noqa: UP007 - at run time
    method.__name__ = method.__qualname__ = port
    method.__doc__ = f"Append to the feed that the query reads as `{port}`."
    method.__annotations__ = {"item": carried, "return": None}
    return input_port(method)


def _doc(name: str, text: Query) -> str:
    if isinstance(text, str):
        return f"The query `{name}` on Spark.\n\n{text.strip()}"
    return f"The query `{name}` on Spark.\n\n{(text.__doc__ or '').strip()}".strip()
