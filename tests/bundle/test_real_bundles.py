"""The bundles of this repository do what they say, on a platform."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from exop import Platform
from exop.errors import BundleInUse
from exop.testing import feed
from tests.docs.snippets import ROOT


@pytest.fixture
def platform() -> Iterator[Platform]:
    """A platform on which both are started: `alarms` starts `smoothing`."""
    with Platform() as platform:
        for name in ("smoothing", "alarms"):
            platform.bundles.install(ROOT / "bundles" / name)
        platform.bundles.start("alarms")
        yield platform


def fed(platform: Platform, identity: str, readings: list[float], **settings: Any) -> list[Any]:
    """What a slet gives for some readings."""
    return list(feed(platform.slets()[identity].factory, readings, **settings))


def test_readings_are_smoothed(platform: Platform):
    """By the mean, the median and the level of the last ones."""
    readings = [1.0, 1.0, 10.0, 1.0]
    assert fed(platform, "smoothing@1.0.0:mean", readings, window=2) == [1.0, 1.0, 5.5, 5.5]
    assert fed(platform, "smoothing@1.0.0:median", readings, window=3) == [1.0, 1.0, 1.0, 1.0]
    assert fed(platform, "smoothing@1.0.0:exponential", readings, weight=0.5) == [1.0, 1.0, 5.5, 3.25]


def test_alarms_are_told_once(platform: Platform):
    """When readings go above their bound, and when they come back below the margin."""
    told = fed(platform, "alarms@1.0.0:watch", [1, 5, 6, 4.5, 3], above=4.8, margin=1.0)
    assert [(one.reading, one.on) for one in told] == [(5, True), (3, False)]
    told = fed(platform, "alarms@1.0.0:spikes", [1.0, 1.1, 0.9, 1.0, 1.1, 9.0, 1.0])
    assert [one.reading for one in told] == [9.0]


def test_alarms_keep_smoothing(platform: Platform):
    """What another bundle imports from is not stopped."""
    with pytest.raises(BundleInUse, match=r"the bundle alarms@1.0.0"):
        platform.bundles.uninstall("smoothing")
