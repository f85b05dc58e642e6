"""The native slets in a plain loop, without a platform: the floor that the platform's overhead is measured against.

    python -m apps.linear_road.plain INPUT HISTORY OUTPUT [SPEED]

The same functions and methods are called in the same order as the mesh of the builder connects them.
"""

import sys
import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from exop import OutputPort, Punctuation

from .accidents import Standing, accidents
from .accounts import Balance, DailyExpenditure, Ledger
from .answers import Answers, Written
from .entries import Whereabouts, entries
from .notifications import AccidentNotification, Owed, TollNotification, Warned
from .positions import positions
from .statistics import Minutes, statistics
from .tolls import Figures, Tolls
from .traffic import Position, Traffic
from .trips import Phases, Trips


class Straight(OutputPort[Any]):
    """An output port that is a call."""

    def __init__(self, target: Callable[[Any], object]) -> None:
        self._target = target

    def push(self, item: Any) -> None:
        """Call the target."""
        self._target(item)

    def push_batch(self, batch: Any) -> None:
        """Call the target."""
        self._target(batch)

    def end(self) -> None:
        """There is nobody to tell."""

    def fail(self, error: BaseException) -> None:
        """There is nobody to tell."""
        raise error


class Loop:
    """All native slets of the application, each called with what the ones before it gave."""

    def __init__(self, history: Path, output: Path) -> None:
        self.trips = Trips(phases=Phases()).tuples
        self.standing, self.minutes, self.whereabouts = Standing(), Minutes(), Whereabouts()
        self.tolls = Tolls(figures=Figures())
        self.toll_notification = TollNotification(owed=Owed(), charges=Straight(self._charges))
        self.accident_notification = AccidentNotification(warned=Warned())
        self.balance = Balance(ledger=Ledger())
        self.expenditure = DailyExpenditure(history=history)
        self.answers = Answers(output=output, written=Written())

    def run(self, source: Traffic) -> None:
        """Pass everything that *source* releases through the slets, until it ends."""
        with ExitStack() as stack:
            for opened in (source, self.expenditure, self.answers):
                stack.enter_context(opened)
            for item in source:
                if isinstance(item, Punctuation):
                    self._complete(item)
                elif item is not None:
                    self._batch(item)

    def _batch(self, batch: Any) -> None:
        tuples = self.trips(batch)
        if tuples is None:
            return
        reports = positions(tuples)
        if reports is not None:
            self._accidents(accidents(reports, self.standing))
            self._statistics(statistics(reports, self.minutes))
            entered = entries(reports, self.whereabouts)
            if entered is not None:
                self._alerts(self.accident_notification.entries(entered))
                self._told(self.toll_notification.entries(entered))
        for balances in self.balance.questions(tuples):
            self.answers.balances(balances)
        expenditures = self.expenditure.questions(tuples)
        if expenditures is not None:
            self.answers.expenditures(expenditures)

    def _complete(self, second: Punctuation) -> None:
        self._accidents(accidents(second, self.standing))
        self._statistics(statistics(second, self.minutes))
        self._alerts(self.accident_notification.entries(second))
        self._told(self.toll_notification.entries(second))
        for balances in self.balance.questions(second):
            self.answers.balances(balances)

    def _accidents(self, events: Iterable[Any]) -> None:
        for event in events:
            self._alerts(self.accident_notification.accidents(event))
            self._tariffs(self.tolls.accidents(event))

    def _statistics(self, rows: Iterable[Any]) -> None:
        for row in rows:
            self._tariffs(self.tolls.statistics(row))

    def _tariffs(self, tariffs: Iterable[Any]) -> None:
        for tariff in tariffs:
            self._told(self.toll_notification.tariffs(tariff))

    def _told(self, notices: Iterable[Any]) -> None:
        for notice in notices:
            self.answers.tolls(notice)

    def _alerts(self, alerts: Iterable[Any]) -> None:
        for alert in alerts:
            self.answers.alerts(alert)

    def _charges(self, charges: Any) -> None:
        for balances in self.balance.charges(charges):
            self.answers.balances(balances)


def run(
    source: Path, history: Path, output: Path, speed: float = 1e9, batch: int = 16_384
) -> dict[str, int | float | str]:
    """Run a whole file through the slets, in batches of at most so many rows or one second.

    Returns:
        The figures of the source and of the sink.
    """
    loop = Loop(history, output)
    traffic = Traffic(input=source, speed=speed, batch=batch, position=Position(), clock=Straight(loop.answers.clock))
    loop.run(traffic)
    return traffic.metrics() | loop.answers.metrics()


def main(arguments: list[str]) -> None:
    """Run the module's command."""
    started, used = time.perf_counter(), time.process_time()
    source, history, output, *speed = arguments
    figures = run(Path(source), Path(history), Path(output), speed=float(speed[0]) if speed else 1e9)
    for name, figure in figures.items():
        print(f"{name:16} {figure}")
    print(f"{time.perf_counter() - started:.2f} s, {time.process_time() - used:.2f} s of CPU")


if __name__ == "__main__":
    main(sys.argv[1:])
