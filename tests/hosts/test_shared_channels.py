"""Channels with consumers on several hosts, one of which moves: no driver has given an item only to some of them."""

from __future__ import annotations

import pytest

from exop import Application
from exop.hosts.moves.handing import Handing
from tests.change.tools import endless
from tests.hosts.hosts_rig import at_rest, check, goes_on, hosts


@pytest.mark.parametrize(("node", "target"), [("check", "c"), ("check-c", "b"), ("check", "a"), ("check-a", "b")])
def test_no_driver_runs_while_events_are_handed_over(monkeypatch: pytest.MonkeyPatch, node: str, target: str):
    """Also those that push into a connector from behind a queue: what is read there is all that was sent."""
    running: list[str] = []
    look = Handing._look

    def looking(self: Handing) -> None:
        parked = self.change.pause.drivers
        running.extend(driver.name for driver in self.change.deployment.drivers() if driver not in parked)
        look(self)

    monkeypatch.setattr(Handing, "_look", looking)
    with hosts("b", "c", "a") as (b, c, a):
        app = Application("app")
        numbers = app.channel("numbers", "queue")
        app.add("count", endless, out=numbers)
        for host, name in ((b, "check"), (c, "check-c"), (a, "check-a")):
            app.on(host.name).add(name, check, item=numbers)
        a.apply(a.apply(app.build()).move(node, to=target))
        assert running == []
        at_rest(a, b, c)
        for host in (a, b, c):
            names = host.deployment("app").components if "app" in host.applications() else {}
            for name in {"check", "check-a", "check-c"} & names.keys():
                goes_on(host, name)
