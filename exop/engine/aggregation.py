"""`Aggregation`: a keyed aggregate as a declaration, and the form of its state that all engines read and write."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from math import floor, inf, nextafter
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from exop.engine.columns import schema_of
from exop.errors import QueryError, SettingError
from exop.model.values.columns import stream_of

#: The name and the version of the form, for `Engine.name` and `Engine.version`.
FORM: Final = "aggregate"
VERSION: Final = 1
#: The column of the state with the number of the window: its end, in units of `slide`; 0 if there are no windows.
WINDOW: Final = "window:"
#: The column of the state with the number of rows.
ROWS: Final = "n:"
#: The largest number of windows that one row may belong to.
_MOST: Final = 10_000
#: No window has these numbers.
FIRST: Final = -(1 << 62)
LAST: Final = 1 << 62
_CALL: Final = re.compile(r"\s*(\w+)\s*\(\s*(\*|\w+)?\s*(?:,\s*(\d{1,3}(?:\.\d{1,9})?)\s*)?\)\s*")
#: The kinds of accumulators that functions need, other than those of their own names; and the functions that the
#: engines of columns do not have.
_KINDS: Final = {"count": ("n",), "avg": ("n", "sum"), "stddev": ("moments",), "collect": ("list",)}
_COMMON: Final = ("count", "sum", "avg", "min", "max")
_MORE: Final = ("first", "last", "stddev", "distinct", "collect", "percentile")
_LAYOUT: Final = b"exop"


class Accumulator(NamedTuple):
    """A column of the state: what is accumulated (`n`, `sum`, `min`, `max`) of which column; `n` of none: all rows.

    Further ones, of items: the `first` and `last` value, with its time; the number of values, their mean, and the sum
    of the squares of their distances from that (`moments`); the `distinct` values, and all of them (`list`).
    """

    kind: str
    column: str
    type: pa.DataType

    @property
    def name(self) -> str:
        """The name of the column."""
        return f"{self.kind}:{self.column}"

    @property
    def merge(self) -> str:
        """The function that merges two accumulators of a group."""
        return "sum" if self.kind == "n" else self.kind


@dataclass(frozen=True)
class Aggregation:
    """A keyed aggregate over windows, or over the whole stream if `window` is 0.

    The window number `i` ends at `offset + i * slide`: it has the times from `window` before that up to, and without,
    its end; whole ones are exact.

    Attributes:
        columns: The columns that arrive.
        keys: The columns by which the rows are grouped.
        values: By the name of a column of the output: the function, and its column (`""`: all rows). The function
            `percentile` is followed by its number: `percentile 90`.
        time: The column with the time of a row.
        window, slide: The length of a window, and the distance of two windows, in the unit of the time.
        offset: The end of a window, from 0 up to, and without, `slide`.
        gap: Instead of these, the distance from which on two rows of a group are not in one window.
    """

    columns: pa.Schema
    keys: tuple[str, ...]
    values: Mapping[str, tuple[str, str]]
    time: str
    window: float
    slide: float
    offset: float = 0
    gap: float = 0

    @classmethod
    def of(cls, settings: Mapping[str, Any], *, items: bool = False) -> Aggregation:
        """Return the aggregation that the settings of a slet declare; raise `SettingError` if one is invalid.

        That of *items* has further functions.
        """
        columns, keys, time = schema_of(settings["columns"]), tuple(settings["keys"]), settings["time"]
        marked = next((name for name in columns.names if ":" in name), "")
        _check(not marked, "columns", f"{marked!r} has a colon, which the names of the state have")
        for setting, names in (("keys", keys), ("time", (time,) if time else ())):
            for name in names:
                _check(name in columns.names, setting, f"there is no column {name!r}; {_known(columns)}")
        for name in keys:
            exact = not pa.types.is_floating(columns.field(name).type)
            _check(exact, "keys", f"{name!r} is a floating-point number, which is not exact; group by something else")
        values = {name: _call(name, text, columns, items) for name, text in settings["values"].items()}
        _check(bool(values), "values", 'there is none; write for example {"cars": "count(*)", "speed": "avg(spd)"}')
        made = cls(columns, keys, values, time, *_lengths(settings, columns), _gap(settings, columns))
        _check(items or not made.gap, "gap", "windows by inactivity need items (form='items' of stock:aggregate)")
        names = made.out.names
        twice = next((name for name in names if names.count(name) > 1), "")
        _check(not twice, "values", f"the output would have two columns {twice!r}; give the value another name")
        return made

    @property
    def needs_items(self) -> bool:
        """Whether engines of columns do not have it."""
        return bool(self.gap) or any(name.partition(" ")[0] in _MORE for name, _ in self.values.values())

    @cached_property
    def accumulators(self) -> tuple[Accumulator, ...]:
        """The columns of the state behind the window and the keys; the first is the number of rows."""
        calls = [("list" if name.startswith("percentile") else name, column) for name, column in self.values.values()]
        found = ((kind, column) for name, column in calls for kind in _KINDS.get(name, (name,)))
        return tuple(Accumulator(*one, self._state_type(*one)) for one in dict.fromkeys([("n", ""), *found]))

    @cached_property
    def state(self) -> pa.Schema:
        """The columns of the state: the window, the keys, and the accumulators."""
        keys = [self.columns.field(name).with_nullable(True) for name in self.keys]
        windows = [(WINDOW, pa.int64())]
        if self.gap:
            windows = [(name, self.columns.field(self.time).type) for name in ("first:", "last:")]
        return pa.schema([*windows, *keys, *((one.name, one.type) for one in self.accumulators)])

    @cached_property
    def out(self) -> pa.Schema:
        """The columns of the output: the end of the window under the name of the time, the keys, and the values."""
        times = [self.columns.field(self.time).with_nullable(True)] if self.timed else []
        keys = [self.columns.field(name).with_nullable(True) for name in self.keys]
        return pa.schema([*times, *keys, *((name, self._type(*one)) for name, one in self.values.items())])

    @property
    def exact(self) -> bool:
        """Whether the times are integers."""
        return bool(self.time) and pa.types.is_integer(self.columns.field(self.time).type)

    @property
    def timed(self) -> bool:
        """Whether there are windows."""
        return bool(self.window or self.gap)

    @property
    def windows(self) -> int:
        """The number of windows that a row belongs to."""
        return round(self.window / self.slide) if self.window else 1

    def complete(self, time: float) -> int:
        """Return the number of the last window that is complete if the stream is complete up to *time*."""
        if not self.window or abs(time) == inf:
            return LAST if time == inf else FIRST
        number = (nextafter(time, inf) - self.offset) / self.slide
        if self.exact:
            number = (floor(time) + 1 - self.offset) // self.slide
        return floor(min(max(number, FIRST), LAST))  # no row has a time beyond them

    @cached_property
    def used(self) -> list[str]:
        """The columns that are needed: the time, the keys, and those of the values."""
        named = [*([self.time] if self.timed else []), *self.keys, *(one.column for one in self.accumulators)]
        return [name for name in dict.fromkeys(named) if name]

    @cached_property
    def limit(self) -> float:
        """The largest amount of a time whose windows have numbers."""
        return self._limit(1 << 53)

    def _limit(self, most: int) -> float:
        limit = most * (self.slide or 1)
        if self.exact:
            limit = min(limit, (1 << (self.columns.field(self.time).type.bit_width - 1)) - 1)
        return limit - self.window - self.offset - self.gap

    def check_times(self, batch: pa.RecordBatch, most: int = 1 << 53) -> None:
        """Raise `ValueError` if a row has no time, or one whose windows have no number.

        Args:
            batch: The rows.
            most: The largest number of a window.
        """
        if (times := batch.column(self.time)).null_count:
            raise ValueError(f"the column {self.time!r} has a row without a time")
        if not len(times):
            return
        if not self.exact and not pc.all(pc.is_finite(times)).as_py():
            raise ValueError(f"the column {self.time!r} has a time that is infinite or no number")
        low, high = pc.min_max(times).as_py().values()
        limit = self._limit(most)
        if max(-low, high) > limit:
            last = limit + self.window + self.offset + self.gap
            shown = f"{low if -low > high else high}, and the last window ends at {last} or before"
            raise ValueError(f"the column {self.time!r} has the time {shown}; is it of the right unit?")

    def largest(self, groups: pa.Table) -> int:
        """Return the largest amount of a sum of integers in groups of the state; sums of such amounts have 63 bits."""
        sums = [one.name for one in self.accumulators if one.kind == "sum" and pa.types.is_integer(one.type)]
        bounds = [bound for name in sums for bound in pc.min_max(groups.column(name)).as_py().values()]
        return max((abs(bound) for bound in bounds if bound is not None), default=0)

    def results(self, groups: pa.Table) -> list[pa.RecordBatch]:
        """Return the output for groups of the state, in the order of windows and keys."""
        if not groups.num_rows:
            return []
        groups = groups.sort_by([(name, "ascending") for name in (WINDOW, *self.keys)])
        columns = [groups.column(name) for name in self.keys]
        columns += [self._value(groups, *one) for one in self.values.values()]
        if self.window:
            ends = pc.multiply(groups.column(WINDOW), self.slide)
            columns.insert(0, pc.add(ends, self.offset) if self.offset else ends)
        table = pa.table([one.cast(field.type) for one, field in zip(columns, self.out, strict=True)], schema=self.out)
        return table.combine_chunks().to_batches()  # type: ignore[no-any-return]

    def write(self, groups: pa.Table, complete: float, late: int) -> bytes:
        """Return the state in the form that all engines read: an Arrow stream, whose metadata describe the groups.

        Args:
            groups: The groups of the windows that are not complete, each of them once.
            complete: The number of the last complete window.
            late: The number of rows that were dropped because they were late.
        """
        head = {"layout": self.layout(), "complete": complete, "late": late}
        table = groups.select(self.state.names).cast(self.state)
        return bytes(stream_of(table.replace_schema_metadata({_LAYOUT: json.dumps(head).encode()})))

    def read(self, state: bytes) -> tuple[pa.Table, int, int]:
        """Return the groups, the number of the last complete window, and the number of late rows; see `write`.

        Raises:
            QueryError: the state is that of another aggregation.
        """
        table = pa.ipc.open_stream(state).read_all()
        head = json.loads(table.schema.metadata[_LAYOUT])
        if problem := self.lacks(head["layout"]):
            raise QueryError(problem=f"{problem}; start without state (`exop replace APP.NODE SLET --lose-state`)")
        return table.select(self.state.names).replace_schema_metadata(None), head["complete"], head["late"]

    def layout(self) -> dict[str, Any]:
        """Return what must agree with the state of another engine, as plain data."""
        windows = f"by gaps of {_exactly(self.gap)} of {self.time}" if self.gap else "none"
        if self.window:
            lengths = f"{_exactly(self.window)} every {_exactly(self.slide)}"
            offset = f" from {_exactly(self.offset)}" if self.offset else ""
            windows = f"{lengths}{offset} of {self.time} {self.columns.field(self.time).type}"
        keys = {name: str(self.columns.field(name).type) for name in self.keys}
        accumulators = {one.name: str(one.type) for one in self.accumulators}
        return {"windows": windows, "keys": keys, "accumulators": accumulators}

    def lacks(self, held: Mapping[str, Any]) -> str | None:
        """Return why this aggregation cannot continue with a state of the layout *held*, or `None`."""
        if (own := self.layout())["windows"] != held["windows"]:
            return f"its windows are {own['windows']}, those of the state {held['windows']}"
        if own["keys"] != held["keys"]:
            return f"its keys are {_listed(own['keys'])}, those of the state {_listed(held['keys'])}"
        missing = {name: kind for name, kind in own["accumulators"].items() if held["accumulators"].get(name) != kind}
        return f"the state has no {_listed(missing)}; it has {_listed(held['accumulators'])}" if missing else None

    def _state_type(self, kind: str, column: str) -> pa.DataType:
        """Return the type of an accumulator."""
        if kind == "moments":
            return pa.struct([("n", pa.int64()), ("mean", pa.float64()), ("squares", pa.float64())])
        if kind in ("first", "last"):
            time = self.columns.field(self.time).type if self.timed else pa.int64()
            return pa.struct([("time", time), ("value", self.columns.field(column).type)])
        return pa.list_(self.columns.field(column).type) if kind == "distinct" else self._type(kind, column)

    def _type(self, kind: str, column: str) -> pa.DataType:
        """Return the type of the value of a function, or of a simple accumulator."""
        if kind in ("n", "count", "distinct"):
            return pa.int64()
        carried = self.columns.field(column).type
        if kind in ("min", "max", "first", "last"):
            return carried
        if kind in ("list", "collect"):
            return pa.list_(carried)
        return pa.int64() if kind == "sum" and pa.types.is_integer(carried) else pa.float64()

    def _value(self, groups: pa.Table, function: str, column: str) -> Any:
        if function != "avg":
            return groups.column(f"{'n' if function == 'count' else function}:{column}")
        total, number = (groups.column(f"{kind}:{column}").cast(pa.float64(), safe=False) for kind in ("sum", "n"))
        return pc.divide(total, number)


def _lengths(settings: Mapping[str, Any], columns: pa.Schema) -> tuple[float, float, float]:
    """Check the windows; return their length, the distance of two windows, and their offset."""
    time, window, slide, offset = (*map(settings.__getitem__, ("time", "window", "slide")), settings.get("offset", 0))
    _check(0 <= window < inf, "window", f"it is {window:g}, and must be 0 (no windows) or more")
    if not window:
        missing = "windows by `gap` have none" if settings.get("gap") else "there are no windows; give `window`, too"
        for name, given in (("slide", slide), ("offset", offset)):
            _check(not given, name, missing)
        return 0, 0, 0
    slide = slide or window
    _check(bool(time), "time", "windows need the column with the time of a row")
    kind = columns.field(time).type
    whole, floating = pa.types.is_integer(kind), pa.types.is_floating(kind)
    _check(whole or floating, "time", f"{time!r} is {kind}, and must be a number")
    number = window / slide if 0 < slide <= window else 0
    fits = 0 < number < inf and abs(number - round(number)) < 1e-9 * number  # 0.3 is about three times 0.1
    _check(fits, "slide", f"{_exactly(window)} is no multiple of {_exactly(slide)}")
    _check(number <= _MOST, "slide", f"each row would be in {number:g} windows; the most are {_MOST}")
    _check(floating or not (window % 1 or slide % 1), "window", f"{time!r} is {kind}: windows must be whole numbers")
    _check(0 <= offset < slide, "offset", f"it is {offset:g}, and must be 0 or more, and less than {_exactly(slide)}")
    _check(floating or not offset % 1, "offset", f"{time!r} is {kind}: it must be a whole number")
    return (int(window), int(slide), int(offset)) if whole else (window, slide, offset)


def _gap(settings: Mapping[str, Any], columns: pa.Schema) -> float:
    """Check the windows by inactivity; return the distance that ends them, 0 if there are none."""
    if not (gap := settings.get("gap", 0)):
        return 0
    _check(0 < gap < inf, "gap", f"it is {gap:g}, and must be 0 (no such windows) or more")
    _check(not settings["window"], "gap", "there are windows of a length, too; give `window`, or `gap`")
    _check(bool(settings["time"]), "time", "windows need the column with the time of a row")
    kind = columns.field(settings["time"]).type
    whole, floating = pa.types.is_integer(kind), pa.types.is_floating(kind)
    _check(whole or floating, "time", f"{settings['time']!r} is {kind}, and must be a number")
    _check(floating or not gap % 1, "gap", f"{settings['time']!r} is {kind}: it must be a whole number")
    return int(gap) if whole else gap


def _call(name: str, text: str, columns: pa.Schema, items: bool) -> tuple[str, str]:
    """Read `avg(spd)`, `percentile(spd, 90)`."""
    known = (*_COMMON, *_MORE) if items else _COMMON
    found = _CALL.fullmatch(text)
    function = found[1].lower() if found is not None else ""
    only = f"; {function} needs items (form='items' of stock:aggregate)" * (function in _MORE and not items)
    listed = ", ".join(f"{one}(x{', 90' * (one == 'percentile')})" for one in known)
    _check(function in known, "values", f"{text!r} is not count(*), {listed}{only}")
    assert found is not None
    column, number = (found[2] or "*"), found[3]
    if function == "count" and column == "*":
        return function, ""
    _check(column in columns.names, "values", f"{name}: there is no column {column!r}; {_known(columns)}")
    kind = columns.field(column).type
    is_number = pa.types.is_integer(kind) or pa.types.is_floating(kind)
    fits = is_number or function not in ("sum", "avg", "min", "max", "stddev", "percentile")
    fits = fits or (function in ("min", "max") and pa.types.is_string(kind))
    _check(fits, "values", f"{name}: {function} does not take {column!r}, which is {kind}")
    takes = number is not None and float(number) <= 100 if function == "percentile" else number is None
    _check(
        takes, "values", f"{name}: write {function}({column}{', 90), up to 100' if function == 'percentile' else ')'}"
    )
    return (f"{function} {number}" if number else function), column


def _exactly(number: float) -> str:
    return str(int(number)) if number % 1 == 0 else repr(number)


def _known(columns: pa.Schema) -> str:
    return f"there are {', '.join(columns.names)}"


def _listed(columns: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {kind}" for name, kind in columns.items()) or "none"


def _check(holds: bool, setting: str, problem: str) -> None:
    if not holds:
        raise SettingError(place="", setting=setting, problem=problem)
