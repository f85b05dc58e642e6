"""Mementos: a state is a value that the platform can make, copy and carry over."""

from __future__ import annotations

from dataclasses import field
from typing import ClassVar

import pytest

from exop import Memento
from exop.errors import SletError


class Speeds(Memento):
    """A state."""

    by_segment: dict[int, list[float]] = field(default_factory=dict)
    count: int = 0
    limit: ClassVar[int] = 3

    @property
    def known(self) -> int:
        """What is derived is no state."""
        return len(self.by_segment)

    def add(self, segment: int) -> None:
        """Methods are allowed."""
        self.by_segment.setdefault(segment, [])

    @classmethod
    def upgrade(cls, old: Memento) -> Memento:
        """Class methods, too."""
        return cls()


def test_the_platform_can_make_the_first_one():
    """Every field has a default; two mementos share nothing; equal contents are equal."""
    one, other = Speeds(), Speeds()
    one.add(1)
    assert other.by_segment == {}
    assert other == Speeds()
    assert Speeds(count=2).count == 2


def test_a_copy_is_independent():
    """What is done to a copy is not done to the original, however deep."""
    state = Speeds(by_segment={1: [10.0]})
    copied = state.copied()
    copied.by_segment[1].append(20.0)
    assert state.by_segment == {1: [10.0]}
    assert isinstance(copied, Speeds)


def test_a_subclass_adds_fields():
    """A memento may extend another one."""

    class More(Speeds):
        total: float = 0.0

    assert More(count=1, total=2.0).count == 1


WRONG = [
    (
        "(Memento): count: int; name: str",
        "Wrong is no memento: the fields count, name must have a default; the platform makes the first",
    ),
    (
        "(Memento): names: list[str] = []",
        "mutable default <class 'list'> for field names is not allowed: use default_f",
    ),
    ("(Memento): count = 0", "count has no type, so it is no part of the state; write `count: T = …`"),
    ("(Memento, version='2'): n: int = 0", "version='2' is no version of a memento; give a number from 1 on"),
    ("(Memento, verson=2): n: int = 0", "the class has no keyword verson; use version"),
    ("(Speeds): count = 5", "count has no type, so it is no part of the state"),
    ("(Memento): names = field(default_factory=list)", "names has no type, so it is no part of the state"),
]


@pytest.mark.parametrize(("text", "message"), WRONG)
def test_what_could_be_lost_is_refused(text, message):
    """A state that the platform could not make or would not carry over is refused where it is written."""
    with pytest.raises(SletError) as caught:
        exec(f"class Wrong{text}", dict(globals()))
    assert message in str(caught.value)
    assert caught.value.what == "memento"


def test_an_error_of_a_class_beside_it_is_that_error():
    """It is not taken for a wrong keyword."""

    class Beside:
        def __init_subclass__(cls) -> None:
            raise TypeError("not today")

    with pytest.raises(TypeError, match="not today"):
        type("Wrong", (Memento, Beside), {})
