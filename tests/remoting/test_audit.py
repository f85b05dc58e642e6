"""The audit: calls of other platforms are in the history, bounded, with the peer and the outcome."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from exop import Application, Platform
from exop.cli import main
from exop.errors import ExopError
from exop.remoting.peers.service import PeerLink
from exop.stock.slets import count_up, pass_on


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Platform]:
    """A platform with an application, at which other platforms of this process may connect."""
    app = Application("numbers")
    app.add("pass", pass_on, item=app.add("numbers", count_up))
    with Platform(state=tmp_path / "state", name="home", listen="inproc:home") as platform:
        platform.apply(app.build())
        yield platform


@pytest.fixture
def edge(home: Platform) -> Iterator[PeerLink]:
    """The link of another platform to the home."""
    with Platform(name="edge") as platform:
        yield platform.remoting.connect("inproc:home")


def rows(platform: Platform, application: str = "") -> list[tuple[Any, ...]]:
    """The operation, the outcome, the number of calls and the caller of each entry, without those of this process."""
    found = [entry for entry in platform.history(application) if entry["who"].startswith("platform ")]
    return [(one["what"], one["outcome"], one.get("count"), one["who"].partition(",")[0]) for one in found]


def test_a_change_of_a_peer_is_recorded_once(home, edge):
    """An operation that is in the history anyway has its entry there, with the peer, and is not counted again."""
    edge.call("end", application="numbers")
    assert rows(home, "numbers") == [("end", "done", None, "platform edge")]


def test_calls_that_change_nothing_are_counted(home, edge):
    """One entry per operation and outcome counts the calls; reading is not recorded."""
    toml = edge.call("topology", application="numbers")
    for _ in range(3):
        edge.call("plan_topology", toml=toml)
    for _ in range(2):
        with pytest.raises(ExopError):
            edge.call("plan_topology", toml=toml.replace("count_up", "count_down"))
    assert rows(home, "numbers") == [
        ("plan_topology", "done", 3, "platform edge"),
        ("plan_topology", "failed", 2, "platform edge"),
    ]
    assert "count_down" in home.history("numbers")[-1]["reason"]


def test_calls_that_concern_no_application_are_in_the_history_of_the_platform(home, edge, tmp_path, capsys):
    """They are kept in the state directory; names that a peer makes up have no history of their own."""
    for number in range(3):
        with pytest.raises(ExopError):
            edge.call("end", application=f"unknown {number}")
    assert rows(home) == [("end", "failed", 3, "platform edge")]
    home.close()
    assert main(["history", "--state", str(tmp_path / "state")]) == 0
    assert (
        "failed 3×, the last: UnknownName: the platform 'home' has no application 'unknown 2'"
        in capsys.readouterr().out
    )


def test_each_platform_has_entries_of_its_own(home, edge):
    """Calls of one platform do not hide those of another one."""
    with Platform(name="other") as platform:
        other = platform.remoting.connect("inproc:home")
        for link in (edge, other, edge):
            link.call("plan_topology", toml=link.call("topology", application="numbers"))
    assert rows(home, "numbers") == [
        ("plan_topology", "done", 2, "platform edge"),
        ("plan_topology", "done", 1, "platform other"),
    ]
