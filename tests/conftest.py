"""Fixtures of the whole test-suite."""

import pytest

from tests.rig import Rig, threads_leave


@pytest.fixture
def rig():
    """The services of a platform; after the test nothing of it runs any more."""
    with threads_leave():
        made = Rig()
        yield made
        made.close()
