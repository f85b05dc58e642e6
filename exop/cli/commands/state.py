"""`exop state check` and `exop state accept`: what a state directory holds, and what can be done about damage."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from exop.cli.options import Json
from exop.cli.report import DONE, FAILED
from exop.cli.text import columns, print_json


def check_state(directory: Path, /, *, json: Json = False) -> int:
    """Show what a state directory holds, and what of it is damaged, with the cure. Nothing is changed.

    No platform may use the directory meanwhile. Exit code 1 when something is damaged.

    Args:
        directory: The state directory: what was given by `--state DIR`.
    """
    from exop.bundle.store import examined
    from exop.cli.commands.examination import examine

    found = examine(directory)
    bundles, broken = examined(directory / "bundles")
    found |= {"bundles": bundles, "damage": [*found["damage"], *broken]}
    if json:
        print_json(found)
    else:
        _show(found)
    return FAILED if found["damage"] else DONE


def accept_state(directory: Path, /) -> int:
    """Accept the database of a state directory as the newest, even if its generation file is lost or names a newer one.

    Whatever happened after that state is done again: sinks may get items twice, and engines may be refused. No
    platform may use the directory meanwhile. A database that is damaged is not accepted.

    Args:
        directory: The state directory.
    """
    from exop.cli.commands.examination import take_as_it_is

    print(f"{directory}: accepted; the next start goes on from generation {take_as_it_is(directory)}")
    return DONE


def _show(found: dict[str, Any]) -> None:
    noted = found["noted"]
    state = f"{noted['number']}, {'committed' if noted['committed'] else 'begun'}" if noted else "none"
    known = {key: "unknown" if found[key] is None else found[key] for key in ("version", "generation")}
    print(f"{found['directory']}: version {known['version']}, generation {known['generation']} (noted: {state})")
    _table(
        ("application", "revision", "active", "checkpoint", "taken", "bytes"),
        [
            [one["name"], one["revision"], "yes" if one["active"] else "no", *_checkpoint(one["checkpoint"])]
            for one in found["applications"]
        ],
    )
    _table(("engine of", "node", "place", "bytes"), [list(one.values()) for one in found["engines"]])
    _table(("log", "start", "end", "bytes"), [list(one.values()) for one in found["logs"]])
    _table(("bundle",), [[one] for one in found["bundles"]])
    print("damage:" if found["damage"] else "nothing is damaged")
    for problem in found["damage"]:
        print(f"  {problem}")


def _checkpoint(found: dict[str, Any] | None) -> list[Any]:
    return ["-", "-", "-"] if found is None else list(found.values())


def _table(head: tuple[str, ...], rows: list[list[Any]]) -> None:
    if rows:
        print(columns(head, [["-" if cell is None else cell for cell in row] for row in rows], "  "))
