"""Making a slet of a query."""

from __future__ import annotations

import sys
import typing
from collections.abc import Callable, Mapping
from dataclasses import fields
from types import new_class
from typing import Annotated, Any

import pyarrow as pa

from exop import EndOfStream, OutputPort, Punctuation, input_port
from exop.engine.pull import Punctuate
from exop.errors import SletError, UnknownName

from ..plan import Input, Query
from .slet import SparkSlet


def query(
    name: str,
    text: Query,
    *,
    out: pa.Schema,
    inputs: Mapping[str, Input | pa.Schema],
    punctuate: Punctuate | None = None,
    base: type[SparkSlet] = SparkSlet,
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
        base: The class to derive from.
        settings: Other defaults for the settings of `SparkSlet`.

    Raises:
        SletError: an input that cannot be one, or a watermark asked for without an event time.
        UnknownName: a setting that Spark slets do not have.

    >>> from exop_spark import query
    >>> fast = query(
    ...     "fast", "SELECT vid, spd FROM reports WHERE spd > 60", inputs={"reports": REPORTS}, out=SPEEDS
    ... )
    """
    ports = {port: one if isinstance(one, Input) else Input(one) for port, one in inputs.items()}
    punctuate = punctuate or _usual(ports)
    _check(name, ports, punctuate, settings)
    annotations: dict[str, Any] = {"out": OutputPort[Annotated[pa.RecordBatch, out] | Punctuation]}
    body: dict[str, Any] = {"ports": ports, "columns": out, "punctuation": punctuate}
    body["times"] = {port: one.time for port, one in ports.items() if one.time is not None}
    body["keeps_own_state"] = any(one.time is not None or one.numbered for one in ports.values())
    body["query"] = text if isinstance(text, str) else staticmethod(text)
    if isinstance(text, str):
        annotations["query"] = str
    hints = typing.get_type_hints(SparkSlet)
    for setting, value in settings.items():
        annotations[setting], body[setting] = hints[setting], value
    for port, one in ports.items():
        body[port] = _input_method(port, one.columns)
    body |= {"__annotations__": annotations, "__doc__": _doc(name, text), "__module__": _caller()}
    made = new_class(name, (base,), {"own_driver": True, "name": name}, lambda namespace: namespace.update(body))
    return typing.cast("type[SparkSlet]", made)


def _check(name: str, ports: Mapping[str, Input], punctuate: Punctuate, settings: Mapping[str, Any]) -> None:
    known = [entry.name for entry in fields(SparkSlet) if entry.name != "tie"]
    for setting in settings:
        if setting not in known:
            raise UnknownName(place=f"the Spark slet {name!r}", kind="setting", name=setting, known=known)
    for port, one in ports.items():
        if not port.isidentifier() or hasattr(SparkSlet, port) or port in ("query", "tie"):
            raise SletError(slet=name, problem=f"an input cannot be called {port!r}", cure="choose another name")
        if one.time is not None and one.time.column not in one.columns.names:
            problem = f"the event time of {port!r} is the column {one.time.column!r}, which it does not have"
            raise SletError(slet=name, problem=problem, cure=f"name one of {', '.join(one.columns.names)}")
    if punctuate.by == "watermark" and not any(one.time for one in ports.values()):
        problem = "its punctuations follow the watermark, and no input has an event time"
        raise SletError(slet=name, problem=problem, cure="give an input one: Input(columns, EventTime(column))")


def _caller() -> str:
    """The module that made the slet: its identity names it."""
    return str(sys._getframe(2).f_globals.get("__name__", __name__))


def _usual(ports: Mapping[str, Input]) -> Punctuate:
    time = next((one.time for one in ports.values() if one.time is not None), None)
    return Punctuate("input") if time is None else Punctuate("watermark", time.before)


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
