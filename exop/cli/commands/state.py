"""`exop state check` reports the content and damage of a state directory; `exop state accept` accepts its database."""

from __future__ import annotations

import zlib
from collections.abc import Collection, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, closing, nullcontext, suppress
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from exop.cli.options import Json
from exop.cli.report import DONE, FAILED
from exop.cli.text import answer, columns
from exop.errors import StateError, StoredStateError
from exop.model.values.depth import read_toml
from exop.runtime.durable.database import FILE, GENERATION, GenerationFile, accept, contents_of, inspect, opened
from exop.runtime.log.segment import DISK, Segment, check_given_up, noted, segment_names

#: A state directory contains at least one of these files, even if it is damaged.
_MARKS: Final = (FILE, GENERATION, "lock")


def state_check(directory: Path, /, *, json: Json = False) -> int:
    """Show the content of a state directory, and any damage with its repair, without changing the directory.

    Applications that would not start are listed with the cure: the bundles of their slets are not started or not
    installed, or their home has to tell the outcome of a change first. No platform may use the directory. The exit code
    is 1 if there is any damage, or such an application.

    Example: `exop state check /var/lib/exop`

    Args:
        directory: The state directory: the argument of `--state DIR`.
    """
    found = examine(directory)
    answer(found, lambda: _as_text(found), json=json)
    return FAILED if found["damage"] or found["down"] else DONE


def state_accept(directory: Path, /, *, json: Json = False) -> int:
    """Accept the database of a state directory as current, even if its generation file is lost or has a higher number.

    All processing after the accepted state is repeated: sinks may get items twice, and engines may refuse to continue.
    No platform may use the directory. The command refuses a damaged database.

    Example: `exop state accept /var/lib/exop`

    Args:
        directory: The state directory.
    """
    with _unused(directory):
        number = accept(directory).number
    text = f"{directory}: accepted; the next start continues from generation {number}"
    return answer({"directory": str(directory), "generation": number}, text, json=json)


def _down(meshes: Mapping[str, str], installed: Mapping[str, list[str]], started: Collection[str]) -> Iterator[str]:
    """Describe the applications that would not start with the *installed* bundles, some of which lack others.

    Plugins are not checked: only the next platform knows which ones it has.
    """
    for name, topology in meshes.items():
        slets = [str(node.get("slet", "")) for node in read_toml(topology).get("nodes", {}).values()]
        used = [slet.rpartition(":")[0] for slet in slets if "@" in slet]
        for bundle in dict.fromkeys([*used, *(needed for one in used for needed in installed.get(one, ()))]):
            if not (known := bundle in installed) or bundle not in started:
                lacks, start = ("started", f"start {bundle}") if known else ("installed", "install FILE --start")
                cure = f"start the platform, `exop bundle {start}`, then `exop resume {name}`"
                yield f"{name}: its bundle {bundle} is not {lacks} here; {cure}"


def _as_text(found: dict[str, Any]) -> str:
    noted = found["noted"]
    state = f"{noted['number']}, {'committed' if noted['committed'] else 'begun'}" if noted else "none"
    known = {key: "unknown" if found[key] is None else found[key] for key in ("version", "generation")}
    applications = [
        [one["name"], one["revision"], "yes" if one["active"] else "no"]
        + [(one["checkpoint"] or {}).get(fact) for fact in ("number", "taken", "bytes")]
        for one in found["applications"]
    ]
    tables = (
        columns(("application", "revision", "active", "checkpoint", "taken", "bytes"), applications, "  "),
        columns(("engine of", "node", "place", "bytes"), [[*one.values()] for one in found["engines"]], "  "),
        columns(("log", "start", "end", "bytes"), [[*one.values()] for one in found["logs"]], "  "),
        columns(("bundle",), [[one] for one in found["bundles"]], "  "),
    )
    lines = [
        f"{found['directory']}: version {known['version']}, generation {known['generation']} (noted: {state})",
        *filter(None, tables),
        *(["would not start:"] if found["down"] else []),
        *(f"  {problem}" for problem in found["down"]),
        "damage:" if found["damage"] else "nothing is damaged",
        *(f"  {problem}" for problem in found["damage"]),
    ]
    return "\n".join(lines)


def examine(directory: Path) -> dict[str, Any]:
    """Return the content of a state directory as plain data; `damage` lists each damage with its cure.

    `down` lists the applications that would not start, with the cure.

    Raises:
        StateError: there is no such directory, it is not a state directory, or a platform uses it.
    """
    from exop.bundle.manifest import best
    from exop.bundle.store import remembered, stored_bundles

    with _unused(directory):
        damage: list[str] = []
        found: dict[str, Any] = {"directory": str(directory), "version": None, "generation": None, "noted": None}
        found["down"] = list[str]()
        try:
            noted = GenerationFile(directory).read()
            found["noted"] = noted._asdict() if noted is not None else None
            inspect(directory)
        except StateError as problem:
            damage.append(str(problem))
        found["applications"], meshes = _applications(directory, found, damage)
        engines = directory / "engines"
        rows = ((*place.relative_to(engines).parts, _size(place)) for place in sorted(engines.glob("*/*/*")))
        found["engines"] = [dict(zip(("application", "node", "place", "bytes"), row, strict=True)) for row in rows]
        folders = {path.parent for path in directory.rglob("*.log") if segment_names([path.name])}
        found["logs"] = [_log(folder, damage) for folder in sorted(folders)]
        bundles, broken = stored_bundles(directory / "bundles")
        damage += map(str, broken.values())
        found |= {"bundles": [home.name for home in bundles], "damage": damage}
        try:
            there, started = [archive.manifest for archive in bundles.values()], remembered(directory / "bundles")
            installed = {one.key: [str(need) for need in one.needed if best(need, there) is None] for one in there}
            for key in installed.keys() & started.keys():  # it is to import from the same versions again
                installed[key] += [one for one in started[key] if one not in installed]
            found["down"] += _down(meshes, installed, started)
        except StateError as problem:
            damage.append(str(problem))
        return found


