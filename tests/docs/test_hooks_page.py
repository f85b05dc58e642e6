"""The reference of hooks has every hook, in the fixed form, with the right signature."""

from __future__ import annotations

import inspect
import re

import pytest

from exop.hooks import specs
from tests.docs.snippets import ROOT
from tests.hooks.test_specs import HOOKS

PAGE = (ROOT / "docs" / "reference" / "hooks.md").read_text(encoding="utf-8")
SECTIONS = {re.split(r"\W", part, maxsplit=1)[0]: part for part in PAGE.split("\n## ")[1:]}


def heading(name: str) -> str:
    """A hook's heading, as it has to be."""
    signature = inspect.signature(getattr(specs, name))
    parameters = ", ".join(f"{one.name}: {one.annotation}" for one in signature.parameters.values())
    return f"{name}({parameters}) -> {signature.return_annotation}"


def test_every_hook_has_its_section_and_nothing_else_has():
    """What is not documented fails the build; what is not built is not documented."""
    assert set(SECTIONS) == set(HOOKS)


@pytest.mark.parametrize("name", HOOKS)
def test_the_heading_is_the_signature(name):
    """Name, parameters and return type as in the specification."""
    assert SECTIONS[name].splitlines()[0] == heading(name)


@pytest.mark.parametrize("name", HOOKS)
def test_a_section_has_its_fixed_form(name):
    """Each parameter, what to return, when it is called, and one example that implements the hook."""
    section = SECTIONS[name]
    for parameter in inspect.signature(getattr(specs, name)).parameters:
        assert f"\n`{parameter}`\n: " in section
    assert "*Returns*" in section
    assert "*Called*" in section
    assert f"@hookimpl\ndef {name}(" in section
