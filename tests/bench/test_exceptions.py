"""The short form of the campaign of hostile exceptions; `python -m bench exceptions` runs more of it."""

from bench.cases import failures
from bench.exceptions import hostile_exception


def test_no_exception_ends_a_driver_loses_or_doubles():
    """Whatever a slet raises, under every policy: what comes out is what the policy promises."""
    assert not failures(hostile_exception, 40)
