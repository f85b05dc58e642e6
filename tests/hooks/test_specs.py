"""The list of hooks: every one documented, typed, and asked somewhere."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest

from exop.hooks import specs

EXOP = Path(specs.__file__).parents[1]
HOOKS = [name for name, one in vars(specs).items() if hasattr(one, f"{specs.PROJECT}_spec")]


def test_the_hooks_there_are():
    """A new hook is added here, and with it to the reference."""
    assert sorted(HOOKS) == [
        "platform_started",
        "platform_stopping",
        "register_builders",
        "register_channels",
        "register_commands",
        "register_functions",
        "register_slets",
        "register_transports",
    ]


@pytest.mark.parametrize("name", HOOKS)
def test_every_hook_has_a_docstring_and_types(name):
    """The specification is the reference's source."""
    hook = getattr(specs, name)
    signature = inspect.signature(hook)
    assert inspect.getdoc(hook)
    assert signature.return_annotation is not signature.empty
    assert all(parameter.annotation is not parameter.empty for parameter in signature.parameters.values())


@pytest.mark.parametrize("name", HOOKS)
def test_every_hook_is_asked_somewhere(name):
    """A hook that nobody asks would be a promise that is not kept."""
    asked = [path for path in EXOP.rglob("*.py") if path.name != "specs.py" and f'"{name}"' in path.read_text()]
    assert asked
