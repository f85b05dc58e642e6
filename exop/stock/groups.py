"""`RowGroups`: keyed aggregates of items, one by one, with the state of all aggregates.

A row is accumulated once, for all windows that it belongs to: the rows between two ends of windows are a *pane*, and
the panes of a window are merged when it is complete (Li et al., "No pane, no gain", 2005). The function that
accumulates is generated, as a call for each accumulator would take longer than all of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from ctypes import c_float
from datetime import UTC, date, datetime
from itertools import accumulate
from math import floor, inf, nan, sqrt
from numbers import Real
from operator import attrgetter
from typing import Any, Final, NamedTuple, NoReturn

import pyarrow as pa

from exop.engine import Engine
from exop.engine.aggregation import FIRST, FORM, LAST, VERSION, Accumulator, Aggregation
from exop.model.slets.ports import PortType
from exop.model.syntax import parsed
from exop.runtime.dataflow.batches import as_row, to_columns
from exop.stock.panes import Group, Groups, Panes

_Conversion = Callable[[Any], Any]
#: No groups.
_NONE: Final[Groups] = {}
#: No value of a column.
_MISSING: Final = object()
#: The greatest integer of 64 bits.
_HIGH: Final = (1 << 63) - 1
#: By Arrow type, the test for a value that is of this type as it is.
_TESTS: Final = {
    **{
        getattr(pa, f"int{bits}")(): f"{{0}}.__class__ is int and {-(1 << bits - 1)} <= {{0}} < {1 << bits - 1}"
        for bits in (8, 16, 32, 64)
    },
    pa.float32(): "{0}.__class__ is float",
    pa.float64(): "{0}.__class__ is float",
    pa.bool_(): "{0}.__class__ is bool",
    pa.string(): "{0}.__class__ is str and ({0}.isascii() or {0}.encode())",
    pa.binary(): "{0}.__class__ is bytes",
    pa.date32(): "{0}.__class__ is date",
    pa.timestamp("us", "UTC"): "{0}.__class__ is datetime and {0}.tzinfo is UTC",
}
#: How a value, or another accumulator, is added to an accumulator; both are there. NaN is the greatest number.
_ADDED: Final = {
    "n": "{0} + {1}",
    "sum": "{0} + {1}",
    "min": "{1} if {1} < {0} else {0}",
    "max": "{1} if {1} > {0} else {0}",
    "min float": "{1} if {1} < {0} or {0} != {0} else {0}",
    "max float": "{1} if {1} > {0} or {1} != {1} else {0}",
    "first": "{1} if {1}[0] < {0}[0] else {0}",
    "last": "{1} if {1}[0] >= {0}[0] else {0}",
    "moments": "moments({0}, {1})",
}
#: The accumulator of a single value {0} at a time {1}; by default, it is the value.
_SINGLE: Final = {
    "first": "({1}, {0})", "last": "({1}, {0})", "moments": "(1, float({0}), 0.0)",
    "distinct": "{{{0} if {0} == {0} else NAN: None}}", "list": "[{0}]",
}  # fmt: skip
#: How an accumulator that changes in place is copied, and another one is merged into it.
_COPIED: Final = {"distinct": "{{**{0}}}", "list": "[*{0}]"}
_MERGED: Final = {"distinct": "{0}.update({1})", "list": "{0}.extend({1})"}
#: The value {1} of a row is added in place, where that is faster.
_IN_PLACE: Final = {"distinct": "{0}[{1} if {1} == {1} else NAN] = None", "list": "{0}.append({1})"}
#: The value of a function, given its accumulator, which is there.
_VALUES: Final = {
    "first": "{0}[1]", "last": "{0}[1]", "stddev": "deviation({0})", "distinct": "len({0})", "collect": "[*{0}]",
}  # fmt: skip
#: The value of a function without any value.
_NOTHING: Final = {"distinct": "0", "collect": "[]"}
#: The accumulators as Arrow has them, and back.
_STORED: Final[dict[str, Callable[[Any], Any]]] = {"distinct": list, "moments": tuple, "first": tuple, "last": tuple}
_READ: Final[dict[str, Callable[[Any], Any]]] = {
    "distinct": dict.fromkeys,
    **{kind: lambda stored: tuple(stored.values()) for kind in ("moments", "first", "last")},
}
#: The text that finds the group of an item: in its pane, and in the window to which it is near.
_PANE: Final = """first = {0}
    if {1} and first <= engine.complete and engine.is_late(first, item):
        return ()
    if (groups := panes.get(first)) is None:
        groups = panes[first] = {{}}
    if (group := groups.get(key)) is None:
        group = groups[key] = [*engine.empty]"""
_SESSION: Final = """first, session = 0, engine.place(key, {0}, item)
    if session is None:
        return ()
    group = session[2]"""
_GLOBALS: Final[dict[str, Any]] = {
    "__builtins__": {one.__name__: one for one in (bool, bytes, dict, float, int, len, str, AttributeError, KeyError)},
    "UTC": UTC, "NAN": nan, "inf": inf, "c_float": c_float, "date": date, "datetime": datetime, "floor": floor,
}  # fmt: skip


def _moments(one: tuple[int, float, float], other: tuple[int, float, float]) -> tuple[int, float, float]:
    """Merge two numbers of values, means, and sums of squared distances from these (Chan et al., 1979)."""
    n, distance = one[0] + other[0], other[1] - one[1]
    mean = one[1] + distance * other[0] / n
    return n, mean, one[2] + other[2] + distance * distance * one[0] * other[0] / n


def _deviation(moments: tuple[int, float, float]) -> float | None:
    """The standard deviation of a sample; as in SQL, NULL for a single value."""
    n, _, squares = moments
    return sqrt(squares / (n - 1)) if n > 1 and squares == squares else nan if n > 1 else None


def _percentile(values: list[Any], percent: float) -> float:
    """The value below which so many per cent are; between two values, it is interpolated, as `percentile_cont`."""
    found = sorted(values, key=lambda one: (one != one, one))
    place = (len(found) - 1) * percent / 100
    low = floor(place)
    return float(found[low] if place == low else found[low] + (found[low + 1] - found[low]) * (place - low))


class _Calls(NamedTuple):
    """The generated functions of an aggregation.

    Attributes:
        add: Accumulates an item; without windows, returns a batch with the new values of its group.
        copied: Returns a copy of a group.
        merge: Merges the second group into the first.
        result: The result for the number of a window, a key and a group.
    """

    add: Callable[[Any], tuple[list[dict[str, Any]], ...]]
    copied: Callable[[Group], Group]
    merge: Callable[[Group, Group], None]
    result: Callable[[int, Any, Group], dict[str, Any]]


class RowGroups(Engine):
    """Groups rows one by one.

    Args:
        aggregation: What is computed.
        leave: Called with each row that belongs to no open window.

    Attributes:
        add: Accumulates a row; without windows, returns a batch with the new values of its group.
        complete: The number of the last window that is complete.
        limit: Sums of integers up to this amount fit into 64 bits, also those of all panes of a window.
    """

    name = FORM
    version = VERSION

    def __init__(self, aggregation: Aggregation, leave: Callable[[Any], object]) -> None:
        self._of, self._leave = aggregation, leave
        #: By the number of the first window that it belongs to, the groups of a pane.
        self._panes: dict[int, Groups] = {}
        #: The groups of whole windows, from another engine.
        self._given: dict[int, Groups] = {}
        self.complete: float = FIRST
        self._late, self.limit = 0, _HIGH // aggregation.windows
        self.empty = [0 if one.kind == "n" else None for one in aggregation.accumulators]
        self.add, self._copied, self._merge, self._result = _generated(aggregation, self._panes, self)
        self._merged = self._merging()
        #: Whether the accumulators of a window are far smaller than its rows.
        self._small = not any(one.kind in _COPIED for one in aggregation.accumulators)

    def compile(self, query: str) -> None:
        """The settings declare everything."""

    def push(self, port: str, batch: Any) -> list[Any]:
        """Accumulate rows."""
        return [results for row in batch for results in self.add(row)]

    def is_late(self, first: int, row: Any) -> bool:
        """Count the windows of a row that are complete, from the *first* on; return whether all of them are."""
        late = min(int(self.complete) - first + 1, self._of.windows)
        self._late += late
        if late == self._of.windows:
            self._leave(row)
            return True
        self._merged.clear()
        return False

    def checked(self, first: int, key: Any, place: int, total: int) -> int:
        """Return a sum of integers in a pane, the first of its size; fail if that of one of its windows is too large.

        From then on, all sums are checked so.
        """
        count, self.limit = self._of.windows, -1
        panes = [self._panes.get(one, _NONE).get(key) for one in range(first - count + 1, first + count)]
        values = [group[place] or 0 if group else 0 for group in panes]
        values[count - 1] = total
        sums = [0, *accumulate(values)]
        for number, begin in enumerate(sums[:count], first):
            given = self._given.get(number, _NONE).get(key)
            found = sums[number - first + count] - begin + (given[place] or 0 if given else 0)
            if not -_HIGH - 1 <= found <= _HIGH:
                if not self._panes[first][key][0]:  # it is new
                    del self._panes[first][key]
                self.overflow(place)
        return total

    def overflow(self, place: int) -> NoReturn:
        """Refuse the sum of an accumulator."""
        raise OverflowError(f"the sum of {self._of.accumulators[place].column!r} is beyond 64 bits")

    def advance(self, time: float) -> list[Any]:
        """Return the results of the windows that are complete, as one batch, and drop them."""
        of = self._of
        if not of.window or self.complete == (complete := of.complete(time)):
            return []
        found = [
            self._result(number, key, groups[key])
            for number, groups in self._windows(complete, advancing=True)
            for key in ordered(groups)
        ]
        self.complete = complete
        for held, last in ((self._panes, complete - of.windows + 1), (self._given, complete)):
            for number in [one for one in held if one <= last]:
                del held[number]
        return [found] if found else []

    def snapshot(self) -> bytes:
        """Return the groups in the form of all aggregates: those of each window."""
        held = self._windows(LAST)
        return self._write([((number,), key, group) for number, groups in held for key, group in groups.items()])

    def restore(self, state: bytes, version: int) -> None:
        """Continue with the groups of another aggregate."""
        self._panes.clear()
        self._given.clear()
        self._merged.clear()
        held = self._panes if self._of.windows == 1 else self._given
        for (number,), key, group in self._read(state):
            held.setdefault(number, {})[key] = group
        self.limit = -1 if self._of.largest(self._of.read(state)[0]) > self.limit else self.limit

    def _write(self, held: list[tuple[tuple[Any, ...], Any, Group]]) -> bytes:
        """Return the state of these windows, keys and groups."""
        of, single = self._of, len(self._of.keys) == 1
        rows = [(*window, *((key,) if single else key), *group) for window, key, group in held]
        columns = [*zip(*rows, strict=True)] if rows else [()] * len(of.state)
        for place, one in enumerate(of.accumulators, len(of.state) - len(of.accumulators)):
            columns[place] = _converted(columns[place], _STORED.get(one.kind))
        arrays = [pa.array(column, field.type) for column, field in zip(columns, of.state, strict=True)]
        return of.write(pa.Table.from_arrays(arrays, schema=of.state), self.complete, self._late)

    def _read(self, state: bytes) -> Iterator[tuple[tuple[Any, ...], Any, Group]]:
        """Yield the windows, keys and groups of a state."""
        of, (table, self.complete, self._late) = self._of, self._of.read(state)
        columns, keys = [column.to_pylist() for column in table.columns], len(of.keys)
        first = len(of.state) - len(of.accumulators)
        for place, one in enumerate(of.accumulators, first):
            columns[place] = _converted(columns[place], _READ.get(one.kind))
        for row in zip(*columns, strict=True):
            key = row[first - 1] if keys == 1 else row[first - keys : first]
            yield row[: first - keys], key, [*row[first:]]

    def interrupt(self) -> None:
        """A call takes microseconds, and cannot be interrupted."""

    def close(self) -> None:
        """There is nothing to release."""

    def metrics(self) -> dict[str, int | float | str]:
        """Return the number of groups (a group counts once for each pane) and of late rows."""
        groups = sum(map(len, [*self._panes.values(), *self._given.values()]))
        return {"groups": groups, "late_rows": self._late}

    def _merging(self) -> Panes:
        return Panes(self._panes, self._of.windows, self._copied, self._merge)

    def _windows(self, most: int, *, advancing: bool = False) -> Iterator[tuple[int, Groups]]:
        """Yield the open windows up to the number *most* that have groups, with these, in their order.

        When the engine is *advancing*, they are complete, and what is merged for them serves the windows that follow.
        """
        firsts, count, numbers = sorted(self._panes), self._of.windows, set[int]()
        if count == 1:
            yield from ((number, self._panes[number]) for number in firsts if number <= most)
            return
        begin = int(self.complete) + 1
        for first in firsts:
            end = min(first + count - 1, most) + 1
            numbers.update(range(max(first, begin), end))
            begin = max(begin, end)
        numbers.update(number for number in self._given if number <= most)
        follows = advancing and self._small
        merging = self._merged if follows else self._merging()
        for number in sorted(numbers):
            found = merging.window(number, firsts, alone=len(numbers) == 1 and not follows)
            if (given := self._given.get(number)) is not None:
                before = {key: self._copied(group) for key, group in given.items()}
                merging.merge(before, found)
                found = before
            yield number, found


def _converted(column: Any, call: Callable[[Any], Any] | None) -> Any:
    return column if call is None else [one if one is None else call(one) for one in column]


def ordered(groups: Groups) -> list[Any]:
    """Return the keys in their order, with missing ones at the end."""
    try:
        return sorted(groups)
    except TypeError:
        tuples = isinstance(next(iter(groups)), tuple)
        return sorted(groups, key=lambda key: [(one is None, one) for one in (key if tuples else (key,))])


def _generated(of: Aggregation, panes: dict[int, Groups], engine: RowGroups) -> _Calls:
    """Return the functions of an aggregation, compiled for its columns."""
    names = {column: f"v{place}" for place, column in enumerate(of.used)}
    listed, single = "".join(f"{name}, " for name in names.values()), len(of.keys) == 1
    keys = "".join(f"{names[one]}, " for one in of.keys)
    sums, updates = _updates(of, names)
    source = f"""
