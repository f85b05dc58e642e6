"""The single rules of the protocol: both machines, message by message."""

from typing import Any

import pytest

from exop.hosts.protocol.coordinator import Coordinator
from exop.hosts.protocol.member import Member
from exop.hosts.protocol.messages import (
    Ask,
    Committed,
    Conflict,
    Decision,
    Did,
    Do,
    Ended,
    Fragment,
    NotRecorded,
    Prepared,
    Proceed,
    Propose,
    Ready,
    Record,
    Refuse,
    Send,
    Settled,
)

PROPOSAL = Propose("p", "home", "change", {"n": 3}, ("other",), prepare=60.0, hold=2.0)


def voted(member: Member | None = None) -> Member:
    """A member that has voted yes."""
    member = member or Member("m")
    for message in (
        PROPOSAL,
        Did("p", "prepare"),
        Proceed("p", "home", "hold"),
        Did("p", "hold"),
        Proceed("p", "home", "cut"),
    ):
        member.receive(message, 0.0)
    member.receive(Did("p", "cut", handed="state"), 0.0)
    assert member.in_doubt == "p"
    return member


def to(name: str, actions: Any) -> list[Any]:
    """The messages to one receiver."""
    return [one.message for one in actions if isinstance(one, Send) and one.to == name]


def test_a_commit_in_its_steps():
    """The home: prepare, hold, cut, the record, the decision; forgotten when it is applied."""
    home = Coordinator("home")
    fragments = {"a": Fragment("x", ("n",)), "b": Fragment("y", ("n",), wave=1)}
    proposed = home.begin("p", fragments, 0.0, prepare=9, hold=2)
    assert [one.change for name in "ab" for one in to(name, proposed)] == ["x", "y"]
    assert home.receive(Ready("p", "a", "prepare"), 0.5) == []
    assert home.receive(Ready("p", "b", "prepare"), 0.5) == [
        Send("a", Proceed("p", "home", "hold")),
        Send("b", Proceed("p", "home", "hold")),
    ]
    home.receive(Ready("p", "b", "hold"), 0.5)
    assert home.receive(Ready("p", "a", "hold"), 0.5) == [Send("a", Proceed("p", "home", "cut"))]
    assert home.receive(Ready("p", "a", "cut", 7), 0.5) == [Send("b", Proceed("p", "home", "cut", {"a": 7}))]
    record, *told = home.receive(Ready("p", "b", "cut"), 0.5)
    assert record == Record(Committed("p", ("a", "b"), {"n": 1}))
    assert told == [*(Send(name, Decision("p", "home", commit=True)) for name in "ab"), Ended("p", commit=True)]
    home.receive(Ready("p", "a", "commit"), 0.5)
    home.receive(Ready("p", "b", "commit"), 0.5)
    assert home.due is None


def test_a_record_that_cannot_be_written_aborts():
    """The commit point was not reached: the members are told to undo, and no epoch has moved on."""
    home = Coordinator("home")
    home.begin("p", {"m": Fragment(fences=("n",))}, 0.0, prepare=9, hold=2)
    for message in (Ready("p", "m", "prepare"), Ready("p", "m", "hold"), Ready("p", "m", "cut")):
        home.receive(message, 0.0)
    told, ended = home.receive(NotRecorded("p", "the disk is full"), 0.0)
    assert told == Send("m", Decision("p", "home", commit=False))
    assert ended == Ended("p", commit=False, reasons={"home": "the disk is full"})
    assert home.epochs["n"] == 0


def test_the_deadline_names_those_who_are_late():
    """Prepare and hold have a time limit each; the hold and the cut have one together."""
    home = Coordinator("home")
    home.begin("p", {"a": Fragment(), "b": Fragment()}, 0.0, prepare=9, hold=2)
    home.receive(Ready("p", "a", "prepare"), 8.0)
    *_, ended = home.timeout(9.0)
    reasons = {"home": "no answer to prepare from b within 9 s"}
    assert ended == Ended("p", commit=False, reasons=reasons, late=("b",))
    home.begin("q", {"a": Fragment()}, 10.0, prepare=9, hold=2)
    home.receive(Ready("q", "a", "prepare"), 11.0)
    home.receive(Ready("q", "a", "hold"), 12.0)
    assert home.due == 13.0
    assert home.receive(Ready("q", "a", "cut"), 13.0)[1] == Ended(
        "q", commit=False, reasons={"home": "no answer to cut from a within 2 s"}, late=("a",)
    )


def test_plans_over_one_node_take_turns():
    """A plan over a node that another plan has not settled is refused at once."""
    home = Coordinator("home")
    home.begin("p", {"a": Fragment(fences=("n",))}, 0.0, prepare=9, hold=2)
    (ended,) = home.begin("q", {"b": Fragment(fences=("n",))}, 0.0, prepare=9, hold=2)
    assert ended == Ended("q", commit=False, reasons={"home": "the last plan of n, p, is not settled on all hosts yet"})


def test_before_its_yes_a_member_aborts_alone():
    """At its deadline it undoes what it has done, and says no, also later."""
    member = Member("m")
    for message in (PROPOSAL, Did("p", "prepare"), Proceed("p", "home", "hold"), Did("p", "hold")):
        member.receive(message, 0.0)
    undo, vote = member.timeout(2.0)
    assert undo == Do("p", "abort", "change")
    assert vote == Send("home", Refuse("p", "m", "hold has taken too long"))
    member.receive(Did("p", "abort"), 2.0)
    assert to("home", member.receive(Proceed("p", "home", "cut"), 2.0)) == [vote.message]  # type: ignore[union-attr]
    assert to("home", member.receive(PROPOSAL, 2.0)) == [vote.message]  # type: ignore[union-attr]


