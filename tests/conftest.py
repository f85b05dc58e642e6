"""Fixtures of the whole test-suite."""

import pytest
from hypothesis import settings

from tests.rig import Rig, threads_leave

# Every run tries the same examples, and a slow moment of the machine fails none of them.
settings.register_profile("exop", deadline=None, derandomize=True)
settings.load_profile("exop")


@pytest.fixture
def rig():
    """The services of a platform; after the test nothing of it runs any more."""
    with threads_leave():
        made = Rig()
        yield made
        made.close()
