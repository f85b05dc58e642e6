"""Stored mementos: by the class of then, read by the class of now."""

from __future__ import annotations

from dataclasses import field
from typing import Any

import pytest

from exop import Memento
from exop.errors import NotStorable, StoredStateError
from exop.model.slets.stored_memento import dump_memento, header, import_memento, load_memento
from exop.model.values.encoding import encode


class Speeds(Memento):
    """A state."""

    by_segment: dict[int, list[float]] = field(default_factory=dict)
    count: int = 0


class SpeedU(Memento, version=2):
    """The class after an edit that gave it an upgrade."""

    total: float = 0.0

    @classmethod
    def upgrade(cls, old: Any) -> SpeedU:
        """Take over the first version."""
        return cls(total=float(old.count))


class SpeedM(Memento):
    """The class after an edit that added a field."""

    by_segment: dict[int, list[float]] = field(default_factory=dict)
    count: int = 0
    extra: str = "new"


class SpeedF(Memento):
    """The class after an edit that took a field away."""

    count: int = 0


class SpeedO(Memento):
    """The class after an edit of a type."""

    by_segment: dict[str, list[float]] = field(default_factory=dict)
    count: int = 0


class SpeedN(Memento, version=2):
    """The class of a newer release."""

    by_segment: dict[int, list[float]] = field(default_factory=dict)
    count: int = 0


def stored_before(state: Memento, now: type[Memento]) -> bytes:
    """A memento that was stored when the class called *now* was still what that of *state* is."""
    return dump_memento(state, "app.node").replace(f":{type(state).__name__}".encode(), f":{now.__name__}".encode())


def test_it_comes_back():
    """Equal, of its class; its head tells class, version and fields without reading the content."""
    state = Speeds(by_segment={1: [2.0]}, count=3)
    stored = dump_memento(state, "app.node")
    assert load_memento(stored, Speeds, "app.node") == state
    told = header(stored, "app.node")
    assert (told.kind, told.version) == (f"{__name__}:Speeds", 1)
    assert told.fields == {"by_segment": "dict[int, list[float]]", "count": "int"}


def test_the_version_is_given_in_the_class_line():
    """`class X(Memento, version=2)`; 1 by default; a field may be called version."""

    class Own(Memento):
        version: int = 7

    assert (Speeds.__memento_version__, SpeedU.__memento_version__, Own.__memento_version__) == (1, 2, 1)


def test_a_newer_class_takes_over_by_its_upgrade():
    """It is given the old fields, although the old class is gone; where that is still there, the old memento."""
    assert load_memento(stored_before(Speeds(count=3), SpeedU), SpeedU, "app.node") == SpeedU(total=3.0)
    for read in (load_memento, import_memento):
        assert read(dump_memento(Speeds(count=3), "app.node"), SpeedU, "app.node") == SpeedU(total=3.0)


class Wordless(Exception):
    """One that cannot be printed."""

    def __str__(self) -> str:
        raise SystemExit("no words")


class SpeedX(Memento, version=2):
    """The class after an edit with a mistake in its upgrade."""

    @classmethod
    def upgrade(cls, old: Any) -> Any:
        """Raise what the count says, or give what is no memento and cannot be printed."""
        errors = {1: ValueError("no"), 2: SystemExit("leaves"), 3: Wordless()}
        if old.count in errors:
            raise errors[old.count]
        return type("Silent", (), {"__repr__": lambda _: Wordless().__str__()})()


@pytest.mark.parametrize(
    ("count", "told"),
    [
        (1, "upgrade raised ValueError: no"),
        (2, "upgrade raised SystemExit: leaves"),
        (3, "upgrade raised Wordless: "),
        (4, "upgrade returned Silent .*, which is no SpeedX"),
    ],
)
def test_an_upgrade_that_fails_is_an_error_by_name(count, told):
    """Whatever it raises or returns; the same where a state is imported."""
    stored = dump_memento(Speeds(count=count), "app.node")
    with pytest.raises(StoredStateError, match=rf"app\.node cannot be taken over: SpeedX\.{told}"):
        load_memento(stored, SpeedX, "app.node")
    with pytest.raises(StoredStateError, match=rf"app\.node cannot be taken over: SpeedX\.{told}"):
        import_memento(stored, SpeedX, "app.node")


def test_another_class_without_an_upgrade_is_refused():
    """The error says what to write."""
    with pytest.raises(StoredStateError, match=r"SpeedF has no upgrade.*nothing was changed.*classmethod"):
        load_memento(dump_memento(Speeds(), "app.node"), SpeedF, "app.node")


def test_a_newer_memento_is_refused():
    """The code here does not know what it means."""
    with pytest.raises(StoredStateError, match=r"version 2 of Speeds, the code here knows 1"):
        load_memento(stored_before(SpeedN(), Speeds), Speeds, "app.node")


def test_an_edited_class():
    """A new field has its default; a field that is gone, or whose type is another one, is refused by name."""
    state = Speeds(by_segment={1: [2.0]}, count=3)
    assert load_memento(stored_before(state, SpeedM), SpeedM, "app.node") == SpeedM(by_segment={1: [2.0]}, count=3)
    with pytest.raises(StoredStateError, match="has no field 'by_segment'"):
        load_memento(stored_before(state, SpeedF), SpeedF, "app.node")
    with pytest.raises(StoredStateError, match=r"by_segment: the key 1 is 1 \(int\), not str"):
        load_memento(stored_before(state, SpeedO), SpeedO, "app.node")


def test_values_that_never_fitted_their_annotations_come_back():
    """They did not keep the slet from running, and do not keep it from coming back with the same class."""
    state = Speeds(count="three")  # type: ignore[arg-type]
    assert load_memento(dump_memento(state, "app.node"), Speeds, "app.node") == state


def test_what_cannot_be_stored_names_the_node():
    """Of many mementos the one is found."""
    with pytest.raises(NotStorable, match=r"^app\.node: a value of"):
        dump_memento(Speeds(count=object()), "app.node")  # type: ignore[arg-type]


def test_what_is_no_memento_is_told():
    """Damaged, or of another release."""
    for data, told in ((b"\x00", "no memento"), (encode([99]), "form 99"), (b"", "damaged")):
        with pytest.raises(StoredStateError, match=told):
            header(data, "app.node")
