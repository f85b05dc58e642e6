"""How a proof is asked for: in code, and on the command line."""

import pytest

from exop.errors import PlanError
from exop.model.meshes.shadow import WITHIN, Shadow


@pytest.mark.parametrize(
    ("text", "items", "seconds", "shown"),
    [
        ("30s", None, 30.0, "30 s"),
        ("0.5s", None, 0.5, "0.5 s"),
        ("1000items", 1000, None, f"1,000 items, within {WITHIN:g} s"),
        ("1item, 2s", 1, 2.0, "1 item, within 2 s"),
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
        ({"items": "3"}, "items is '3' .*not int"),
        ({"items": 1.5}, "items is 1.5 .*not int"),
        ({"items": True}, "items is True .*not int"),
        ({"seconds": "x"}, "seconds is 'x' .*not float"),
        ({"seconds": float("nan")}, "seconds=nan, .* give numbers above 0"),
        ({"items": 5, "slower": "x"}, "slower is 'x' .*not float"),
        ({"items": 5, "compare": 3}, "compare is 3 .*not .*Callable"),
        ({"items": 5, "divert": 3}, "divert is 3 .*not Mapping"),
        ({"items": 5, "divert": {3: 4}}, "divert: the key 3 is 3 .*not str"),
        ({"items": 5, "copy": "no"}, "copy is 'no' .*not bool"),
        ({"items": 5, "allow_no_output": 1}, "allow_no_output is 1 .*not bool"),
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
