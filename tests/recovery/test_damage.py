"""One damage to one file of a state directory leads to the same output, or to a refusal by name."""

import pytest

from bench.cases import failures
from bench.damage import damaged_directory

pytestmark = pytest.mark.edges


def test_a_damaged_directory_is_refused_or_goes_on():
    """`python -m bench damage` does more of them."""
    assert not failures(damaged_directory, 8)
