"""The price of checkpoints."""

import math

from bench.recovery import Seen, _side


def test_the_items_that_pass_are_counted():
    """Also behind a source that emits punctuations beside its items; the pause of a checkpoint is noted."""
    seen = Seen()
    figure = _side(0.01, 0.1, 0.1, seen)()
    assert math.isfinite(figure)
    assert len(seen.cpu) == len(seen.pauses) == 1
