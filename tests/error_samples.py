"""One error of each class, and the message that it composes: for the tests, and for the page that documents them."""

from __future__ import annotations

from typing import Any, Final

#: One of each, and the message that it composes; those whose message is written by hand are given as text.
SAMPLES: Final[dict[str, tuple[dict[str, Any], str]]] = {
    "ExopError": ({"text": "something"}, "something"),
    "MeshError": ({"text": "no; do this"}, "no; do this"),
    "SletError": (
        {"slet": "average", "problem": "it has two mementos", "cure": "put both in one class"},
        "average is no slet: it has two mementos; put both in one class",
    ),
    "UnknownName": (
        {"place": "average", "kind": "port", "name": "reprt", "known": ["report"]},
        "average has no port 'reprt'; did you mean 'report'?",
    ),
    "SettingError": (
        {"place": "average", "setting": "window", "problem": "expected int, got 'x' (str)"},
        "average: the setting 'window' does not fit: expected int, got 'x' (str)",
    ),
    "ExpressionError": (
        {"place": "jams", "expression": "report.tme > 3", "position": 7, "problem": "Report has no field 'tme'"},
        "jams: Report has no field 'tme'\n  report.tme > 3\n         ^",
    ),
    "WiringError": ({"text": "a cannot feed b"}, "a cannot feed b"),
    "BuilderError": ({"text": "no builder"}, "no builder"),
    "PlanError": ({"text": "no plan"}, "no plan"),
    "NotNow": ({"text": "b is away"}, "b is away"),
    "StaleMesh": (
        {"application": "lr", "revision": 1, "current": 2},
        (
            "'lr' was changed meanwhile (this mesh is revision 1, the running one 2); "
            "read it again with platform.mesh('lr') and repeat the edit, or give the `exop` command again"
        ),
    ),
    "HomeLost": (
        {"home": "a", "application": "lr", "host": "b"},
        (
            "a, the home of lr, has returned without it; start it again with its state directory; if that is gone, or "
            "it had none, `exop adopt lr --on b` makes b the home, where what ran at a begins anew"
        ),
    ),
    "StillOpening": (
        {"application": "lr", "host": "edge-1", "opened": 4, "total": 5, "waiting": ", tolls since 12 s"},
        (
            "'lr' is still opening on the platform 'edge-1': 4 of 5 slets are open, tolls since 12 s; try again when "
            "it runs, `exop ps` shows how far it is"
        ),
    ),
    "MementoError": (
        {"node": "averages", "old": "Speeds", "new": "Medians", "problem": "they have no field in common"},
        (
            "averages: the state Speeds cannot be handed over to Medians: they have no field in common; "
            "give the new memento a `@classmethod def upgrade(cls, old)`, or replace averages with lose_state=True "
            "(`exop replace APP.averages SLET --lose-state`), so that it starts empty"
        ),
    ),
    "NotRebuildable": (
        {"node": "averages", "problem": "its input 'reports' is no log (it is queue)", "cure": "give it an upgrade"},
        (
            "averages: the state cannot be rebuilt from a log: its input 'reports' is no log (it is queue); "
            "give it an upgrade"
        ),
    ),
    "ComponentFailed": (
        {"node": "sink", "phase": "opening", "problem": "no such file"},
        "sink failed while opening: no such file",
    ),
    "ShadowFailed": (
        {
            "node": "averages",
            "problem": "2 differences",
            "report": {"items": 30, "seconds": 1.5},
            "found": " (after 30 items in 1.5 s)\n  item 7, out: old 5.0, new 5.5",
        },
        (
            "averages was not replaced: 2 differences; the old one runs on (after 30 items in 1.5 s)\n"
            "  item 7, out: old 5.0, new 5.5"
        ),
    ),
    "StoredStateError": (
        {"what": "a stored value of Speeds", "problem": "it is damaged", "cure": "take an older copy"},
        "a stored value of Speeds cannot be taken over: it is damaged; nothing was changed; take an older copy",
    ),
    "NotStorable": (
        {"value": "a lock", "problem": "it is no data", "cure": "make it in __enter__", "place": "averages.speeds"},
        "averages.speeds: a lock cannot be stored: it is no data; make it in __enter__",
    ),
    "NoSuchItem": (
        {"node": "lr.sink", "what": "dead letter 7", "cure": "give a number from 1 to 3"},
        ("lr.sink has no dead letter 7: give a number from 1 to 3; `exop item list lr.sink` shows what there is"),
    ),
    "CheckpointError": (
        {"application": "lr", "problem": "the disk is full", "cure": "make room"},
        "lr: no checkpoint was taken: the disk is full; the application runs on; make room",
    ),
    "LastCheckpointFailed": (
        {
            "application": "app",
            "outcome": "has finished",
            "problem": "no room on the disk",
            "unwritten": "3 items of rows",
            "cure": "repair that, and wait again",
        },
        (
            "app has finished, but its last checkpoint failed: no room on the disk; not written: 3 items of rows; "
            "repair that, and wait again"
        ),
    ),
    "NotCommitted": (
        {"application": "lr", "node": "write", "problem": "database is locked"},
        (
            "lr: the checkpoint is taken, and write could not put out what belongs to it: database is locked; "
            "nothing is lost: it tries again with the next one"
        ),
    ),
    "LifecycleError": (
        {"component": "lr.sink", "state": "created", "event": "start", "allowed": "open, destroy"},
        "lr.sink is created: it cannot start; possible now: open, destroy",
    ),
    "BundleError": (
        {
            "bundle": "speeds@1.0.0",
            "problem": "is installed already, with other files",
            "cure": "give it another version",
        },
        "the bundle speeds@1.0.0 is installed already, with other files; give it another version",
    ),
    "ArchiveRefused": (
        {"archive": "speeds.zip", "problem": "the path '../a.py' leads out of it", "cure": "make it anew"},
        "speeds.zip is refused: the path '../a.py' leads out of it; make it anew",
    ),
    "RequirementMissing": (
        {"bundle": "speeds@1.0.0", "missing": ["exop >=2 (this is 0.1.0)", "the bundle numbers>=1 (install it)"]},
        "the bundle speeds@1.0.0 lacks exop >=2 (this is 0.1.0); the bundle numbers>=1 (install it)",
    ),
    "BundleInUse": (
        {"bundle": "speeds@1.0.0", "event": "stopped", "users": ["road.averages", "the bundle jams@1.0.0"]},
        (
            "the bundle speeds@1.0.0 cannot be stopped: it is used by road.averages, the bundle jams@1.0.0; "
            "replace or remove these first"
        ),
    ),
    "BundleBroken": (
        {
            "bundle": "speeds@1.0.0",
            "file": "speeds/slets.py",
            "line": 7,
            "problem": "NameError: name 'x' is not defined",
        },
        (
            "speeds/slets.py:7: the code of the bundle speeds@1.0.0 could not be loaded: "
            "NameError: name 'x' is not defined; correct that line"
        ),
    ),
    "StateError": ({"text": "state/ is in use"}, "state/ is in use"),
    "PluginError": (
        {"plugin": "spark", "problem": "ImportError: no module named pyspark"},
        "the plugin 'spark' could not be loaded: ImportError: no module named pyspark",
    ),
    "EngineError": ({"text": "no"}, "no"),
    "FeedClosed": ({"port": "rows"}, "the feed of port 'rows' is closed: its query has stopped"),
    "QueryError": (
        {"slet": "sql", "port": "rows", "query": "SELECT x\nFROM b", "position": 14, "problem": "no such table: b"},
        "sql.rows: no such table: b\n  SELECT x\n  FROM b\n       ^",
    ),
    "QueryInterrupted": (
        {"slet": "sql", "port": "rows", "query": "SELECT 1", "limit": 2.5},
        "sql.rows: interrupted after 2.5 s; correct the query, or raise the setting `time_limit`\n  SELECT 1",
    ),
    "WorkerLost": (
        {"slet": "sql", "port": "rows", "query": "SELECT 1", "problem": "it ended with SIGKILL"},
        (
            "sql.rows: the worker process of the engine was lost: it ended with SIGKILL; "
            "the next call starts another one with the state before this call\n  SELECT 1"
        ),
    ),
    "RegistryError": ({"text": "no"}, "no"),
    "FilterSyntaxError": (
        {"filter": "(a=", "position": 3, "problem": "a value ends at ')'"},
        "a value ends at ')'\n  (a=\n     ^",
    ),
    "ServiceGone": (
        {"service": 7},
        "the service 7 is gone; look it up again or follow it with registry.track(...)",
    ),
    "RemotingError": ({"text": "no"}, "no"),
    "PeerUnreachable": (
        {"address": "/run/a", "problem": "no such file"},
        "no platform answers at /run/a: no such file; start one with `exop serve`, or see `exop ps`",
    ),
    "ConnectionLost": (
        {"address": "/run/a", "operation": "apply", "problem": "reset"},
        (
            "the connection to /run/a ended during 'apply' (reset); whether it was carried out is unknown: "
            "see `exop history`"
        ),
    ),
    "CallTimeout": (
        {"address": "/run/a", "operation": "apply", "seconds": 5.0},
        "/run/a did not answer 'apply' within 5 s; it may still carry it out: see `exop ps` before you repeat it",
    ),
    "PeerRefused": ({"address": "/run/a", "problem": "not yours"}, "the platform at /run/a refused: not yours"),
    "ProtocolMismatch": (
        {"address": "/run/a", "ours": 1, "theirs": 2, "release": "exop 0.2.0", "our_release": "exop 0.1.0"},
        (
            "the platform at /run/a uses protocol 2 (exop 0.2.0), this one 1 (exop 0.1.0); "
            "use the same release on both sides"
        ),
    ),
    "AddressInUse": (
        {"address": "/run/a", "pid": 5},
        "/run/a is in use by process 5; stop that one (see `exop ps`) or take another state directory",
    ),
    "AddressUnusable": (
        {"address": "/run/a", "problem": "it is too long", "cure": "take a shorter one"},
        "/run/a cannot be used: it is too long; take a shorter one",
    ),
    "IdentityError": (
        {"place": "certs/edge/edge.pem", "problem": "it has expired", "cure": "issue a new one"},
        "certs/edge/edge.pem: it has expired; issue a new one",
    ),
    "PolicyError": (
        {"file": "policy.toml", "line": 3, "problem": "'operator' is no role", "cure": "take observe or operate"},
        "policy.toml:3: 'operator' is no role; take observe or operate",
    ),
    "UnknownOperation": (
        {"operation": "aply", "known": ["apply", "plan"]},
        "the platform has no operation 'aply'; did you mean 'apply'? known: apply, plan",
    ),
    "RequestInvalid": (
        {"operation": "apply", "problem": "mesh is no text"},
        "this request does not fit 'apply': mesh is no text",
    ),
    "MessageTooLarge": (
        {"what": "the mesh", "size": 9, "limit": 8, "cure": "split it"},
        "the mesh has 9 bytes, the bound is 8; split it",
    ),
    "PlatformBusy": (
        {"operation": "apply", "problem": "64 calls wait"},
        "the platform is too busy for 'apply': 64 calls wait; try again",
    ),
    "ConnectorLost": (
        {"connector": "lr/c/a>b", "host": "b", "lost": "the events 0 to 9", "cure": "go on by `exop accept lr.c.to.b`"},
        (
            "the connector lr/c/a>b has lost its state: b has returned without the events 0 to 9; go on by `exop "
            "accept lr.c.to.b`"
        ),
    ),
    "OperationFailed": (
        {"operation": "apply", "reference": "ab12"},
        "'apply' failed inside the platform; its log has the reason under the reference ab12",
    ),
    "ChannelClosed": ({"channel": "a"}, "the channel a is closed"),
    "ChannelFull": ({"channel": "a", "capacity": 3}, "the channel a is full: its capacity is 3"),
}
