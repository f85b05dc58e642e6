"""What an opening takes is measured, and what the first one will import is read from the code."""

from pathlib import Path
from typing import Self

import pytest

from exop import Application, Platform, slet
from exop.errors import ComponentFailed
from exop.model.mesh import Node
from exop.model.slet import Slet, input_port
from exop.runtime import openings
from exop.runtime.component import Component
from exop.runtime.openings import Opening, Openings, imports_to_open, opens


def helper() -> None:
    """Import what nobody else does."""
    import this_module_is_not_there.at_all  # noqa: F401


class Importing(Slet):
    """Imports in many ways when it is opened."""

    def __enter__(self) -> Self:
        import json  # noqa: F401

        from another_that_is_not_there import something  # noqa: F401

        def later() -> None:
            import one_more_that_is_not_there  # noqa: F401

        self._prepare()
        helper()
        return self

    def _prepare(self) -> None:
        from .siblings_not_there import anything  # noqa: F401

    @input_port
    def item(self, item: int) -> None:
        """Import what is no business of the opening."""
        import not_for_the_opening  # noqa: F401


class Plain(Slet):
    """Opens nothing."""

    @input_port
    def item(self, item: int) -> None:
        """Take one."""


@slet
def function(item: int) -> None:
    """Has nothing to open."""


def spec(thing):
    """The specification of a slet."""
    return thing.__slet__


def test_what_opening_will_import_is_read_from_its_code():
    """Imports of `__enter__`, of its own methods and of functions beside it, in full, unless they are there already."""
    assert sorted(imports_to_open(spec(Importing))) == [
        "another_that_is_not_there",
        "one_more_that_is_not_there",
        "tests.runtime.siblings_not_there",
        "this_module_is_not_there.at_all",
    ]
    assert imports_to_open(spec(Plain)) == []


def test_only_a_class_with_an_opening_of_its_own_opens():
    """Functions, and classes without `__enter__`, have nothing to open."""
    assert [opens(spec(one)) for one in (Importing, Plain, function)] == [True, False, False]


def test_the_last_opening_of_a_slet_is_remembered(monkeypatch):
    """How long it took, and how much of that was computing; an opening that fails is none."""
    clock = iter([10.0, 15.0, 20.0])
    monkeypatch.setattr(openings.time, "perf_counter", lambda: next(clock))
    known, entered = Openings(), list[str]()

    class Broken:
        """A component that opens once."""

        spec = Plain.__slet__
        node = Node("plain", spec)
        computed = 0.5

        def enter(self, seconds: float) -> None:
            """Open, the first time."""
            entered.append("once")
            if len(entered) > 1:
                raise ValueError("no")

    assert known.last(spec(Plain)) is None
    component: Component = Broken()  # type: ignore[assignment]
    known.enter(component)
    assert known.last(spec(Plain)) == Opening(5.0, 0.5)
    with pytest.raises(ComponentFailed, match="no") as failed:
        known.enter(component)
    assert (failed.value.node, type(failed.value.__cause__)) == ("plain", ValueError)
    assert known.last(spec(Plain)) == Opening(5.0, 0.5)


def test_deploying_and_changing_remember_what_they_open(tmp_path: Path):
    """Every way in which a platform opens a slet counts."""
    app = Application("opening")
    app.add("write", "stock:write_lines", item=app.add("numbers", "stock:count_up", to=3), path=tmp_path / "lines")
    with Platform() as platform:
        platform.apply(app.build())
        written = platform.slets()["stock:write_lines"]
        assert platform.components.openings.last(written) is not None
        platform.wait("opening")
