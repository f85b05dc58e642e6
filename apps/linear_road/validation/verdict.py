"""The outcome of a validation: counts and first examples per type and kind of mistake, and the response times."""

from __future__ import annotations

from array import array
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

#: The kinds of wrong answers and of failed outputs, in the order in which they are reported.
WRONG = ("missing", "extra", "repeated", "wrong", "before its question")
MISTAKES = (*WRONG[:-1], "late", WRONG[-1])
NAMES = {0: "toll notices", 1: "accident alerts", 2: "balances", 3: "expenditures"}


def quantile(ordered: list[float], share: float) -> float:
    """The value that *share* of the sorted values do not exceed."""
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


@dataclass(slots=True)
class TypeVerdict:
    """The findings about the answers of one type."""

    show: int
    counts: Counter[str] = field(default_factory=Counter)
    examples: dict[str, list[str]] = field(default_factory=dict)
    delays: array[float] = field(default_factory=lambda: array("d"))

    def note(self, what: str, example: str = "") -> None:
        """Count one more of *what*, and keep the first examples."""
        self.counts[what] += 1
        if example and len(self.examples.setdefault(what, [])) < self.show:
            self.examples[what].append(example)

    @property
    def passed(self) -> bool:
        """Whether nothing is wrong with this type, and nothing late."""
        return not any(self.counts[mistake] for mistake in MISTAKES)

    @property
    def right(self) -> bool:
        """Whether nothing is wrong with this type; answers may be late."""
        return not any(self.counts[mistake] for mistake in WRONG)

    def response(self) -> dict[str, float] | None:
        """Median, 99th percentile and maximum of the response times in seconds."""
        if not self.delays:
            return None
        ordered = sorted(self.delays)
        return {"median": quantile(ordered, 0.5), "p99": quantile(ordered, 0.99), "max": ordered[-1]}

    def facts(self) -> dict[str, Any]:
        """The same as plain values."""
        return {"passed": self.passed, **self.counts, "response": self.response(), "examples": self.examples}


@dataclass(slots=True)
class Verdict:
    """The findings about a whole output."""

    show: int
    types: dict[int, TypeVerdict] = field(default_factory=dict)
    unreadable: list[str] = field(default_factory=list)
    rows: int = 0
    rejected: int = 0
    rejected_examples: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.types = {kind: TypeVerdict(self.show) for kind in NAMES}

    @property
    def passed(self) -> bool:
        """Every answer is there, once, right and in time."""
        return not self.unreadable and all(verdict.passed for verdict in self.types.values())

    @property
    def right(self) -> bool:
        """Every answer is there, once and right; it may be late."""
        return not self.unreadable and all(verdict.right for verdict in self.types.values())

    @property
    def late(self) -> int:
        """The number of answers that came later than their limit."""
        return sum(verdict.counts["late"] for verdict in self.types.values())

    @property
    def exit_code(self) -> int:
        """0: all is right; 1: something is not; 2: lines of the output could not be read."""
        return 2 if self.unreadable else int(not self.passed)

    def facts(self) -> dict[str, Any]:
        """The whole verdict as plain values, for `--json`."""
        return {
            "passed": self.passed,
            "right": self.right,
            "late": self.late,
            "input": {"rows": self.rows, "rejected": self.rejected, "examples": self.rejected_examples},
            "unreadable": {"count": len(self.unreadable), "examples": self.unreadable[: self.show]},
            "types": {str(kind): verdict.facts() for kind, verdict in self.types.items()},
        }

    def text(self) -> str:
        """The whole verdict for a person."""
        lines = [f"input: {self.rows} tuples, {self.rejected} malformed lines ignored"]
        lines += [f"    {example}" for example in self.rejected_examples]
        for kind, verdict in self.types.items():
            lines += _type_text(f"type {kind}, {NAMES[kind]}", verdict)
        if self.unreadable:
            lines.append(f"output: {len(self.unreadable)} lines are no answers")
            lines += [f"    {example}" for example in self.unreadable[: self.show]]
        return "\n".join([*lines, f"VERDICT: {self._line()}"])

    def _line(self) -> str:
        if self.passed:
            return "every answer is there, once, right and in time"
        if self.right:
            answered = sum(len(verdict.delays) for verdict in self.types.values())
            return f"every answer is there, once and right; {self.late:,} of {answered:,} are late"
        return "differences"


def _type_text(title: str, verdict: TypeVerdict) -> list[str]:
    lines = [f"{title}: {'pass' if verdict.passed else 'late' if verdict.right else 'FAIL'}"]
    for what, number in verdict.counts.items():
        lines.append(f"    {what:24} {number}")
        lines += [f"        {example}" for example in verdict.examples.get(what, [])]
    if (response := verdict.response()) is not None:
        lines.append("    response time in s       " + "  ".join(f"{name} {at:.3f}" for name, at in response.items()))
    return lines
