"""A durable application with the sink of a page of the documentation; `python -m tests.recovery.page_app FOLDER`."""

from __future__ import annotations

import sys
import threading
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from exop import Application, Memento, Platform, Punctuation, Slet, hookimpl, input_port, slet
from exop.stock.sources import Position
from tests.docs.snippets import ROOT, snippets

NAME = "page"
PACE = threading.Event()
#: The numbers of items at the checkpoints that came to nothing.
REFUSED = list[int]()
SIZE = 2000


def page_sink() -> Any:
    """The class `WriteLots` of the page, made of the text that stands there."""
    page = ROOT / "docs" / "how-to" / "write-a-sink.md"
    (text,) = [one for one in snippets(page) if "class WriteLots(" in one.text]
    module = types.ModuleType("write_a_sink")
    sys.modules[module.__name__] = module
    exec(compile(text.source, str(page), "exec"), vars(module))
    return module.WriteLots


WriteLots = page_sink()


@slet
def numbers(position: Position) -> Iterator[int | Punctuation]:
    """Emit 0, 1, 2, …; the second half when two checkpoints have come to nothing."""
    while position.number < SIZE:
        if position.number == SIZE // 2 and len(REFUSED) < 2:
            PACE.wait(0.001)
            yield Punctuation(position.number)
            continue
        position.number += 1
        yield position.number - 1


class Seen(Memento):
    """How many items have come."""

    items: int = 0


class Refuse(Slet):
    """Let every checkpoint come to nothing that does not have all items."""

    seen: Seen

    @input_port
    def item(self, item: int) -> None:
        """Count an item."""
        self.seen.items += 1

    def sync(self) -> None:
        """Refuse to bring anything to the disk before the end; the first checkpoint is taken before anything moves."""
        if 0 < self.seen.items < SIZE:
            REFUSED.append(self.seen.items)
            raise OSError("the disk is full")


class Offered:
    """A plugin: what is started again by itself needs a name."""

    @hookimpl
    def register_slets(self) -> list[Any]:
        """The slets above."""
        return [numbers, WriteLots, Refuse]


def main() -> int:
    """Let it live until it has finished."""
    folder = Path(sys.argv[1])
    (folder / "lots").mkdir(exist_ok=True)
    platform = Platform(state=folder / "state", control=False)
    platform.plugins.register("page", Offered())
    with platform:
        assert not platform.failed_to_restart, platform.failed_to_restart
        begun = folder / "begun"  # if it has ended since, it is not run once more: its lines would be doubled
        if NAME not in platform.applications() and not begun.exists():
            app = Application(NAME, plugins=platform.plugins)
            app.durable(every=0.005)
            source = app.add("numbers", numbers)
            app.add("lots", WriteLots, item=source, folder=folder / "lots")
            app.add("refuse", Refuse, item=source)
            platform.apply(app.build())
            begun.touch()
        if NAME in platform.applications():
            platform.wait(NAME)
    return 0


if __name__ == "__main__":
    from tests.recovery.page_app import main as run  # mementos must be of a module, not of a script

    sys.exit(run())
