"""A tap: listens to what a component takes and puts out; swapped in and out like any other change of the wiring."""

from __future__ import annotations

import copy
import datetime
import decimal
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any

from exop.model.items import CONTROL, EndOfStream, Punctuation
from exop.model.ports import PortSpec
from exop.runtime.entry import Control, Entry

#: Whose values nobody can alter: they are passed on as they are.
PLAIN: frozenset[type] = frozenset(
    {
        type(None), bool, int, float, complex, str, bytes, Punctuation, EndOfStream, decimal.Decimal,
        datetime.datetime, datetime.date, datetime.time, datetime.timedelta,
    }
)  # fmt: skip


class Tap(ABC):
    """Stands at the ways into one component and out of it; asked for each of them while they are compiled."""

    @abstractmethod
    def around(self, port: PortSpec, call: Callable[[Any], Any], *, lazy: bool) -> Callable[[Any], Any]:
        """Listen to the calls of the slet at *port*; what a *lazy* one returns is gathered in a list."""

    def control(self, port: PortSpec, control: Control) -> Control:
        """Listen to the control items that come to *port*."""
        return control

    def forwarded(self, mark: Punctuation | EndOfStream) -> None:
        """A control item is sent on by every output port."""

    def outlets(self, to: Mapping[str, Entry]) -> Mapping[str, Entry]:
        """Listen to what leaves by the output ports of a slet that pushes by itself."""
        return to


def independent(value: Any) -> Any:
    """The value itself if nobody can alter it, a copy otherwise. A record batch is never altered."""
    kind = type(value)
    if kind in PLAIN or (kind is tuple and all(type(part) in PLAIN for part in value)):
        return value
    if isinstance(value, CONTROL) or hasattr(value, "num_rows"):
        return value
    return copy.deepcopy(value)
