"""Messages about plans in the name of another platform, or of another home, are refused."""

from __future__ import annotations

import pytest

from exop.errors import PeerRefused, PlanError
from exop.hosts.journal import encode
from exop.hosts.protocol.messages import (
    Ask,
    Decision,
    Finish,
    Message,
    Notice,
    Proceed,
    Propose,
    Ready,
    Refuse,
    Remove,
    Report,
)
from tests.hosts.hosts_rig import hosts
from tests.hosts.test_federation import spanning
from tests.rig import eventually

FORGED: dict[str, Message | Notice] = {
    "a vote of another host": Ready("1@b", "a", "cut"),
    "a no of another host": Refuse("1@b", "a", "no"),
    "a question of another host": Ask("1@b", "a"),
    "the decision of another host": Decision("1@a", "a", commit=True),
    "a plan of another home": Propose("1@a", "c", b"", {}, ("b",), 1.0, 1.0),
    "a step of the plan of another home": Proceed("1@a", "c", "commit"),
    "the report of another host": Report("a", gone=True),
    "a removal in the name of the home": Remove("a", 1.0),
    "the end by another home": Finish("c"),
}


@pytest.mark.parametrize("name", FORGED)
def test_a_message_in_the_name_of_another_platform(name):
    """The receiver compares the sender with the connection; the refusal is recorded, and the application runs on."""
    with hosts("a", "b", "c") as (a, b, c):
        mesh = spanning(100_000_000)
        a.apply(mesh)
        eventually(lambda: mesh.name in b._hosts.here.known, "b knows the home")  # type: ignore[attr-defined]
        with pytest.raises(PeerRefused, match=f"on {mesh.name} is a message of '[abc]', not of 'c'"):
            c.remoting.peers["b"].call("protocol", application=mesh.name, message=encode(FORGED[name]))
        (entry,) = (one for one in b.history(mesh.name) if one["what"] == "protocol")
        assert entry["outcome"] == "refused"
        assert entry["who"].startswith("platform c")
        assert a.status(mesh.name)["state"] == "running"
        a.remove(mesh.name)


def test_an_application_of_the_same_name_with_another_home():
    """Another platform that deploys the same name on a host changes nothing there."""
    with hosts("a", "b", "c") as (a, b, c):
        mesh = spanning(100_000_000)
        a.apply(mesh)
        eventually(lambda: mesh.name in b._hosts.here.known, "b knows the home")  # type: ignore[attr-defined]
        with pytest.raises(PlanError, match="the home of .* is 'a', not 'c'; give the command to it"):
            c.apply(mesh)
        assert b.mesh(mesh.name).revision == 1
        assert a.status(mesh.name)["state"] == "running"
        a.remove(mesh.name)
