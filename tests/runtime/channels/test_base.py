"""Control items of several producers: the earliest punctuation counts, and the end comes when all have ended."""

import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exop.model.items import EndOfStream, Punctuation
from exop.runtime.channels import base as channel
from exop.runtime.channels.base import ControlMerge

END = EndOfStream()


@pytest.fixture
def merge():
    """A merge of two producers."""
    made = ControlMerge()
    made.expect(["a", "b"])
    return made


def test_who_leaves_counts_no_more(merge):
    """What waited only for a producer that has left goes on when that is known for good."""
    merge.on("a", Punctuation(5))
    assert merge.due_with(["a"])
    assert not merge.due_with(["a", "b"])
    merge.expect(["a"])
    assert merge.take_due() == [Punctuation(5)]
    assert merge.take_due() == []


def test_a_change_that_is_taken_back_has_forgotten_nothing(merge):
    """A producer that left and came back in the same change is where it was; one that comes back later begins anew."""
    merge.on("b", END)
    merge.expect(["a"])
    merge.expect(["a", "b"])
    assert merge.due_with(["b"])
    merge.expect(["a"])
    merge.forget()
    merge.expect(["a", "b"])
    assert not merge.due_with(["b"])


def test_capture_and_restore(merge):
    """A restored merge goes on where the captured one was."""
    merge.on("a", Punctuation(5))
    merge.on("b", END)
    other = ControlMerge()
    other.restore(merge.capture())
    other.expect(["a", "b"])
    assert other.on("a", Punctuation(5)) == []
    assert other.on("a", END) == [END]


@given(st.lists(st.tuples(st.sampled_from("abc"), st.one_of(st.integers(0, 9), st.just("end"))), max_size=40))
def test_for_any_order_punctuations_rise_and_the_end_is_last(story):
    """The last time is the earliest of all open producers, each is said once, the end comes when all have ended."""
    merge = ControlMerge()
    merge.expect("abc")
    said, ended, sent, last = dict.fromkeys("abc", -1), set(), [], -1
    for who, what in story:
        if what == "end":
            ended.add(who)
            sent += merge.on(who, END)
        elif who not in ended:
            said[who] = max(said[who], what)
            sent += merge.on(who, Punctuation(what))
        still = [said[name] for name in "abc" if name not in ended]
        times = [mark.time for mark in sent if isinstance(mark, Punctuation)]
        assert times == sorted(set(times))
        last = max(last, min(still, default=-1))
        assert (times or [-1])[-1] == last
    ends = [mark for mark in sent if mark == END]
    assert len(ends) == (ended == set("abc"))
    assert not ends or sent[-1] == END


def test_marks_leave_in_order_from_many_threads():
    """Several drivers send at once: what leaves rises, and the end is the last thing; nobody waits for another."""
    for _ in range(30):
        merge, sent = ControlMerge(), []
        names = [str(number) for number in range(6)]
        merge.expect(names)
        start = threading.Barrier(len(names))

        def produce(name, merge=merge, sent=sent, start=start):
            start.wait(60)
            for time in range(50):
                merge.relay(name, Punctuation(time), sent.append)
            merge.relay(name, END, sent.append)

        threads = [threading.Thread(target=produce, args=(name,)) for name in names]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert sent[-1] == END
        times = [mark.time for mark in sent[:-1]]
        assert times == sorted(set(times))
        assert times[-1] == 49


def test_what_could_not_be_sent_is_handed_back():
    """A sender that is broken off leaves what was still to be sent, once."""
    merge = ControlMerge()
    merge.expect(["a"])

    def refuse(mark):
        merge.on("nobody", Punctuation(0))
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        merge.relay("a", Punctuation(1), refuse)
    assert merge.left_over() == []
    sent = []
    merge.relay("a", Punctuation(2), sent.append)
    assert sent == [Punctuation(2)]


class Clock:
    """Seconds that pass when the test says so."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        """The seconds of now."""
        return self.now


@pytest.fixture
def clock(monkeypatch):
    """The clock of all merges."""
    made = Clock()
    monkeypatch.setattr(channel, "clock", made)
    return made


def test_who_is_quiet_for_longer_than_it_allows_is_not_waited_for(clock, merge):
    """It is passed over when another punctuation comes, and counts again from its next one on."""
    merge.on("a", Punctuation(5, 10))
    assert merge.on("b", Punctuation(8, 10)) == [Punctuation(5)]
    clock.now = 10
    assert merge.on("b", Punctuation(9, 10)) == []
    clock.now = 11
    assert merge.on("b", Punctuation(20, 10)) == [Punctuation(20)]
    assert merge.on("a", Punctuation(12, 10)) == []  # it is behind, and waited for
    assert merge.on("b", Punctuation(30, 10)) == []
    assert merge.on("a", Punctuation(25, 10)) == [Punctuation(25)]


def test_who_names_no_allowance_is_always_waited_for(clock, merge):
    """Another producer's allowance is that producer's."""
    merge.on("a", Punctuation(5))
    merge.on("b", Punctuation(8, 1))
    clock.now = 100
    assert merge.on("b", Punctuation(9, 1)) == []


def test_who_has_not_punctuated_yet_is_waited_for_as_long_as_any_other_allows(clock):
    """From the first allowance on: it may never say anything."""
    merge = ControlMerge()
    merge.expect("abc")
    merge.on("a", Punctuation(1, 5))
    clock.now = 4
    merge.on("b", Punctuation(1, 7))
    clock.now = 7
    assert merge.on("a", Punctuation(2, 5)) == []
    clock.now = 8
    assert merge.on("a", Punctuation(3, 5)) == [Punctuation(1)]


def test_what_is_merged_is_waited_for_as_long_as_its_inputs(clock, merge):
    """The longest of their allowances; without one of its own if one of them has none."""
    merge.on("a", Punctuation(5, 3))
    assert [mark.idle for mark in merge.on("b", Punctuation(8, 10))] == [10]
    merge.on("b", Punctuation(9))
    assert [mark.idle for mark in merge.on("a", Punctuation(9, 3))] == [None]


def test_a_producer_that_returns_names_no_allowance_until_it_punctuates(merge):
    """A change that is taken back had left it out while another one named an allowance for the first time."""
    merge.on("b", Punctuation(20))
    merge.expect(["a"])
    merge.on("a", Punctuation(6, 10))
    merge.expect(["a", "b"])
    assert [(mark.time, mark.idle) for mark in merge.on("a", END)] == [(20, None)]


def test_allowances_are_captured_and_begin_anew_when_they_are_restored(clock, merge):
    """The time while nothing ran is not held against a producer; a capture of an older release has no allowances."""
    merge.on("a", Punctuation(5, 10))
    merge.on("b", Punctuation(8, 10))
    held = merge.capture()
    clock.now = 1000
    other = ControlMerge()
    other.expect(["a", "b"])
    other.restore(held)
    assert other.on("b", Punctuation(9, 10)) == []
    clock.now = 1011
    assert other.on("b", Punctuation(20, 10)) == [Punctuation(20)]
    other.restore({key: value for key, value in held.items() if key != "allowed"})


def test_a_stream_that_ends_while_another_is_idle(clock, merge):
    """The end waits for all: being passed over is no end."""
    merge.on("a", Punctuation(5, 10))
    clock.now = 100
    assert merge.on("b", Punctuation(8, 10)) == [Punctuation(8)]
    assert merge.on("b", END) == []
    assert merge.on("a", END) == [END]
