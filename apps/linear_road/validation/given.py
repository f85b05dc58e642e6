"""The answers that a system has given, read from its output and looked up by the question they answer."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple, TypeAlias

from apps.linear_road.validation.reading import text_lines
from apps.linear_road.validation.values import AccidentAlert, Answer, Balance, TollNotice

#: The key of a question: the type of its answer, then the fields that identify the question.
Key: TypeAlias = tuple[int, ...]

FORMS = {
    0: "0,VID,Time,Emit,LAV,Toll",
    1: "1,Time,Emit,XWay,Seg,Dir,VID",
    2: "2,Time,Emit,ResultTime,QID,Bal",
    3: "3,Time,Emit,QID,Bal",
}
#: The fields that tell the question, in the order of the key.
KEYS = {0: ("VID", "Time"), 1: ("Time", "XWay", "Seg", "Dir", "VID"), 2: ("QID",), 3: ("QID",)}


class Given(NamedTuple):
    """One line of the output: where it stood, when it was asked and emitted, and the values that must be right."""

    line: int
    time: int
    emit: float
    values: tuple[float, ...]


class GivenAnswers:
    """All answers of an output; each is taken once, and what is left at the end was never asked for."""

    def __init__(self) -> None:
        self._open: dict[Key, list[Given]] = {}
        self._taken: set[Key] = set()
        #: "line 7: 0,1,2" of every line that is no answer
        self.unreadable: list[str] = []

    @classmethod
    def read(cls, path: Path, until: int | None) -> GivenAnswers:
        """Read an output; answers to questions after second *until* are left out."""
        given = cls()
        for number, text in text_lines(path):
            if not text.strip():
                continue
            try:
                key, answer = _parse(number, text)
            except (ValueError, IndexError):
                given.unreadable.append(f"line {number}: {text.strip()[:80]!r}")
                continue
            if until is None or answer.time <= until:
                given._open.setdefault(key, []).append(answer)
        return given

    def take(self, answer: Answer, right: Callable[[Given], bool]) -> Given | None:
        """Take the line that answers as *answer* does: a right one if there is one, else the first."""
        key = key_of(answer)
        lines = self._open.get(key)
        if not lines:
            return None
        self._taken.add(key)
        chosen = next((line for line in lines if right(line)), lines[0])
        lines.remove(chosen)
        if not lines:
            del self._open[key]
        return chosen

    def left(self) -> Iterator[tuple[Key, Given, bool]]:
        """Yield the answers that remain: question, line, and whether another line has answered the question."""
        for key, lines in self._open.items():
            for line in lines:
                yield key, line, key in self._taken


def described(key: Key) -> str:
    """A question in words."""
    return ", ".join(f"{name} {value}" for name, value in zip(KEYS[key[0]], key[1:], strict=True))


def key_of(answer: Answer) -> Key:
    """The question that *answer* answers."""
    if isinstance(answer, TollNotice):
        return (0, answer.vid, answer.time)
    if isinstance(answer, AccidentAlert):
        return (1, answer.time, answer.xway, answer.number, answer.direction, answer.vid)
    return (2 if isinstance(answer, Balance) else 3, answer.qid)


def _parse(line: int, text: str) -> tuple[Key, Given]:
    fields = text.split(",")
    kind = int(fields[0])
    if kind not in FORMS or len(fields) != FORMS[kind].count(",") + 1:
        raise ValueError(text)
    if kind == 0:
        vid, time = int(fields[1]), int(fields[2])
        return (0, vid, time), Given(line, time, _emit(fields[3]), (_finite(fields[4]), _finite(fields[5])))
    time, emit = int(fields[1]), _emit(fields[2])
    if kind == 1:
        return (1, time, *map(int, fields[3:])), Given(line, time, emit, ())
    # types 2 and 3 end with the question and the amount
    values = tuple(_finite(field) for field in (*fields[3:-2], fields[-1]))
    return (kind, int(fields[-2])), Given(line, time, emit, values)


def _emit(field: str) -> float:
    """A system that does not measure leaves the field empty: told later as an answer before its question."""
    return _finite(field) if field.strip() else -1.0


def _finite(field: str) -> float:
    value = float(field)
    if not math.isfinite(value):
        raise ValueError(field)
    return value
