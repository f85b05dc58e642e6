"""How a proof is asked for: in code, and on the command line."""

import pytest

from exop.errors import PlanError
from exop.model.meshes.shadow import WITHIN, Shadow


@pytest.mark.parametrize(
    ("text", "items", "seconds", "shown"),
    [
        ("30s", None, 30.0, "30 s"),
        ("0.5s", None, 0.5, "0.5 s"),
        ("1000items", 1000, None, f"1000 items, within {WITHIN:g} s"),
        ("1item, 2s", 1, 2.0, "1 items, within 2 s"),
    ],
)
def test_as_text(text, items, seconds, shown):
    """`30s`, `1000items`, or both."""
    shadow = Shadow.parse(text)
    assert (shadow.items, shadow.seconds, str(shadow)) == (items, seconds, shown)


@pytest.mark.parametrize("text", ["", "30", "s", "-1s", "1.5items", "1000 itemz", "30s;1items"])
def test_other_texts(text):
    """Everything else is refused with what may be written."""
    with pytest.raises(PlanError, match="write 30s, 1000items, or 1000items,30s"):
        Shadow.parse(text)


@pytest.mark.parametrize(
    ("wrong", "problem"),
    [
        ({}, "needs an end"),
        ({"items": 0}, "items=0, .* give numbers above 0"),
        ({"seconds": 0.0}, "seconds=0.0, .* give numbers above 0"),
        ({"seconds": float("inf")}, "seconds=inf, .* give numbers above 0"),
        ({"items": 1, "slower": 0}, "slower=0 .* give numbers above 0"),
        ({"items": "3"}, "items='3' .* give a whole number"),
        ({"items": 1.5}, "items=1.5 .* give a whole number"),
        ({"items": True}, "items=True .* give a whole number"),
        ({"seconds": "x"}, "seconds='x' .* give a number of seconds"),
        ({"seconds": float("nan")}, "seconds=nan, .* give numbers above 0"),
        ({"items": 5, "slower": "x"}, "slower='x' .* give a number"),
        ({"items": 5, "compare": 3}, "compare=3 .* give a function"),
        ({"items": 5, "divert": 3}, "divert=3 .* give values by setting"),
        ({"items": 5, "divert": {3: 4}}, "divert={3: 4} .* give values by setting"),
        ({"items": 5, "copy": "no"}, "copy='no' .* give True or False"),
        ({"items": 5, "allow_no_output": 1}, "allow_no_output=1 .* give True or False"),
    ],
)
def test_what_is_no_shadow(wrong, problem):
    """A missing end, numbers out of range and values of another kind are refused by name, with what is possible."""
    with pytest.raises(PlanError, match=problem):
        Shadow(**wrong)


def test_what_is_diverted():
    """A name alone is meant for every node, one with a node for that."""
    shadow = Shadow(items=1, divert={"path": "a", "b.path": "b", "c.other": 1})
    assert shadow.diverted("x") == {"path": "a"}
    assert shadow.diverted("b") == {"path": "b"}
    assert shadow.diverted("c") == {"path": "a", "other": 1}
