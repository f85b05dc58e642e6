"""What the tests of the operators share: an operator that is changed while rows flow."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from exop import Application, Platform, Punctuation, slet
from exop.model.meshes.mesh import Mesh
from tests.change.tools import PACE, Position, end, grows
from tests.rig import collector


@slet
def endless_rows(position: Position) -> Iterator[dict[str, int | str]]:
    """Emit rows with a number, a group and a time that jumps back at times, in bursts, until it is told to end."""
    while True:
        number = position.number = position.number + 1
        name, time = f"row {number} of group", number // 3 + number * 11 % 4
        yield {"name": name, "n": number, "group": number * 7 % 5, "time": time}
        if number % 300 == 0:
            PACE.wait(0.005)


def changed_under_load(operator: Any, *changes: Callable[[Mesh], Mesh], timed: bool = False, **settings: Any) -> Any:
    """Make the *changes* to the node `x`, which processes endless rows; return the rows, and what the slet emits.

    With *timed*, a watermark is in front, and the rows are those behind it, with the punctuations.
    """
    rows: list[Any] = []
    seen: list[Any] = []
    app = Application("changing")
    source = app.add("source", endless_rows, out=app.channel("rows", kind="queue"))
    if timed:
        source = app.add("marks", "stock:watermark", item=source, time="time", delay=4)
    app.add("all", collector(rows), item=source)
    app.add("seen", collector(seen), item=app.add("x", operator, item=source, **settings))
    with Platform() as platform:
        platform.apply(app.build())
        for change in changes:
            grows(seen)
            platform.apply(change(platform.mesh("changing")))
        grows(seen)
        end(platform, "changing")
    return rows, seen


def items_between(left: Iterable[Any], complete: float, time: str = "time") -> tuple[list[Any], float]:
    """The items of what has left, and the time of the last punctuation; no item leaves behind one that excludes it."""
    found = []
    for one in left:
        if isinstance(one, Punctuation):
            assert one.time > complete
            complete = one.time
        else:
            assert one[time] > complete
            found.append(one)
    return found, complete
