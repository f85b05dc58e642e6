"""The exchange with scripted peers: what becomes of messages that a peer refuses, and of failures in its thread."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from queue import SimpleQueue
from typing import Any
from unittest.mock import Mock

import pytest

from exop.errors import MessageTooLarge, PeerRefused
from exop.hosts.protocol.exchange import Exchange
from exop.hosts.protocol.messages import Ask, Do, Finished, Fragment, Proceed, Ready, Record, Refuse, Report
from tests.rig import PATIENCE, eventually

TOO_LARGE = MessageTooLarge(what="the request", size=2, limit=1, cure="send less at a time")


class Owner:
    """The owner of an exchange, whose peers get every message but those that `refused` raises."""

    def __init__(self) -> None:
        self.sent: SimpleQueue[Any] = SimpleQueue()
        self.refused: Callable[[Any], None] = lambda message: None

    def call(self, peer: str, application: str, message: Any) -> None:
        """Send."""
        self.refused(message)
        self.sent.put(message)

    def tick(self) -> None:
        """Look at no fragments."""


@pytest.fixture
def owner() -> Owner:
    """The owner."""
    return Owner()


@pytest.fixture
def exchange(owner: Owner) -> Iterator[Exchange]:
    """An exchange that is open."""
    found = Exchange("a", owner)  # type: ignore[arg-type]
    found.open()
    yield found
    found.close()


def too_large(kind: type[Any]) -> Callable[[Any], None]:
    """Refuse the messages of a class as too large."""

    def refused(message: Any) -> None:
        if isinstance(message, kind):
            raise TOO_LARGE

    return refused


def test_a_vote_that_is_too_large_is_a_no(owner: Owner, exchange: Exchange):
    """The home gets a message that is short, instead of none until its deadline."""
    owner.refused = too_large(Ready)
    exchange.send("b", "app", Ready("1@b", "a", "cut", "much"))
    assert owner.sent.get(timeout=PATIENCE) == Refuse("1@b", "a", str(TOO_LARGE))


def test_a_step_that_is_too_large_aborts_the_plan(owner: Owner, exchange: Exchange):
    """The reason is that of the message, not that the member does not answer."""
    owner.refused = too_large(Proceed)
    outcome = exchange.begin("app", "1@a", {"b": Fragment()}, prepare=PATIENCE, hold=PATIENCE)
    owner.sent.get(timeout=PATIENCE)
    exchange.receive("app", Ready("1@a", "b", "prepare"))
    ended = outcome.result(PATIENCE)
    assert not ended.commit
    assert ended.reasons == {"b": str(TOO_LARGE)}


def test_a_failure_of_what_is_due_ends_nothing(owner: Owner, exchange: Exchange):
    """The thread goes on after a look at the fragments, or a time-out, that fails."""
    failures = iter([OSError(24, "Too many open files")] * 2)
    owner.tick = Mock(side_effect=lambda: (_ for _ in ()).throw(found) if (found := next(failures, None)) else None)
    outcome = exchange.begin("app", "1@a", {"b": Fragment()}, prepare=PATIENCE, hold=PATIENCE)
    eventually(lambda: owner.tick.call_count > 2, "later looks")
    exchange.receive("app", Refuse("1@a", "b", "no"))
    assert outcome.result(PATIENCE).reasons == {"b": "no"}


def test_a_message_that_is_refused_again_and_again_is_told_once(
    owner: Owner, exchange: Exchange, capsys: pytest.CaptureFixture[str]
):
    """Reports are repeated each second; another reason is told."""
    reasons = iter(["one", "one", "one", "other", "other"])

    def refused(message: Any) -> None:
        if (reason := next(reasons, None)) is not None:
            raise PeerRefused(reason)

    owner.refused = refused
    for _ in range(6):
        exchange.send("b", "app", Report("a"))
    owner.sent.get(timeout=PATIENCE)
    assert capsys.readouterr().err.count("a message is refused") == 2


@pytest.mark.parametrize("durable", [True, False])
def test_a_home_answers_for_the_plans_that_it_knows(owner: Owner, exchange: Exchange, durable: bool):
    """Without a state directory, a plan from before a restart may have been committed."""
    exchange.durable = durable
    exchange.begin("app", "1@a", {"b": Fragment()}, prepare=PATIENCE, hold=PATIENCE)
    owner.sent.get(timeout=PATIENCE)
    for message in (Refuse("1@a", "b", "no"), Ask("0@a", "b"), Ask("1@a", "b")):
        exchange.receive("app", message)
    told = [owner.sent.get(timeout=PATIENCE).plan for _ in range(2 + durable)]
    assert told == ["1@a", *["0@a"] * durable, "1@a"]


def test_a_home_that_is_started_again_denies_no_plan(owner: Owner, exchange: Exchange):
    """Without a state directory, it knows nothing of the plans before."""
    exchange.begin("app", "1@a", {"b": Fragment()}, prepare=PATIENCE, hold=PATIENCE)
    owner.sent.get(timeout=PATIENCE)
    exchange.close()
    exchange.open()
    exchange.begin("app", "2@a", {"b": Fragment()}, prepare=PATIENCE, hold=PATIENCE)
    owner.sent.get(timeout=PATIENCE)
    for message in (Ask("1@a", "b"), Refuse("2@a", "b", "no")):
        exchange.receive("app", message)
    assert owner.sent.get(timeout=PATIENCE).plan == "2@a"


def test_what_comes_before_it_is_open_is_done_then(owner: Owner, exchange: Exchange):
    """Messages of peers that are linked while the platform starts."""
    exchange.close()
    exchange.do(lambda: exchange.send("b", "app", Report("a")))
    assert exchange._thread is None
    exchange.open()
    assert owner.sent.get(timeout=PATIENCE) == Report("a")


def test_a_plan_that_is_finished_is_not_kept(owner: Owner, exchange: Exchange):
    """Its members have all answered: the memory of a home does not grow with its plans."""
    owner.record = Mock()
    exchange.of("app")
    exchange._begun.add("1@a")
    exchange._act("app", exchange.of("app").home, [Record(Finished("1@a"))])
    assert not exchange._begun


@pytest.mark.parametrize("name", ["exop a hosts", "exop to b"])
def test_a_lack_of_threads_passes(owner: Owner, exchange: Exchange, monkeypatch: pytest.MonkeyPatch, name: str):
    """A later message starts the thread."""
    start, failures = threading.Thread.start, iter([RuntimeError("can't start new thread")])

    def started(thread: threading.Thread) -> None:
        if thread.name == name and (failure := next(failures, None)) is not None:
            raise failure
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", started)
    with pytest.raises(RuntimeError):
        exchange.start() if name == "exop a hosts" else exchange.send("b", "app", Report("a"))
    exchange.do(lambda: exchange.send("b", "app", Report("a")))
    assert owner.sent.get(timeout=PATIENCE) == Report("a")


def test_a_participant_without_a_thread_gets_no_step(owner: Owner, exchange: Exchange):
    """The next step gets another participant."""
    made = [Mock(plan="1@a"), Mock(plan="1@a")]
    made[0].start.side_effect = RuntimeError("can't start new thread")
    owner.participant = Mock(side_effect=made)
    machines, do = exchange.of("app"), Do("1@a", "abort")
    with pytest.raises(RuntimeError):
        exchange._act("app", machines.member, [do])
    exchange._act("app", machines.member, [do])
    made[1].give.assert_called_once_with(do)