def test_an_old_epoch_is_refused():
    """A proposal may be newer than what is known here, not older."""
    member = voted()
    member.receive(Decision("p", "home", commit=True), 0.0)
    member.receive(Did("p", "commit"), 0.0)
    assert member.epochs["n"] == 4
    late = Propose("late", "home", "change", {"n": 3}, (), prepare=60.0, hold=2.0)
    (refused,) = member.receive(late, 0.0)
    assert isinstance(refused, Send)
    assert refused.to == "home"
    assert isinstance(refused.message, Refuse)
    assert refused.message.reason.startswith("n: another plan was committed since this one was made")


def test_one_plan_at_a_time():
    """A member that has not settled a plan refuses others, by name."""
    other = Propose("q", "home", "change", {}, (), prepare=60.0, hold=2.0)
    reason = "the plan p is not settled here; try again, or see `exop ps --on m`"
    assert voted().receive(other, 0.0) == [Send("home", Refuse("q", "m", reason))]


@pytest.mark.parametrize("then", ["settled", "late", "aborted"])
def test_a_plan_waits_until_the_outcome_of_the_last_one_is_carried_out(then: str):
    """A member that still undoes a plan begins the next one then, unless that takes too long."""
    member = voted()
    member.receive(Decision("p", "home", commit=False), 0.0)
    other = Propose("q", "home", "change", {"n": 3}, (), prepare=60.0, hold=2.0)
    assert member.receive(other, 1.0) == []
    assert member.receive(other, 2.0) == []  # the home repeats it
    assert member.due == 3.0
    if then == "late":
        (refused,) = member.timeout(3.0)
        assert isinstance(refused, Send)
        assert isinstance(refused.message, Refuse)
        assert refused.message.plan == "q"
        assert member.due is None
    if then == "aborted":
        assert member.receive(Decision("q", "home", commit=False), 2.0) == []
    begun = [Do("q", "prepare", "change")] if then == "settled" else []
    assert member.receive(Did("p", "abort"), 2.5) == begun
    assert member.plan == ("q" if begun else None)


@pytest.mark.parametrize("decision", [True, False])
@pytest.mark.parametrize("commit", [True, False])
def test_a_human_resolves(commit: bool, decision: bool):
    """A member in doubt does what a human decides; a home that decides otherwise is a conflict, which is reported."""
    member = voted()
    assert member.resolve("q", commit=commit) == []
    record, do, *rest = member.resolve("p", commit=commit)
    assert record == Record(Settled("p", commit, {"n": 4} if commit else {}, by_hand=True))
    assert do == Do("p", "commit" if commit else "abort", "change", "state")
    told = [Send("home", Ask("p", "m"))]
    assert not [one for one in rest if isinstance(one, Send)]  # the home would forget a commit
    member.receive(Did("p", "commit" if commit else "abort"), 0.0)
    assert member.receive(Ask("p", "other"), 0.0) == told  # until the home answers
    assert member.receive(Ask("p", "other"), 0.0) == []
    assert member.timeout(1.0) == told
    assert member.receive(Decision("p", "other", commit=False), 1.0) == []  # only the home was asked
    answers = member.receive(Decision("p", "home", commit=decision), 1.0)
    assert (Conflict("p", resolved=commit) in answers) == (commit != decision)
    agreed = Record(Settled("p", commit, {"n": 4} if commit else {}))  # after a restart, nobody is asked again
    assert (agreed in answers) == (commit == decision)
    assert (Send("home", Ready("p", "m", "commit")) in answers) == decision
    assert member.due is None
    assert member.epochs["n"] == (3 + decision if commit else 0)
    assert to("other", member.receive(Ask("p", "other"), 1.0)) == [Decision("p", "m", commit=decision)]


def test_an_outcome_that_cannot_be_recorded_is_recorded_later():
    """Nothing is acknowledged or released before; the yes itself is taken back if it cannot be recorded."""
    member = voted()
    member.receive(Decision("p", "home", commit=True), 0.0)
    assert member.receive(NotRecorded("p", "the disk is full"), 0.0) == []
    assert member.due == 1.0
    assert [type(one) for one in member.timeout(1.0)] == [Record, Do, Send]
    unsure = voted()
    undo, no = unsure.receive(NotRecorded("p", "the disk is full"), 0.0)
    assert undo == Do("p", "abort", "change")
    assert to("home", [no]) == [Refuse("p", "m", "the disk is full")]


def test_others_than_the_participants_decide_nothing():
    """A plan in doubt is settled by its home or another member; only its members vote."""
    member = voted()
    assert member.receive(Decision("p", "stranger", commit=True), 0.0) == []
    assert member.in_doubt == "p"
    assert Record(Settled("p", True, {"n": 4})) in member.receive(Decision("p", "other", commit=True), 0.0)
    home = Coordinator("home")
    home.begin("p", {"a": Fragment("x", ("n",))}, 0.0, prepare=9, hold=2)
    for message in (Refuse("p", "stranger", "no"), Ready("p", "stranger", "prepare", "more")):
        assert home.receive(message, 0.5) == []
    assert home.receive(Ready("p", "a", "prepare"), 0.5) == [Send("a", Proceed("p", "home", "hold"))]


def test_a_vote_keeps_the_epochs_of_the_plans_before():
    """Its record replaces theirs: after a restart, and an abort, an older plan is still refused."""
    member = Member("m")
    member.recover([Prepared(PROPOSAL), Settled("p", False, {})], 0.0)
    (refused,) = member.receive(Propose("old", "former", "change", {"n": 2}, (), prepare=60.0, hold=2.0), 0.0)
    assert isinstance(refused, Send)
    assert isinstance(refused.message, Refuse)
