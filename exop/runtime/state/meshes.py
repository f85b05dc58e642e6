"""The meshes in the database, one row for each table of the topology file: a change writes the rows that it changes.

The row of an application holds the sum of the checksums of all its tables, so that its digest covers them without
reading them: a change adds and subtracts those of the rows that it writes.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from hashlib import blake2b

from exop.model.diff import touched
from exop.model.mesh import Mesh
from exop.model.topology import section_text, sections

_WHERE = "FROM sections WHERE application = ? AND kind = ? AND name = ?"


def write_mesh(database: sqlite3.Connection, mesh: Mesh, stored: Mesh | None) -> int:
    """Put a mesh in the place of the one that is *stored*; returns the sum of the checksums.

    Without *stored*, or where the order of the nodes or channels is another one, all of it is written.
    """
    run = database.execute
    if stored is None or not (_same_order(stored.nodes, mesh.nodes) and _same_order(stored.channels, mesh.channels)):
        run("DELETE FROM sections WHERE application = ?", (mesh.name,))
        rows = [(mesh.name, *key, section_text(mesh, *key)) for key in sections(mesh)]
        database.executemany("INSERT INTO sections (application, kind, name, content) VALUES (?, ?, ?, ?)", rows)
        return sum(checksum(*row[1:]) for row in rows)
    (total,) = run("SELECT sum FROM applications WHERE name = ?", (mesh.name,)).fetchone()
    head = [("application", "")] if stored.durable != mesh.durable else []
    changed = [("channels", name) for name in touched(stored.channels, mesh.channels)]
    changed += [("nodes", name) for name in touched(stored.nodes, mesh.nodes)]
    gone = [("channels", name) for name in _gone(stored.channels, mesh.channels)]
    gone += [("nodes", name) for name in _gone(stored.nodes, mesh.nodes)]
    for key in (*head, *changed, *gone):
        found = run(f"SELECT content {_WHERE}", (mesh.name, *key)).fetchone()
        total -= checksum(*key, found[0]) if found else 0
        if key in gone:
            run(f"DELETE {_WHERE}", (mesh.name, *key))
            continue
        content = section_text(mesh, *key)
        total += checksum(*key, content)
        put = (
            "UPDATE sections SET content = ? WHERE application = ? AND kind = ? AND name = ?"
            if found
            else "INSERT INTO sections (content, application, kind, name) VALUES (?, ?, ?, ?)"
        )
        run(put, (content, mesh.name, *key))
    return int(total)


def sum_of(database: sqlite3.Connection, application: str) -> int:
    """The sum of the checksums of all tables of a stored mesh, as they are."""
    query = "SELECT kind, name, content FROM sections WHERE application = ?"
    return sum(checksum(*row) for row in database.execute(query, (application,)))


def checksum(kind: str, name: str, content: str) -> int:
    """The checksum of one table; the sum of millions of them fits into a column."""
    data = "\0".join((kind, name, content)).encode("utf-8", "surrogateescape")
    return int.from_bytes(blake2b(data, digest_size=5).digest())


def _gone(before: Mapping[str, object], after: Mapping[str, object]) -> list[str]:
    return [] if before is after else sorted(before.keys() - after.keys())


def _same_order(before: Mapping[str, object], after: Mapping[str, object]) -> bool:
    """What stays is in the same order, and what is new stands behind it."""
    gone = _gone(before, after)
    kept = [name for name in before if name not in gone] if gone else list(before)
    return before is after or list(after)[: len(kept)] == kept
