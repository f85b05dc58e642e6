"""A slet is removed while items flow: what waits for it is dealt with first, or it is said that it goes with it."""

from exop import Application, slet
from tests.change.tools import count_to, endless, in_thread, writing
from tests.rig import Gate, eventually


def test_what_waits_in_front_of_the_last_reader_is_drained(platform):
    """Nobody else would take it: the queue is emptied into the slet that is removed, and a plan says so."""
    seen: list[int] = []
    gate = Gate()

    @slet
    def slow(x: int) -> None:
        gate.pass_through()
        seen.append(x)

    app = Application("app")
    app.add("source", count_to, to=200, out=app.channel("waiting", kind="queue", capacity=500))
    app.add("reader", slow, x="waiting")
    platform.apply(app.build())
    eventually(lambda: platform.deployment("app").channels["waiting"].depth >= 199)
    plan = platform.plan(platform.mesh("app").remove("reader"))
    assert "drain the queue waiting first, while what pushes into it waits" in plan.notes
    assert "no port reads waiting then: its items are dropped" in plan.notes
    with in_thread(plan.apply) as applied:
        gate.open()
        applied.result(20)
    assert len(seen) == 200
    assert sorted(seen) == seen


def test_what_waits_for_a_suspended_reader_goes_with_it_and_that_is_said(platform):
    """It can take nothing; the plan says how many items there are, and the channel is read by nobody."""
    seen: list[int] = []
    app = Application("app")
    app.add("source", endless, out=app.channel("waiting", kind="queue", capacity=50))
    app.add("sink", writing(seen), x="waiting")
    platform.apply(app.build())
    platform.apply(platform.mesh("app").suspend("sink"))
    eventually(lambda: platform.deployment("app").channels["waiting"].depth >= 49)
    plan = platform.plan(platform.mesh("app").remove("sink"))
    assert any(note.startswith("sink can take nothing: what waits in waiting (") for note in plan.notes)
    plan.apply()
