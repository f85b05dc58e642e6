"""Two organisations share a channel without sharing a platform: each runs its own application, and no role is given."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import pytest

from exop import Application, Platform
from exop.errors import PeerRefused
from exop.remoting.authority import create_authority, issue
from exop.stock.slets import WriteLines, count_up
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
