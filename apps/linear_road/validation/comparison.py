"""Compares what a system answered with what the reference answers: both ways, every value, every response time."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction

from apps.linear_road.validation.given import Given, GivenAnswers, described, key_of
from apps.linear_road.validation.values import AccidentAlert, Answer, Balance, Expenditure, TollNotice
from apps.linear_road.validation.verdict import Verdict

#: Seconds from a question to its answer (section 5).
LIMITS = {0: 5.0, 1: 5.0, 2: 5.0, 3: 10.0}


@dataclass(frozen=True, slots=True)
class Tolerance:
    """The permitted differences of an output; a toll must always be the very number."""

    lav: Fraction = Fraction(1)
    strict_balance: bool = False


class Comparison:
    """Judges a given output, answer by answer."""

    def __init__(self, given: GivenAnswers, verdict: Verdict, tolerance: Tolerance) -> None:
        self._given = given
        self._verdict = verdict
        self._tolerance = tolerance
        verdict.unreadable = given.unreadable

    def compare(self, expected: Iterable[Answer]) -> None:
        """Look for every expected answer, then report every answer that was not expected."""
        for answer in expected:
            self._judge(answer)
        for key, line, answered in self._given.left():
            what = "repeated" if answered else "extra"
            self._verdict.types[key[0]].note(what, f"line {line.line}: {described(key)}")

    def _judge(self, answer: Answer) -> None:
        kind = key_of(answer)[0]
        verdict = self._verdict.types[kind]
        verdict.counts["expected"] += 1
        given = self._given.take(answer, lambda line: self._problem(answer, line) is None)
        if given is None:
            if isinstance(answer, Expenditure) and not answer.known:
                verdict.note("optional, not answered")  # rule 12
            else:
                verdict.note("missing", str(answer))
            return
        self._time(kind, given, answer)
        problem = self._problem(answer, given)
        if problem is not None:
            verdict.note("wrong", f"line {given.line}: {problem}; expected: {answer}")
            return
        verdict.counts["right"] += 1
        if isinstance(answer, Balance):
            self._note_age(answer, given)

    def _time(self, kind: int, given: Given, answer: Answer) -> None:
        verdict, delay = self._verdict.types[kind], given.emit - answer.time
        if delay < 0:
            told = f"emitted at {given.emit:g}" if given.emit >= 0 else "without a time of emission"
            verdict.note("before its question", f"line {given.line}: {told}; {answer}")
            return
        verdict.delays.append(delay)
        if delay > LIMITS[kind]:
            verdict.note("late", f"line {given.line}: {delay:.3f} s after its question; {answer}")

    def _problem(self, answer: Answer, given: Given) -> str | None:
        """Say what is wrong with the values of *given*; None: they are right."""
        if isinstance(answer, AccidentAlert):
            return None  # all its values are in its key
        if isinstance(answer, TollNotice):
            return self._toll_problem(answer, given)
        if given.time != answer.time:
            return f"the question came at {answer.time}, not at {given.time}"
        amount = given.values[-1]
        older = isinstance(answer, Balance) and not self._tolerance.strict_balance and amount in answer.accepted
        return None if amount == answer.amount or older else f"amount {amount:g}"

    def _toll_problem(self, answer: TollNotice, given: Given) -> str | None:
        lav, toll = given.values
        if toll != answer.toll:
            return f"toll {toll:g}"
        if answer.lav is None:  # rule 9
            return None if lav in (0, -1) else f"LAV {lav:g}, but there is none yet: 0 or -1"
        return None if abs(Fraction(lav) - answer.lav) <= self._tolerance.lav else f"LAV {lav:g}"

    def _note_age(self, answer: Balance, given: Given) -> None:
        """Rule 11 lets a system name an earlier moment; that it did so is worth knowing, but no mistake."""
        if given.values[-1] != answer.amount:
            self._verdict.types[2].note("right, but an older balance")
        if not answer.time - 60 <= given.values[0] <= answer.time:
            self._verdict.types[2].note("ResultTime not in the last 60 s")
