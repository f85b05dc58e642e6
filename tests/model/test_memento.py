"""Mementos: a state is a value that the platform can make, copy and carry over."""

from __future__ import annotations

from dataclasses import dataclass, field
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


def without_default() -> None:
    """A field without a default."""

    class Wrong(Memento):
        count: int
        name: str


def shared_default() -> None:
    """A default that would be shared."""

    class Wrong(Memento):
        names: list[str] = []  # noqa: RUF012


def without_type() -> None:
    """A value without a type."""

    class Wrong(Memento):
        count = 0


def inherited_without_type() -> None:
    """A changed default without its type."""

    class Wrong(Speeds):
        count = 5


@dataclass
class Inner:
    """A mutable value."""


def field_without_type() -> None:
    """A field() without a type."""

    class Wrong(Memento):
        names = field(default_factory=list)


WRONG = [
    (without_default, "Wrong is no memento: the fields count, name must have a default; the platform makes the first"),
    (shared_default, "mutable default <class 'list'> for field names is not allowed: use default_factory"),
    (without_type, "count has no type, so it is no part of the state; write `count: T = …`"),
    (inherited_without_type, "count has no type, so it is no part of the state"),
    (field_without_type, "names has no type, so it is no part of the state"),
]


@pytest.mark.parametrize(("define", "message"), WRONG, ids=lambda v: getattr(v, "__name__", ""))
def test_what_could_be_lost_is_refused(define, message):
    """A state that the platform could not make or would not carry over is refused where it is written."""
    with pytest.raises(SletError) as caught:
        define()
    assert message in str(caught.value)
    assert caught.value.what == "memento"
