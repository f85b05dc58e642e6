"""A plan over several hosts under every fault: lost, doubled and late messages, crashes, partitions, deadlines."""

import os
import random
import time
from typing import Any

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from exop.hosts.protocol.coordinator import Coordinator
from exop.hosts.protocol.messages import Action, Committed
from tests.hosts.world import Receiver, World

#: How many schedules are tried; each planted mistake shows in one of the first few hundred.
SCHEDULES = 1000


def holds(coordinator: type[Coordinator] = Coordinator, member: type[Receiver] = Receiver) -> Any:
    """The property: one owner of a node, one epoch of a border, all or none, and every hold ends when all heals."""

    @given(members=st.integers(1, 4), schedule=st.binary(min_size=200, max_size=800))
    def check(members: int, schedule: bytes) -> None:
        World(members, coordinator, member).run(schedule)

    return check


def test_all_or_none():
    """Whatever goes wrong and whenever, no invariant breaks, and everything ends once the network heals."""
    settings(max_examples=SCHEDULES)(holds())()


class CommitsBeforeTheLastVote(Coordinator):
    """One vote may be missing."""

    def _advance(self, progress: Any, now: float) -> list[Action]:
        if progress.phase == "cut":
            progress.answered |= {*progress.missing()[:1]}
        return super()._advance(progress, now)


class ReleasesAfterItsYes(Receiver):
    """The deadline ends the hold of a member that has voted yes."""

    def _may_give_up(self, part: Any) -> bool:
        return part.in_doubt or super()._may_give_up(part)


class ComparesNoEpochs(Receiver):
    """Frames of any epoch are let in."""

    def accepts(self, *_: object) -> bool:
        """All of them."""
        return True


class AcknowledgesBeforeItApplies(Receiver):
    """The home is told first, and the decision is recorded and carried out after that."""

    def _carry_out(self, part: Any, settled: Any) -> list[Action]:
        record, do, *told = super()._carry_out(part, settled)
        return [*told, record, do]


@pytest.mark.parametrize(
    "mistake",
    [CommitsBeforeTheLastVote, ReleasesAfterItsYes, ComparesNoEpochs, AcknowledgesBeforeItApplies],
)
def test_a_planted_mistake_is_found(mistake: Any):
    """Each of the mistakes that such a protocol invites breaks an invariant in one of the schedules."""
    planted = holds(mistake) if issubclass(mistake, Coordinator) else holds(member=mistake)
    with pytest.raises(AssertionError):
        settings(max_examples=SCHEDULES, phases=[Phase.generate], database=None)(planted)()


@pytest.mark.parametrize("members", [1, 2, 3, 4])
def test_a_crash_behind_every_action(members: int):
    """One plan, and one process that crashes behind its n-th action, for every process and n: all or none."""
    for crashing in range(members + 1):
        for action in range(40):
            world = World(members, Coordinator, Receiver)
            site = [*world.hosts, world.home][crashing]
            site.fuse = action
            world.begin("a", members - 1)
            while site.up and world.progress():
                world.check()
            survived = site.up
            world.heal()
            if survived:
                assert any(isinstance(one, Committed) for one in world.home.journal)
                break
        else:
            pytest.fail("the plan did not come to its end")


@pytest.mark.skipif("EXOP_STRESS" not in os.environ, reason="a long campaign: EXOP_STRESS=SECONDS[:SEED]")
def test_a_long_campaign():
    """The same property over schedules drawn anew, for as long as is asked for."""
    seconds, _, first = os.environ["EXOP_STRESS"].partition(":")
    seed = int(first or random.SystemRandom().randrange(2**32))
    until = time.monotonic() + float(seconds)
    while time.monotonic() < until:
        chance = random.Random(seed)
        members, schedule = chance.randint(1, 4), chance.randbytes(chance.randint(200, 2000))
        try:
            World(members, Coordinator, Receiver).run(schedule)
        except AssertionError as problem:
            problem.add_note(f"EXOP_STRESS=1:{seed}")
            raise
        seed += 1
