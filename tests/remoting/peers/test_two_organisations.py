"""Two organisations share a channel without sharing a platform: each runs its own application, and no role is given."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from threading import Event

import pytest

from exop import Application, Platform
from exop.cli import watch
from exop.cli.report import Stopping
from exop.cli.view import View
from exop.errors import PeerRefused, UnknownName
from exop.model.items import EndOfStream
from exop.remoting.authority import create_authority, issue
from exop.remoting.peers.data import DataConnection
from exop.runtime.channels.inbox import Inbox
from exop.stock.slets import WriteLines, count_up
from tests.cli.shell import answer_of, exop
from tests.rig import PATIENCE, eventually

SHARED = {"key": "tolls/reports/city>bank", "epoch": 1, "ack": "done"}


def written_by(folder: Path, name: str, text: str) -> Path:
    """A policy file."""
    path = folder / f"{name}.toml"
    path.write_text(text)
    path.chmod(0o600)
    return path


def test_a_channel_from_one_organisation_to_another(tmp_path):
    """Items cross in order by the rights to one channel; neither platform can call an operation of the other one."""
    create_authority(tmp_path / "certs")
    rights = {"city": '[peers.bank]\nread = ["tolls/reports"]\n', "bank": '[peers.city]\nwrite = ["tolls/reports"]\n'}
    with ExitStack() as stack:
        city, bank = (
            stack.enter_context(
                Platform(
                    name=name,
                    control=False,
                    listen="tls://127.0.0.1:0",
                    identity=issue(tmp_path / "certs", name),
                    policy=written_by(tmp_path, name, text),
                )
            )
            for name, text in rights.items()
        )
        bank.remoting.connect(city.address, "city")

        sending = Application("tolls")
        sending.add("numbers", count_up, to=1000, out=sending.channel("reports", kind="outbox", peer="bank", **SHARED))
        receiving = Application("accounts")
        reports = receiving.channel("reports", kind="inbox", peer="city", **SHARED)
        receiving.add("sink", WriteLines, item=reports, path=tmp_path / "out")
        city.apply(sending.build())
        bank.apply(receiving.build())
        assert bank.wait("accounts", PATIENCE)
        assert city.wait("tolls", PATIENCE)
        assert (tmp_path / "out").read_text().split() == [str(number) for number in range(1000)]

        for here, there in ((city, "bank"), (bank, "city")):
            eventually(lambda here=here, there=there: here.remoting.peers[there].client is not None, "it can be called")
            for operation, given in (("applications", {}), ("end", {"application": "tolls"})):
                with pytest.raises(PeerRefused, match="the role of this peer is none"):
                    here.remoting.peers[there].call(operation, **given)


def halves(folder: Path) -> tuple[Application, Application]:
    """An application with ten items for the channel, and the one that writes what comes."""
    sending, receiving = Application("tolls"), Application("accounts")
    reports = sending.channel("reports", kind="outbox", peer="bank", **SHARED)
    sending.add("numbers", "stock:count_up", to=10, out=reports)
    reports = receiving.channel("reports", kind="inbox", peer="city", **SHARED)
    receiving.add("sink", "stock:write_lines", item=reports, path=folder / "out")
    return sending, receiving


def test_a_platform_that_cannot_reach_the_peer_refuses_the_channel(tmp_path):
    """Nothing is deployed; it is when the platforms are linked, as the error says."""
    sending, receiving = halves(tmp_path)
    with Platform(name="city", control=False) as city, Platform(name="bank", control=False, listen="inproc:b") as bank:
        told = r"channel 'reports' \(outbox\): the platform 'city' has no peer 'bank'; .*`exop connect URI`.*--peer"
        with pytest.raises(UnknownName, match=told):
            city.apply(sending.build())
        assert city.applications() == []
        city.remoting.connect("inproc:b")
        city.apply(sending.build())
        bank.apply(receiving.build())
        assert city.wait("tolls", PATIENCE)


def test_an_application_has_finished_when_its_peer_has_everything(tmp_path, monkeypatch):
    """Its source ends while the receiver is away, and its platform starts again: what the outbox holds is delivered.

    The receiver leaves as soon as it has finished, within the delivery of the last event: it acknowledges that before.
    """
    leaves, finish, deliver = Event(), DataConnection.finish, Inbox._deliver_packet

    def delivered(inbox, driver, packet, *, probe):
        deliver(inbox, driver, packet, probe=probe)
        if isinstance(packet.payload, EndOfStream):
            assert leaves.wait(PATIENCE)

    def finished(connection, ends, reason):
        leaves.set()
        connection._limits = replace(connection._limits, tick=PATIENCE)
        finish(connection, ends, reason)

    monkeypatch.setattr(Inbox, "_deliver_packet", delivered)
    monkeypatch.setattr(DataConnection, "finish", finished)
    sending, receiving = halves(tmp_path)
    sending.durable(every=PATIENCE)
    options = {"name": "city", "control": False, "listen": "tcp://127.0.0.1:0", "state": tmp_path / "state"}
    with Platform(**options) as city:
        city.apply(sending.build())
        eventually(lambda: city.status("tolls")["state"] == "delivering")
        assert city.status("tolls")["channels"]["reports"]["lag"] == 11  # with the end of the stream
        assert not city.wait("tolls", 0)
    with Platform(**options) as city:
        assert city.status("tolls")["state"] == "delivering"
        with Platform(name="bank", control=False) as bank:
            bank.remoting.connect(city.address, "city")
            bank.apply(receiving.build())
            assert bank.wait("accounts", PATIENCE)
        assert city.wait("tolls", PATIENCE)
        assert (tmp_path / "out").read_text().split() == [str(number) for number in range(10)]
    with Platform(**options) as city:
        assert city.applications() == []


def test_what_is_not_delivered_is_named_when_it_is_dropped(tmp_path, capsys):
    """In the log, when the platform is closed and the application is not durable; by `exop remove`, too."""
    sending, _ = halves(tmp_path)
    dropped = "events that were not delivered are dropped [exop.wiring] application=tolls events={'reports': 11}"
    for control in (False, True):
        with Platform(name="city", control=control, listen="tcp://127.0.0.1:0") as city:
            city.apply(sending.build())
            eventually(lambda city=city: city.status("tolls")["state"] == "delivering")
            if control:
                left = (
                    "11 events of reports that bank has not acknowledged; connector: disconnected (not connected yet)"
                )
                assert f"tolls: has to deliver {left}" in answer_of("ps")
                removed = exop("remove", "tolls")
                assert removed.stdout == f"tolls: removed; dropped: {left}\n"
                assert dropped in removed.stderr
        assert control or dropped in capsys.readouterr().err
    sending.durable(every=PATIENCE)
    with Platform(name="city", control=False, listen="tcp://127.0.0.1:0", state=tmp_path / "state") as city:
        city.apply(sending.build())
        eventually(lambda: city.status("tolls")["state"] == "delivering")
    forgotten = "tolls: forgotten; dropped: 11 events of reports that bank has not acknowledged\n"
    assert answer_of("remove", "tolls", "--state", tmp_path / "state") == forgotten


def test_a_run_names_the_outbox_for_whose_delivery_it_waits(tmp_path, capsys, monkeypatch):
    """Its sources have ended, and nobody has asked it to stop: it is told once; then two signals stop it."""
    monkeypatch.setattr(watch, "SLOW", 0.0)
    told, stopping = list[str](), Stopping()

    class Reader(View):
        every = 0.0

        def show(self, status):
            told.append(capsys.readouterr().err)
            stopping.count = 2 if "".join(told).count("waiting for") and not told[-1] else 0

    with Platform(name="city", control=False, listen="tcp://127.0.0.1:0") as city:
        city.apply(halves(tmp_path)[0].build())
        run = watch.Watch(city, "tolls", Reader(), stopping, "stop", 0.0)
        assert run.until_the_end()["outcome"] == "stopped"
    waits = "waiting for tolls.reports (11 events that its peer has not acknowledged)"
    assert "".join(told).splitlines() == [f"{waits}: nothing has left for 0 s; Ctrl-C twice stops at once"]