def _unused(directory: Path) -> AbstractContextManager[Any]:
    """Lock the directory against platforms while the block runs; raises as `examine`."""
    if not directory.is_dir():
        raise StateError(f"there is no state directory {directory}; name the directory that was given by --state DIR")
    if not any((directory / name).exists() for name in _MARKS):
        cure = "name the one that was given by --state DIR"
        raise StateError(f"{directory} is not a state directory: it holds none of {', '.join(_MARKS)}; {cure}")
    for path in (directory / name for name in _MARKS):
        if path.exists() and not path.is_file():
            raise StateError(f"{path} is no file; nothing was changed; move it away, or restore the whole directory")
    if not (path := directory / "lock").exists():
        return nullcontext()
    if (lock := DISK.lock(path)) is None:
        holder = path.read_text().strip() or "unknown"
        cure = "ask the platform (`exop ps`), or stop it first"
        raise StateError(f"the state directory {directory} is in use by the platform with process id {holder}; {cure}")
    return closing(lock)


def _applications(directory: Path, found: dict[str, Any], damage: list[str]) -> tuple[list[Any], dict[str, str]]:
    """Return the applications in a readable database, whether or not it is current; and the meshes of active ones."""
    path, contents = directory / FILE, None
    with suppress(StateError):  # reported by inspect() already
        contents = contents_of(path)
    if contents is None:
        return [], {}
    found |= {"version": contents.version, "generation": contents.generation.number}
    damage.extend(contents.damaged.values())
    listed, meshes = list[dict[str, Any]](), dict[str, str]()
    # Imported lazily: only state directories with a database need msgspec.
    from exop.hosts.journal import stored_doubts, stored_homes

    with opened(path) as database:
        homes = stored_homes(database)
        for name, plan in stored_doubts(database).items():
            if name in homes:  # it settles the plan at its start
                continue
            home = plan.rpartition("@")[2]
            cure = f"start the platform while {home} can be reached; if {home} is gone, `exop ps` then shows what helps"
            found["down"].append(f"{name}: the outcome of the plan {plan} is not known here; {cure}")
        query = (
            "SELECT a.name, a.revision, a.active, c.number, c.taken, c.topology FROM applications a "
            "LEFT JOIN checkpoints c ON c.application = a.name ORDER BY a.name"
        )
        for name, revision, active, number, taken, topology in database.execute(query).fetchall():
            if name in contents.damaged:
                continue
            if active:
                query = "SELECT content FROM sections WHERE application = ? ORDER BY kind, place"
                meshes[name] = topology or "\n".join(text for (text,) in database.execute(query, (name,)))
            size = 0
            cure = f"restore the whole state directory from one copy, or remove the application (`exop remove {name}`)"
            query = "SELECT kind, name, sum, content FROM parts WHERE application = ?"
            for kind, part, known, content in database.execute(query, (name,)):
                size += len(content)
                if zlib.crc32(content) != known:
                    damage.append(f"the checkpoint of {name}: its {kind} {part!r} is damaged; {cure}")
            checkpoint = None
            if number is not None:
                checkpoint = {"number": number, "taken": datetime.fromtimestamp(taken, UTC).isoformat(), "bytes": size}
            whole = homes.get(name, {"revision": revision})["revision"]  # not that of the part here
            listed.append({"name": name, "revision": whole, "active": bool(active), "checkpoint": checkpoint})
    return listed, meshes | {name: one["topology"] for name, one in homes.items()}


def _log(folder: Path, damage: list[str]) -> dict[str, Any]:
    """Read a log that is not open; a torn tail is no damage, since it is truncated when the log is opened."""
    found = {"folder": str(folder), "start": None, "end": None, "bytes": _size(folder)}
    try:
        with ExitStack() as opened_files:
            names = segment_names(path.name for path in folder.iterdir())
            segments = [opened_files.enter_context(closing(Segment(DISK, folder / name))) for name in names]
            for one in segments:
                one.scan()
            for one, after in pairwise(segments):
                if one.end != after.base or one.rest(one.size):
                    raise one.damaged(f"damaged at row {one.end}")
            counted, given_up = noted(folder, DISK)
            check_given_up(folder, segments[0].base, given_up)
            segments[-1].check_tail(counted)
            return found | {"start": segments[0].base, "end": segments[-1].end}
    except (StoredStateError, OSError) as problem:
        damage.append(str(problem))
        return found


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
