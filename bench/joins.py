"""Joins of the base library, beside the same slets by hand; a part of `bench library`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from bench.harness import Result, Side, compare, timed
from exop import EndOfStream, Memento, OutputPort, Punctuation, Slet, input_port
from exop.stock.asof import Asof
from exop.stock.joins import Join
from exop.testing import open as open_slet

BY_HAND: Final = "the same slet by hand"


@dataclass
class Passing:
    """An item of a join."""

    vid: int
    time: int


class Lists(Memento):
    """The items of both sides by key, and the times through which they are complete."""

    sides: dict[str, dict[int, list[Passing]]] = field(default_factory=lambda: {"cars": {}, "tolls": {}})
    complete: dict[str, float] = field(default_factory=lambda: {"cars": -1.0, "tolls": -1.0})


class JoinByHand(Slet, name="join_by_hand"):
    """The join of cars and tolls of one vehicle, at most ten apart."""

    lists: Lists
    late: OutputPort[Passing]

    @input_port
    def sides(self, side: str, item: Passing | Punctuation | EndOfStream) -> list[Any]:
        """Take one item of one side."""
        lists = self.lists
        if isinstance(item, Punctuation):
            before = min(lists.complete.values())
            lists.complete[side] = item.time
            complete = min(lists.complete.values())
            for name, kept in lists.sides.items():
                swept = {key: [one for one in items if one.time > complete - 10] for key, items in kept.items()}
                lists.sides[name] = {key: items for key, items in swept.items() if items}
            return [Punctuation(complete)] if complete > before else []
        if isinstance(item, EndOfStream):
            return []
        if item.time <= lists.complete[side]:
            self.late.push(item)
            return []
        other = "tolls" if side == "cars" else "cars"
        rows: list[Any] = [
            {"vid": item.vid, "time": max(item.time, one.time), side: item, other: one}
            for one in lists.sides[other].get(item.vid, ())
            if abs(one.time - item.time) <= 10
        ]
        lists.sides[side].setdefault(item.vid, []).append(item)
        return rows


def joins(rounds: int) -> Iterator[Result]:
    """Measure a join of two streams, with a punctuation of each after a hundred items: ns per item."""
    settings = {"by": "vid", "time": "time", "within": 10}
    for keys in (100, 4):
        floor, candidate = joined(JoinByHand, keys), joined(Join, keys, **settings)
        name_of = f"library/join/{keys}"
        yield compare(name_of, "ns", floor=floor, candidate=candidate, against=BY_HAND, rounds=rounds)
    floor, candidate = joined(AsofByHand, 100), joined(Asof, 100, by="vid", time="time")
    yield compare("library/asof/100", "ns", floor=floor, candidate=candidate, against=BY_HAND, rounds=rounds)


class AsofByHand(Slet, name="asof_by_hand"):
    """The join of a car with the latest toll of its vehicle."""

    lists: Lists
    late: OutputPort[Passing]

    @input_port
    def left(self, item: Passing | Punctuation | EndOfStream) -> list[Any]:
        """Take one car."""
        lists = self.lists
        if isinstance(item, Passing):
            if item.time <= lists.complete["cars"]:
                self.late.push(item)
            else:
                lists.sides["cars"].setdefault(0, []).append(item)
            return []
        return self._completed("cars", item)

    @input_port
    def right(self, item: Passing | Punctuation | EndOfStream) -> list[Any]:
        """Take one toll."""
        lists = self.lists
        if isinstance(item, Passing):
            if item.time <= lists.complete["tolls"]:
                self.late.push(item)
            else:
                lists.sides["tolls"].setdefault(item.vid, []).append(item)
            return []
        return self._completed("tolls", item)

    def _completed(self, side: str, mark: Punctuation | EndOfStream) -> list[Any]:
        lists, rows = self.lists, []
        if isinstance(mark, EndOfStream):
            return []
        before = min(lists.complete.values())
        lists.complete[side] = mark.time
        cars = sorted(lists.sides["cars"].get(0, []), key=lambda one: one.time)
        for car in cars:
            if car.time <= lists.complete["tolls"]:
                tolls = [one for one in lists.sides["tolls"].get(car.vid, ()) if one.time <= car.time]
                toll = max(tolls, key=lambda one: one.time) if tolls else None
                rows.append({"vid": car.vid, "time": car.time, "left": car, "right": toll})
        lists.sides["cars"][0] = [car for car in cars if car.time > lists.complete["tolls"]]
        complete = min(lists.complete.values())
        for key, kept in lists.sides["tolls"].items():
            old = [one for one in kept if one.time <= complete]
            lists.sides["tolls"][key] = old[-1:] + [one for one in kept if one.time > complete]
        return [*rows, Punctuation(complete)] if complete > before else rows


def joined(slet: Any, keys: int, **settings: Any) -> Side:
    """Push items of both sides into a join."""
    time, ports = 0, {} if "left" in vars(slet) else {"sides": ["cars", "tolls"]}

    def block(number: int) -> None:
        nonlocal time
        with open_slet(slet, **ports, **settings) as join:
            pushes = [partial(join.sides, "cars"), partial(join.sides, "tolls")] if ports else [join.left, join.right]
            for _ in range(number):
                time += 1
                for push in pushes:
                    push(Passing(time % keys, time))
                    if time % 100 == 0:
                        push(Punctuation(time - 5))

    return timed(block, unit="ns")
