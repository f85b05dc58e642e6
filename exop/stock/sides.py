"""Parts of operators with several inputs: readers of keys and times, and the progress of the inputs."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import field
from typing import Any, Final

from exop.errors import SettingError, suggest
from exop.model.items import EndOfStream, Punctuation
from exop.model.slets.memento import Memento
from exop.model.slets.ports import PortType
from exop.runtime.channels.base import ControlMerge
from exop.runtime.channels.partitioned import key_reader, time_reader

#: Floats have gaps from here on; the time after an integer is the next integer.
_EXACT: Final = 2**53


class Progress(Memento):
    """The progress of the sides of an operator.

    `complete` is the time through which each side is complete, `said` the minimum of these, `emitted` the time of the
    last emitted punctuation, and `merged` the state of the merge of punctuations.
    """

    complete: dict[str, int | float] = field(default_factory=dict)
    said: float = -math.inf
    emitted: float = -math.inf
    merged: dict[str, Any] = field(default_factory=dict)


class Merge:
    """Notes the punctuations of the sides in a memento, and decides which ones may be emitted."""

    def __init__(self, progress: Progress, sides: Iterable[str]) -> None:
        self._progress, self._sides, self._merge = progress, tuple(sides), ControlMerge()
        self._merge.expect(self._sides)
        if progress.merged:
            self._merge.restore(progress.merged)

    def note(self, side: str, mark: Punctuation | EndOfStream) -> list[Punctuation]:
        """Note the time through which a side is complete; return the punctuations that are due."""
        progress = self._progress
        due = [one for one in self._merge.on(side, mark) if isinstance(one, Punctuation)]
        progress.merged = self._merge.capture()
        progress.said = said = max([progress.said, *(one.time for one in due)])
        time = math.inf if isinstance(mark, EndOfStream) else mark.time
        complete = progress.complete | {side: max(time, progress.complete.get(side, time))}
        # An idle side does not hold up the others: its items through `said` are late.
        progress.complete = {name: max(complete.get(name, said), said) for name in self._sides}
        return due

    def allowed(self, due: list[Punctuation], first: float) -> list[Punctuation]:
        """Return the punctuations to emit if the earliest result that is still to come has the time *first*."""
        found = []
        for one in due:
            possible = one if one.time < first else Punctuation.before(first, one.idle)
            if possible.time > self._progress.emitted:
                self._progress.emitted = possible.time
                found.append(possible)
        return found


def following(time: float) -> float:
    """Return the earliest time that an item can have after a punctuation of this time."""
    return int(time) + 1 if _EXACT <= abs(time) < math.inf else math.nextafter(time, math.inf)


def fields_of(by: str | list[str]) -> tuple[str, ...]:
    """Return the names in the setting `by`."""
    return (by,) if isinstance(by, str) else tuple(by)


def item_reader(by: str | list[str], time: str, renamed: Mapping[str, str]) -> Callable[[Any], tuple[Any, float]]:
    """Return the function that reads the key and the time of an item; NaN equals itself, in keys."""
    name = renamed.get(time, time)
    read = key_reader([*(renamed.get(one, one) for one in fields_of(by)), name])
    checked = time_reader(name)

    def one(item: Any) -> tuple[Any, float]:
        key, moment = read(item)
        if moment.__class__ is not int and not (moment.__class__ is float and -math.inf < moment < math.inf):
            moment = checked(item)
        return (key if key == key else math.nan), moment

    def several(item: Any) -> tuple[Any, float]:
        *keys, moment = read(item)
        if moment.__class__ is not int and not (moment.__class__ is float and -math.inf < moment < math.inf):
            moment = checked(item)
        return tuple([key if key == key else math.nan for key in keys]), moment

    return one if isinstance(by, str) else several


def wrong(setting: str, problem: str) -> SettingError:
    """Return the error for a setting of the slet that is being specialised."""
    return SettingError(place="", setting=setting, problem=problem)


def check_fields(settings: Mapping[str, Any], sides: Mapping[str, PortType]) -> None:
    """Refuse names that do not fit, and fields that a side lacks."""
    by, time, on = fields_of(settings["by"]), settings["time"], settings["on"]
    for side, others in on.items():
        if sides and side not in sides:
            raise wrong("on", f"there is no side {side!r}; {suggest(side, sides)}")
        for name in others:
            if name not in (*by, time):
                raise wrong("on", f"{name!r} is no field of `by` or `time`; {suggest(name, (*by, time))}")
    for side, carried in sides.items():
        if side in (*by, time):
            problem = f"the side {side!r} has the name of a field of the result; connect it under another name"
            raise wrong("time" if side == time else "by", problem)
        others = on.get(side, {})
        for setting, name in (*(("by", name) for name in by), ("time", time)):
            carried.check_field("", setting, others.get(name, name))
