"""What is asked for in a wrong way is refused before anything happens."""

import math

import pytest

from exop import Platform
from exop.errors import PlanError, SettingError
from tests.change.tools import chain, count_to, endless, plain, plain_too, writing


@pytest.mark.parametrize("timeout", [math.inf, 1e300, math.nan, -1, "x", True], ids=repr)
def test_a_timeout_that_is_none(timeout):
    """The value is named, nothing is deployed, and nothing is changed."""
    with Platform() as platform:
        mesh = chain("app", endless, plain, writing([])).build()
        with pytest.raises(SettingError, match="apply: the setting 'timeout' does not fit: .* is no number of seconds"):
            platform.apply(mesh, timeout=timeout)
        assert platform.applications() == []
        plan = platform.plan(platform.apply(mesh).replace("b", plain_too))
        with pytest.raises(SettingError, match="'timeout'"):
            plan.apply(timeout=timeout)
        assert platform.mesh("app").revision == 1


@pytest.mark.parametrize("ask", ["apply", "plan"])
@pytest.mark.parametrize("given", [3, "app", None], ids=repr)
def test_what_is_no_mesh(ask, given):
    """What is meant is said, with where to get it."""
    with Platform() as platform, pytest.raises(PlanError, match=rf"{ask} takes a mesh, as app.build\(\)"):
        getattr(platform, ask)(given)


def test_waiting_for_no_time():
    """A time that is over is one to wait for; what is no time is none."""
    with Platform() as platform:
        platform.apply(chain("app", count_to, plain, writing([])).build())
        for timeout in ("x", math.nan):
            with pytest.raises(SettingError, match="wait"):
                platform.wait("app", timeout)
        assert platform.wait("app")
        assert platform.wait("app", -1.0)
