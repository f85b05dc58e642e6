"""While an application opens, which may take a minute: what others see of it, and what they are told."""

import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from exop import Platform
from exop.cli import main
from exop.cli.commands.serving import Keeper
from exop.cli.report import Stopping
from exop.errors import ComponentFailed, PlanError, StillOpening
from exop.logs import set_up
from exop.remoting.api import service
from exop.remoting.api.connecting import connect
from tests.cli.shell import answer_of, eventually, facts
from tests.rig import PATIENCE, Gate

SLOW = '''
"""A sink that opens when the test lets it."""
from exop import Application, Slet, hookimpl, input_port
from exop.stock.slets import count_up, pass_on
from tests.rig import Gate

GATE = Gate(closed=False)
FAILS = []


class Engine(Slet):
    """Takes its time."""

    def __enter__(self):
        GATE.pass_through()
        if FAILS:
            raise RuntimeError("no engine here")

    def metrics(self):
        raise AssertionError("it is asked before it is open")

    @input_port
    def item(self, item: int) -> None:
        """Take."""


def slow(*, to: int = 3) -> Application:
    """Count into an engine."""
    app = Application("slow")
    app.add("engine", Engine, item=app.add("pass", pass_on, item=app.add("numbers", count_up, to=to)))
    return app


@hookimpl
def register_slets():
    return [Engine]


@hookimpl
def register_builders():
    return [slow]
'''


@pytest.fixture
def slow(tmp_path: Path) -> Path:
    """A package folder with an application that opens slowly."""
    folder = tmp_path / "slow"
    folder.mkdir()
    (folder / "__init__.py").write_text(SLOW)
    return folder


@pytest.fixture
def gate(slow: Path) -> Iterator[Gate]:
    """Keeps its engine from opening, until it is opened."""
    Platform(control=False).load(slow)
    gate = sys.modules["slow"].GATE = Gate()
    yield gate
    gate.open()


@contextmanager
def opening(folder: Path, gate: Gate) -> Iterator[tuple[Platform, Any]]:
    """A platform on which the application is being opened by another thread."""
    with Platform(name="there", control=True) as platform, ThreadPoolExecutor(1) as pool:
        platform.load(folder)
        mesh = sys.modules["slow"].slow().build()
        applied = pool.submit(platform.apply, mesh)
        gate.somebody_waits()
        eventually(lambda: platform.status("slow")["opening"]["opened"] == 2)
        try:
            yield platform, applied
        finally:
            gate.open()


def test_others_see_how_far_it_is(slow, gate, capsys):
    """`ps`, `describe`, `top` and the status tell what is open, what is waited for, and since when."""
    with opening(slow, gate) as (platform, applied):
        found = platform.status()["applications"]["slow"]
        assert (found["state"], found["nodes"]["engine"]["state"]) == ("opening", "opening")
        assert (found["opening"]["opened"], found["opening"]["total"]) == (2, 3)
        assert list(found["opening"]["waiting"]) == ["engine"]
        assert platform.metrics("slow", quantiles=True)["nodes"]["engine"].keys() >= {"items_in", "state", "slet"}
        assert "own" not in platform.metrics("slow")["nodes"]["engine"]
        assert platform.applications() == []
        assert main(["health"]) == 1
        assert capsys.readouterr().out == "not ready: slow: opening 2 of 3\n"
        for command, said in {
            ("ps",): "slow         opening 2 of 3  ",
            ("describe", "slow"): "slow  opening 2 of 3 for ",
            ("top", "--once", "--every", "0.01"): "slow  opening 2 of 3  ",
        }.items():
            out = answer_of(*command)
            assert said in out
            assert "slow.engine: has been opening for " in out
        gate.open()
        applied.result(PATIENCE)
        assert "opening" not in facts("ps")[0]["applications"]["slow"]


def test_commands_say_that_it_is_opening(slow, gate):
    """Also a second apply: exit code 1, what is waited for, what to do; and not that there is no such application."""
    with opening(slow, gate) as (platform, _):
        for command in (
            ["end", "slow"],
            ["resume", "slow.engine"],
            ["configure", "slow.numbers", "to=4"],
            ["item", "list", "slow.engine"],
            ["mesh", "slow", "--format", "toml"],
            ["remove", "slow"],
            ["apply", "./slow", "to=5"],
        ):
            err = answer_of(*command, code=1)
            assert "exop: 'slow' is still opening on the platform 'there': 2 of 3 slets are open, engine since " in err
        with pytest.raises(StillOpening, match="try again when it runs"):
            platform.mesh("slow")
        assert answer_of("resume", "slow").startswith("slow: it is opening: nothing to do, `exop ps` shows how far")


def test_who_waits_for_it_waits_for_its_opening(slow, gate):
    """In the same process and from another one: for its end, or until the time is up."""
    with opening(slow, gate) as (platform, applied), connect("there") as remote, ThreadPoolExecutor(2) as pool:
        assert not platform.wait("slow", 0)
        assert not remote.wait("slow", 0)
        assert remote.applications() == []
        waiting = [pool.submit(one.wait, "slow", PATIENCE) for one in (platform, remote)]
        gate.open()
        assert applied.result(PATIENCE).revision == 1
        assert [one.result(PATIENCE) for one in waiting] == [True, True]


def test_apply_shows_how_far_it_is(slow, gate, monkeypatch, capsys):
    """Not on a terminal there is a line every few seconds, for as long as it takes."""
    monkeypatch.setattr(service, "PATIENCE", 0.01)
    with Platform(name="there", control=True) as platform, ThreadPoolExecutor(1) as pool:
        platform.load(slow)
        applied = pool.submit(main, ["apply", "./slow"])
        gate.somebody_waits()
        err = ""

        def told() -> bool:
            nonlocal err
            err += capsys.readouterr().err
            return err.count("application=slow ready='2 of 3' waiting='engine (") >= 2

        eventually(told)
        gate.open()
        assert applied.result(PATIENCE) == 0
        assert capsys.readouterr().out == "slow runs on there\n"


def test_an_opening_that_fails_is_over(slow, gate):
    """Nobody sees it as opening any more."""
    sys.modules["slow"].FAILS.append(True)
    with opening(slow, gate) as (platform, applied):
        gate.open()
        with pytest.raises(ComponentFailed, match="no engine here"):
            applied.result(PATIENCE)
        assert platform.status()["applications"] == {}
        assert "has no application 'slow'" in answer_of("end", "slow", code=2)


def test_a_platform_that_starts_again_shows_what_it_opens(slow, gate, tmp_path, capsys):
    """It answers meanwhile and logs how far it is; what runs there already can be asked for, changes have to wait."""
    gate.open()
    with Platform(state=tmp_path / "state", control=False) as before:
        before.load(slow)
        before.apply(sys.modules["slow"].slow(to=10**9).build())
    closed = sys.modules["slow"].GATE = Gate()
    set_up()
    platform = Platform(state=tmp_path / "state", name="there")
    with closing(platform), ThreadPoolExecutor(1) as pool:
        started = pool.submit(Keeper(platform, Stopping()).start, [])
        closed.somebody_waits()
        said = ""

        def logged() -> bool:
            nonlocal said
            said += capsys.readouterr().err
            return "opening" in said

        eventually(logged)
        with connect(tmp_path / "state") as remote:
            eventually(lambda: remote.status("slow")["opening"]["opened"] == 2)
            for refused in (remote.bundles.list, lambda: remote.apply_topology("[application]\nname='other'")):
                with pytest.raises((PlanError, StillOpening)):
                    refused()
            closed.open()
            started.result(PATIENCE)
            assert remote.status("slow")["state"] == "running"
