"""A platform for the tests of bundles."""

from collections.abc import Iterator

import pytest

from exop import Platform


@pytest.fixture
def platform() -> Iterator[Platform]:
    """A platform without a state directory."""
    with Platform() as platform:
        yield platform
