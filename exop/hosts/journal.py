"""Messages and journal records of plans as bytes, and their journal in the state directory of a platform."""

from __future__ import annotations

from typing import Any, Final, get_args

import msgspec

from exop.errors import RequestInvalid, StoredStateError
from exop.hosts.fragment import Work
from exop.hosts.protocol.messages import Committed, Finished, JournalEntry, Message, Notice, PeerMessage, Prepared
from exop.remoting.transport.codec import decoder
from exop.runtime.durable.database import Database

_MESSAGES: Final = {one.__name__: one for one in (*get_args(PeerMessage), *get_args(Notice))}
_ENTRIES: Final = {one.__name__: one for one in get_args(JournalEntry)}
#: Created if missing; earlier releases ignore them.
_TABLES: Final = """
CREATE TABLE IF NOT EXISTS plans (
    number INTEGER PRIMARY KEY, application TEXT NOT NULL, home INTEGER NOT NULL, plan TEXT NOT NULL,
    content BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS hosts (
    application TEXT NOT NULL, home INTEGER NOT NULL, content BLOB NOT NULL, PRIMARY KEY (application, home));
"""
_KEEP: Final = "INSERT OR REPLACE INTO hosts VALUES (?, ?, ?)"


def encode(one: Message | Notice | JournalEntry) -> bytes:
    """Encode a message or record."""
    return msgspec.msgpack.encode((type(one).__name__, one), enc_hook=Work.encoded)


def decode_message(data: bytes) -> PeerMessage | Notice:
    """Decode a message of a peer; raises `RequestInvalid` if the bytes are none."""
    try:
        found: PeerMessage | Notice = _decoded(data, _MESSAGES)
    except (msgspec.MsgspecError, KeyError) as problem:
        raise RequestInvalid(operation="protocol", problem=str(problem)) from problem
    return found


def _decoded(data: bytes, kinds: dict[str, Any]) -> Any:
    name, fields = decoder(tuple[str, msgspec.Raw]).decode(data)
    return decoder(kinds[name]).decode(fields)


def stored_homes(database: Any) -> dict[str, dict[str, Any]]:
    """Return the applications of which a platform is the home, as `Spanning.stored`, while that is not open."""
    if not database.execute("SELECT 1 FROM sqlite_master WHERE name = 'hosts'").fetchone():
        return {}
    rows = database.execute("SELECT application, content FROM hosts WHERE home").fetchall()
    return {name: one for name, content in rows if (one := msgspec.msgpack.decode(content))["hosts"]}


def stored_doubts(database: Any) -> dict[str, str]:
    """Return the plans whose outcome is not known here, by application, while the database is not open elsewhere."""
    if not database.execute("SELECT 1 FROM sqlite_master WHERE name = 'plans'").fetchone():
        return {}
    rows = database.execute("SELECT application, plan, content FROM plans WHERE NOT home ORDER BY number").fetchall()
    last = {name: (plan, msgspec.msgpack.decode(content)[0]) for name, plan, content in rows}
    return {name: plan for name, (plan, kind) in last.items() if kind == Prepared.__name__}


class Journal:
    """The records of plans, and the applications that span hosts, in the database of a state directory."""

    def __init__(self, database: Database) -> None:
        self._database = database
        with database.transaction(sealed=False) as connection:
            for statement in filter(str.strip, _TABLES.split(";")):
                connection.execute(statement)

    def record(self, application: str, entry: JournalEntry, content: dict[str, Any] | None = None) -> None:
        """Append a record, durably. At a commit, *content* is what is known of the application from then on.

        A commit replaces the records of former plans, which are all settled. An outcome replaces the data to make it.
        """
        home = isinstance(entry, (Committed, Finished))
        plan = entry.proposal.plan if isinstance(entry, Prepared) else entry.plan
        with self._database.transaction(sealed=False) as database:
            if isinstance(entry, (Committed, Prepared)):
                database.execute("DELETE FROM plans WHERE application = ? AND home = ?", (application, home))
            put = "INSERT INTO plans (application, home, plan, content) VALUES (?, ?, ?, ?)"
            database.execute(put, (application, home, plan, encode(entry)))
            if content is not None:
                database.execute(_KEEP, (application, home, msgspec.msgpack.encode(content)))

    def keep(self, application: str, content: dict[str, Any] | None, *, home: bool) -> None:
        """Store what is known of an application, as its home or as another host; without *content*, delete it all."""
        with self._database.transaction(sealed=False) as database:
            if content is not None:
                database.execute(_KEEP, (application, home, msgspec.msgpack.encode(content)))
                return
            for table in ("plans", "hosts"):
                database.execute(f"DELETE FROM {table} WHERE application = ? AND home = ?", (application, home))

    def plans(self, *, home: bool) -> dict[str, list[JournalEntry]]:
        """Return the records of each application, the oldest first."""
        found: dict[str, list[JournalEntry]] = {}
        query = "SELECT application, content FROM plans WHERE home = ? ORDER BY number"
        for application, content in self._database.rows(query, home):
            found.setdefault(application, []).append(self._read(_decoded, application, content, _ENTRIES))
        return found

    def applications(self, *, home: bool) -> dict[str, dict[str, Any]]:
        """Return what is known of each application."""
        rows = self._database.rows("SELECT application, content FROM hosts WHERE home = ?", home)
        return {name: self._read(msgspec.msgpack.decode, name, content) for name, content in rows}

    @staticmethod
    def _read(decode: Any, application: str, content: bytes, *more: Any) -> Any:
        try:
            return decode(content, *more)
        except (msgspec.MsgspecError, KeyError) as problem:
            cure = "restore the whole state directory from one copy, or remove the application"
            raise StoredStateError(what=f"the plans of {application}", problem=str(problem), cure=cure) from problem