def fits({listed}):
    return {_tests(of, names)}

def add(item):
    try:
        if item.__class__ is dict:
            {"; ".join(f"{name} = item[{column!r}]" for column, name in names.items()) or "pass"}
        else:
            {listed.removesuffix(", ") if len(names) == 1 else listed or "_"} = fields(item)
        fit = {_tests(of, names)}
    except (KeyError, AttributeError):
        fit = False
    if not fit:
        {listed or "_"} = fitted(item)
    key = {keys.removesuffix(", ") if single else f"({keys})"}
    {_SESSION.format(names[of.time]) if of.gap else _PANE.format(_first(of, names), bool(of.window))}
    {sums}
    group[0] += 1
    {updates}
    {f"engine.keep(key, session, {names[of.time]})" if of.gap else ""}
    return {"()" if of.timed else "([result(0, key, group)],)"}

def copied(group):
    return [{", ".join(_copied(one).format(f"group[{place}]") for place, one in enumerate(of.accumulators))}]

def merge(group, other):
    {_merging(of)}

def result(number, key, group):
    return {{{_items(of)}}}
"""
    made: dict[str, Any] = _GLOBALS | {"engine": engine, "panes": panes}
    made |= {"moments": _moments, "deviation": _deviation, "percentile": _percentile}
    made |= {"fields": attrgetter(*of.used) if of.used else as_row}
    exec(compile(parsed(source), "<aggregate>", "exec"), made)
    made["fitted"] = _Fitted(of, made["fits"])
    return _Calls(*map(made.__getitem__, _Calls._fields))


def _first(of: Aggregation, names: dict[str, str]) -> str:
    """The text of the number of the first window of an item."""
    if not of.window:
        return "0"
    time = names[of.time]
    if of.columns.field(of.time).type == pa.float32():
        time = f"({time} := c_float({time}).value)"
    time = f"({time} - {of.offset!r})" if of.offset else time
    return f"{time} // {of.slide!r} + 1" if of.exact else f"floor({time} / {of.slide!r}) + 1"


def _tests(of: Aggregation, names: dict[str, str]) -> str:
    """The text of the test whether all values of an item are of the types of their columns."""
    tests = []
    for column, name in names.items():
        test = _TESTS.get(of.columns.field(column).type, "False").format(name)
        limits = f"{test} and {-of.limit!r} <= {name} <= {of.limit!r}"
        tests.append(limits if of.timed and column == of.time else f"({name} is None or {test})")
    return " and ".join(tests) or "True"


def _updates(of: Aggregation, names: dict[str, str]) -> tuple[str, str]:
    """The texts that accumulate the values: the sums that may fail, and all others."""
    sums, updates = list[str](), dict[str, list[str]]()
    for place, one in enumerate(of.accumulators[1:], 1):
        value, held = names[one.column], f"group[{place}]"
        if of.columns.field(one.column).type == pa.float32():
            updates.setdefault(value, [f"{value} = c_float({value}).value"])
        if one.kind == "n":
            updates.setdefault(value, []).append(f"{held} += 1")
        elif one.kind == "sum" and pa.types.is_integer(one.type):
            total = f"{value} if (held := {held}) is None else held if {value} is None else held + {value}"
            sums.append(f"s{place} = {total}")
            sums.append(
                f"if s{place} is not None and not -engine.limit <= s{place} <= engine.limit: "
                f"s{place} = engine.checked(first, key, {place}, s{place})"
            )
            updates.setdefault(value, []).append(f"{held} = s{place}")
        else:
            single = _SINGLE.get(one.kind, "{0}").format(value, names[of.time] if of.timed else "0")
            further = _IN_PLACE.get(one.kind) or f"{{0}} = {_added(one, 'held', single)}"
            lines = [f"if (held := {held}) is None: {held} = {single}", f"else: {further.format(held, value)}"]
            updates.setdefault(value, []).extend(lines)
    blocks = ("\n        ".join([f"if {value} is not None:", *each]) for value, each in updates.items())
    return "\n    ".join(sums), "\n    ".join(blocks)


def _copied(one: Accumulator) -> str:
    """The text that copies an accumulator {0}."""
    return f"{_COPIED[one.kind]} if {{0}} is not None else None" if one.kind in _COPIED else "{0}"


def _merging(of: Aggregation) -> str:
    """The text that merges the accumulators of a group."""
    lines = list[str]()
    for place, one in enumerate(of.accumulators):
        held, alone = f"group[{place}]", _COPIED.get(one.kind, "{0}").format("more")
        both = _MERGED.get(one.kind, "") or f"{held} = {_added(one, 'held', 'more')}"
        lines += [f"if (more := other[{place}]) is not None:", f"    if (held := {held}) is None: {held} = {alone}"]
        lines += [f"    else: {both.format('held', 'more')}"]
    return "\n    ".join(lines)


def _added(one: Accumulator, held: str, value: str) -> str:
    kind = f"{one.kind} float" if pa.types.is_floating(one.type) else one.kind
    return f"({_ADDED.get(kind, _ADDED[one.kind]).format(held, value)})"


def _items(of: Aggregation) -> str:
    """The text of the items of the dictionary that is a result."""
    end = f"number * {of.slide!r} + {of.offset!r}" if of.offset else f"number * {of.slide!r}"
    end = "number" if of.gap else end
    places = {one.name: f"group[{place}]" for place, one in enumerate(of.accumulators)}
    items = [f"{of.time!r}: {end}"] if of.timed else []
    items += [f"{one!r}: key{f'[{place}]' * (len(of.keys) > 1)}" for place, one in enumerate(of.keys)]
    for name, (function, column) in of.values.items():
        number, (call, _, percent) = places.get(f"n:{column}", ""), function.partition(" ")
        kind = {"count": "n", "avg": "sum", "stddev": "moments", "collect": "list", "percentile": "list"}.get(
            call, call
        )
        held = places[f"{kind}:{column}"]
        value = _VALUES.get(call, "").format(held)
        if call == "avg":
            value = f"float({held}) / {number} if {number} else None"
        elif call == "percentile":
            value = f"None if {held} is None else percentile({held}, {float(percent)!r})"
        elif value:
            value = f"{_NOTHING.get(call)} if {held} is None else {value}"
        items.append(f"{name!r}: {value or held}")
    return ", ".join(items)


class _Fitted:
    """The values of an item that are not of the types of their columns; Arrow converts them, or refuses.

    Usual ones take a tenth of the time that Arrow takes for a row: whole numbers among floating-point ones, numbers of
    NumPy, members of enumerations, times of other zones.
    """

    def __init__(self, of: Aggregation, fits: Callable[..., bool]) -> None:
        self._of, self._fits = of, fits
        self._columns = PortType(Any, "columns", pa.schema([of.columns.field(name) for name in of.used]))
        #: By column, and the class of a value that occurred there, how it is converted; `None`: it is not.
        self._known = [(field.name, field.type, dict[type, _Conversion | None]()) for field in self._columns.schema]

    def __call__(self, item: Any) -> list[Any]:
        row, values = as_row(item), list[Any]()
        for name, kind, known in self._known:
            if (value := row.get(name, _MISSING)).__class__ not in known:
                known[value.__class__] = _conversion(kind, value.__class__)
            values.append(value if (convert := known[value.__class__]) is None else convert(value))
        if self._fits(*values):
            return values
        batch = to_columns([row], self._columns)
        if self._of.timed:
            self._of.check_times(batch)
        return [column[0].as_py() for column in batch.columns]


def _conversion(kind: pa.DataType, cls: type) -> _Conversion | None:
    """Return how values of a class become those of a column, as Arrow would convert them; what it refuses is kept."""
    numpy = cls.__module__ == "numpy" and issubclass(cls, Real) and cls.__name__ != "timedelta64"
    if numpy and (plain := type(cls(0).item())) is not cls:
        further = _conversion(kind, plain)
        return lambda one: one.item() if further is None else further(one.item())
    if issubclass(cls, (int, float)) and not issubclass(cls, bool):
        if pa.types.is_floating(kind):
            most = 1 << (24 if kind == pa.float32() else 53)  # the integers up to it have a float each
            return float if issubclass(cls, float) else lambda one: float(one) if -most <= one <= most else one
        if pa.types.is_integer(kind):
            return int if issubclass(cls, int) else lambda one: int(one) if one.is_integer() else one
    if kind == pa.string() and issubclass(cls, str):
        return str.__str__
    if kind == pa.timestamp("us", "UTC") and cls is datetime:
        return lambda one: one.replace(tzinfo=UTC) if one.tzinfo is None else one.astimezone(UTC)
    return None
