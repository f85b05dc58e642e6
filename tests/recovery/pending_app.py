"""A durable application with pending lines, to be killed: `python -m tests.recovery.pending_app FOLDER`."""

import sys
import threading
from collections.abc import Iterator
from pathlib import Path

from exop import Application, Memento, Platform, hookimpl, slet
from exop.hooks import Plugins
from exop.model.meshes.mesh import Mesh
from exop.model.slets.slet import spec_of
from exop.stock.slets import pass_on
from tests.rig import eventually

#: How many numbers there are, and at which of them a line takes effect.
LAST = 20_000
POINTS = tuple(range(997, LAST, 997))
#: The edits of what has pending lines, that change no setting; each with the number at which the source waits for it.
EDITS = {"replace": 2_500, "rewire": 4_500, "suspend": 6_500}
#: Never set: a pause that ends no earlier.
PACE = threading.Event()
#: Where the source waits now.
WAITS: list[int] = []

PASS_ON = spec_of(pass_on)


class Position(Memento):
    """How far the source has come."""

    number: int = 0


@slet
def numbers(position: Position) -> Iterator[int | None]:
    """Emit 1, 2, 3, …"""
    while position.number < LAST:
        while position.number in WAITS:
            PACE.wait(0.001)
            yield None
        position.number += 1
        yield position.number


@slet
def scale(x: int, *, by: int = 0) -> str:
    """Say which setting the number met."""
    return f"{x} {by}"


@slet
def scaled(x: int, *, by: int = 0) -> str:
    """The same by other code."""
    return f"{x} {by}"


@slet
def joined(piece: list[int]) -> str:
    """A window as a line."""
    return " ".join(map(str, piece))


class Offered:
    """What the platform finds by name."""

    @hookimpl
    def register_slets(self) -> list[object]:
        """The slets."""
        return [numbers, scale, scaled, joined]


def mesh(folder: Path, every: float = 0.02) -> Mesh:
    """The condition of each line holds for one number alone: missed once, it is missed for ever."""
    app = Application("pending")
    app.durable(every=every)
    queue = app.channel("queue", kind="queue", capacity=50)
    app.add("numbers", numbers, out=queue)
    app.add("write", "stock:write_lines", item=app.add("scale", scale, x=queue), path=folder / "lines")
    pieces = app.channel("pieces", kind="window", count=10)
    app.add("cut", "stock:pass_on", item=queue, out=pieces)
    app.add("keep", "stock:write_lines", item=app.add("joined", joined, piece=pieces), path=folder / "pieces")
    made = app.build()
    for number, point in enumerate(POINTS):
        made = made.configure("scale", by=number + 1, when=f"x == {point} and by == {number}")
        size = 7 + 5 * (number % 3)
        made = made.configure("pieces", count=size, when=f"item == {point}", close_windows=number % 2 == 0)
    return made


def edited(mesh: Mesh, edit: str) -> Mesh:
    """The mesh after one of the edits."""
    if edit == "replace":
        return mesh.replace("scale", scaled)
    if edit == "suspend":
        return mesh.suspend("scale")
    return mesh.add_slet("pass", PASS_ON, {"item": "queue"}, {}).rewire("scale", x="pass")


def main(folder: Path, edit: str | None = None) -> None:
    """Start it, or let it go on, until it has finished; an *edit* is made behind lines that no checkpoint knows."""
    plugins = Plugins()
    plugins.discover()
    plugins.register("tests.recovery.pending_app", Offered())
    WAITS.extend([EDITS[edit]] if edit is not None else [])
    with Platform(state=folder / "state", control=False, plugins=plugins) as platform:
        if platform.failed_to_restart:
            sys.exit(str(platform.failed_to_restart))
        if not platform.applications():
            platform.apply(mesh(folder, 0.02 if edit is None else 3600))
        if platform.mesh("pending").node("scale").suspended:
            platform.resume("pending", "scale")
        if edit is not None:
            left = sum(point > EDITS[edit] for point in POINTS)

            def waiting() -> bool:
                now = platform.mesh("pending")
                return len(now.node("scale").pending) == len(now.channels["pieces"].pending) == left

            eventually(waiting, "the lines before the edit")
            platform.apply(edited(platform.mesh("pending"), edit))
            WAITS.clear()
        platform.wait("pending")
        assert not platform.mesh("pending").node("scale").pending
        assert not platform.mesh("pending").channels["pieces"].pending


if __name__ == "__main__":
    from tests.recovery import pending_app  # under its own name, so that its classes are found again

    pending_app.main(Path(sys.argv[1]), *sys.argv[2:])
