"""A driver follows the wiring: what it keeps at hand for speed is read again after it was parked."""

from collections.abc import Iterator
from threading import Event
from typing import Any

from exop.runtime.drivers.base import FIRST
from exop.runtime.drivers.source import SourceDriver
from exop.runtime.entry import Entry

#: Longest wait for another thread, in seconds.
PATIENCE = 60.0


def _into(found: list[Any]) -> Entry:
    return Entry(found.append, found.extend, found.append)


def test_a_source_that_was_inside_its_slet_while_the_wiring_changed_goes_the_new_way() -> None:
    """Closed and opened again within one `next()`, a source pushes the item of it by the way there is then."""
    waiting, go_on = Event(), Event()
    before: list[Any] = []
    after: list[Any] = []

    def items() -> Iterator[int]:
        yield from range(FIRST + 1)
        waiting.set()
        assert go_on.wait(PATIENCE)
        yield from (101, 102)

    driver = SourceDriver("source", items, broken=lambda error: False, finish=lambda: None)
    driver.entry = _into(before)
    driver.start()
    assert waiting.wait(PATIENCE)
    driver.close()
    assert driver.wait_parked(PATIENCE)
    driver.entry = _into(after)
    driver.open()
    go_on.set()
    assert driver.join(PATIENCE)
    assert (before, after) == (list(range(FIRST + 1)), [101, 102])
