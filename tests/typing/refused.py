"""A user's mistakes that a type checker finds before anything runs; each line that it must refuse says so."""

from __future__ import annotations

from dataclasses import field

from exop import Memento, OutputPort, Slet, input_port, slet


class Speeds(Memento):
    """A state."""

    count: int = 0
    seen: list[int] = field(default_factory=list)


@slet
def average(report: int, speeds: Speeds, *, window: int = 10) -> float:
    """A slet."""
    return report / window


class Match(Slet):
    """A slet."""

    refused: OutputPort[int]
    depth: int = 10

    @input_port
    def bid(self, order: int) -> int:
        """A bid."""
        self.refused.push("text")  # refused
        return order


average("text", Speeds())  # refused
average(1, Speeds(), 5)  # refused
average(1, Speeds(), windw=5)  # refused
Speeds(count="text")  # refused
Speeds(5)  # refused
Speeds(coutn=5)  # refused
Speeds().cuont = 5  # refused


@slet(on_error="ignore")  # refused
def other(report: int) -> int:
    """A slet."""
    return report
