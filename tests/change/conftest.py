"""A platform for every test of a change; nothing of it is left behind."""

import pytest

from exop import Platform
from tests.rig import threads_leave


@pytest.fixture
def platform():
    """A platform without a state directory; after the test all its threads have left and its registry is empty."""
    with threads_leave():
        made = Platform().start()
        before = len(made.registry.find())
        yield made
        for application in made.applications():
            assert made.remove(application), f"a thread of {application} has not left"
        assert len(made.registry.find()) == before, "services are left behind"
        made.close()
