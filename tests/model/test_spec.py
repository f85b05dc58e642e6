"""What the platform knows of a slet, as a value."""

from __future__ import annotations

import dataclasses

import pytest

from exop import slet
from exop.errors import SettingError, UnknownName
from exop.model.signature import read_function
from exop.model.slet import spec_of
from exop.model.spec import SletSpec


@slet
def average(report: int, *, window: int = 10) -> float:
    """Average the last *window* reports."""
    return report / window


SPEC = spec_of(average)


def test_the_identity_is_what_any_platform_resolves():
    """A slet of a plugin is `plugin:name`; others are named by their module, for people to find."""
    assert SPEC.identity == f"{__name__}:average"
    assert SPEC.of("traffic").identity == "traffic:average"
    assert SPEC.plugin is None


def test_a_slet_read_twice_is_the_same_slet():
    """Gathering the plugins again changes no mesh: equality is by code, name, plugin and policies."""
    assert dataclasses.replace(SPEC) == SPEC
    assert read_function(average) == SPEC
    assert hash(read_function(average)) == hash(SPEC)
    assert SPEC.of("traffic") != SPEC
    assert dataclasses.replace(SPEC, atomic=True) != SPEC
    assert SPEC != "average"


def test_ports_by_name_inputs_first():
    """`ports` lists every port."""
    assert list(SPEC.ports) == ["report", "out"]


def test_settings_are_checked_with_ports_among_the_known_names():
    """A misspelled port given as a setting is told with the ports, too."""
    assert SPEC.configured("averages", {"window": "3"}) == {"window": 3}
    with pytest.raises(UnknownName, match="averages has no port or setting 'reprt'; did you mean 'report'"):
        SPEC.configured("averages", {"reprt": 3}, beside_ports=True)
    with pytest.raises(SettingError, match="averages: the setting 'window' does not fit: expected int, got 'None'"):
        SPEC.configured("averages", {"window": "None"})


def test_a_port_is_no_setting():
    """Where settings stand alone, a port is not among the known names, and is told as what it is."""
    with pytest.raises(UnknownName, match="averages has no setting 'report'; known: window\n") as caught:
        SPEC.configured("averages", {"report": 3})
    assert caught.value.__notes__ == [f"report is a port of {SPEC.identity}: `rewire` connects it elsewhere"]


def test_a_specification_is_its_own():
    """`spec_of` takes a specification, too: what a plugin has made by hand."""
    assert spec_of(SPEC) is SPEC
    assert isinstance(SPEC, SletSpec)
