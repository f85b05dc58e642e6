"""The ports of a slet under test."""

from __future__ import annotations

import pytest

from exop import Batch, EndOfStream, Punctuation
from exop.runtime.channels.table import TableChannel
from exop.testing import CollectingOutput, GivenInput, collected


def test_an_output_collects_in_order():
    """Items, those of batches one by one, and punctuations in their place; the end is no item."""
    port = CollectingOutput()
    port.push(1)
    port.push_batch(Batch([2, 3]))
    port.push(Punctuation(5))
    assert not port.ended
    port.push(EndOfStream())
    assert (port.items, port.ended, port.wait(0)) == ([1, 2, 3, Punctuation(5)], True, True)
    assert collected(port) is port.items


def test_a_failure_is_kept():
    """`fail` is noted, and nobody waits any longer."""
    port, error = CollectingOutput(), RuntimeError("broken")
    port.fail(error)
    assert (port.error, port.wait(0)) == (error, True)


def test_an_input_gives_what_it_was_given():
    """A pull takes at most so many; iterating takes the rest."""
    port = GivenInput("items", [1, 2, 3])
    assert port.pull(most=2) == [1, 2]
    assert list(port) == [3]
    assert port.pull() == []


def test_an_input_may_show_a_channel():
    """With a channel a pull reads it, and its extended interface is there; without one an error tells how."""
    table = TableChannel("rows", key="id")
    table.entry([]).push({"id": 1})
    port = GivenInput("rows", table)
    assert port.pull() == [{"id": 1}]
    assert port.get(1) == {"id": 1}
    with pytest.raises(AttributeError, match="get: give the port a channel that has it"):
        GivenInput("rows").get(1)
