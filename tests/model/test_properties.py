"""Names and values of service properties."""

from __future__ import annotations

import enum

import pytest

from exop.errors import RegistryError
from exop.model import properties
from exop.model.properties import freeze


class Role(enum.StrEnum):
    """A text enumeration."""

    PI = "pi"


class Level(enum.IntEnum):
    """A number enumeration."""

    HIGH = 3


def test_lists_become_tuples():
    """What is given as a list is kept as a tuple, so that nobody changes it behind the registry's back."""
    given = {"a": [1, 2], "b": "x", "c": 1.5, "d": True, "e": ("x",)}
    assert freeze(given) == {"a": (1, 2), "b": "x", "c": 1.5, "d": True, "e": ("x",)}


def test_enumerations_become_plain_values():
    """Members of StrEnum and IntEnum are kept as the text and the number they stand for."""
    frozen = freeze({"role": Role.PI, "levels": [Level.HIGH]})
    assert frozen == {"role": "pi", "levels": (3,)}
    assert type(frozen["role"]) is str
    assert type(frozen["levels"][0]) is int


@pytest.mark.parametrize("value", [None, {"a": 1}, object(), b"x", [["nested"]], [None]])
def test_what_no_filter_could_compare_is_refused(value):
    """A value of another type raises, naming the property and the types there are."""
    with pytest.raises(RegistryError, match=r"'p' is of type .*str, int, float, bool") as caught:
        freeze({"p": value})
    assert caught.value.property == "p"


def test_every_name_stands_once():
    """No two constants mean the same property."""
    names = [value for key, value in vars(properties).items() if key.isupper() and isinstance(value, str)]
    assert len(names) > 10
    assert len(set(names)) == len(names)
