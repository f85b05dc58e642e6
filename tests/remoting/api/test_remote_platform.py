"""Connecting to a running platform."""

import pytest

from exop import Platform, connect
from exop.errors import UnknownName


def test_an_address_with_a_scheme_is_reached_by_the_transport_of_that_name(tmp_path):
    """`unix://` is registered through the same hook as a plugin's transport would be."""
    with Platform(state=tmp_path / "state", name="here"), connect(f"unix://{tmp_path}/state/control.sock") as remote:
        assert remote.name == "here"
        assert remote.applications() == []


def test_a_scheme_that_no_plugin_offers_is_told_with_the_known_ones():
    """The error names the schemes there are."""
    with pytest.raises(UnknownName, match="no transport 'carrier-pigeon'; known: unix"):
        connect("carrier-pigeon://coop")
