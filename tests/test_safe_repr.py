"""Objects and exceptions of user code as text: whatever their classes do, the text is made, bounded and printable."""

import signal

import pytest

from bench.exceptions import HOSTILE
from exop.safe_repr import (
    add_note,
    error_text,
    indented,
    message,
    notes_of,
    safe_repr,
    traceback_of,
)


@pytest.mark.parametrize("make", HOSTILE.values(), ids=HOSTILE)
def test_any_exception_has_a_text(make):
    """Class, message, notes and traceback are told, within bounds and without control characters."""
    try:
        raise make()
    except BaseException as caught:  # noqa: BLE001 (hostile ones are no `Exception` either)
        error = caught
    add_note(error, "where it was raised")
    for text in (error_text(error), message(error), safe_repr(error), traceback_of(error), *notes_of(error)):
        assert type(text) is str
        assert len(text) < 21_000
        assert "\x1b" not in text
    assert "test_any_exception_has_a_text" in traceback_of(error)


@pytest.mark.parametrize("make", [HOSTILE["frozen"], HOSTILE["closed"]], ids=["frozen", "closed"])
def test_a_note_is_kept_by_what_refuses_it(make):
    """An exception with read-only attributes shows its notes as any other does."""
    error = make()
    add_note(error, "in the slet 'b'")
    assert notes_of(error) == ["in the slet 'b'"]
    assert "in the slet 'b'" in traceback_of(error)


def test_notes_that_are_no_list_stay():
    """What the slet has put there is not replaced."""
    error = ValueError()
    error.__notes__ = 7
    add_note(error, "more")
    assert (error.__notes__, notes_of(error)) == (7, [])


def test_what_cannot_be_shown_is_told():
    """The class of the object, and the class of what its method raised."""
    assert error_text(HOSTILE["closed"]()) == "Closed: (its str() raised SystemExit)"
    assert safe_repr(HOSTILE["closed"]()) == "Closed (its repr() raised SystemExit)"


class Interrupted(Exception):
    """Has a text unless Ctrl-C is pressed meanwhile, or never has one."""

    def __init__(self, *, always: bool) -> None:
        self.always, self.calls = always, 0

    def __str__(self) -> str:
        self.calls += 1
        if self.always:
            raise KeyboardInterrupt
        if self.calls == 1:
            signal.raise_signal(signal.SIGINT)
        return "its text"

    __repr__ = __str__


@pytest.mark.parametrize("text_of", [safe_repr, error_text])
def test_an_interrupt_of_the_main_thread_passes(text_of):
    """Ctrl-C while a text is made is the user's, and not the object's."""
    with pytest.raises(KeyboardInterrupt):
        text_of(Interrupted(always=False))


@pytest.mark.parametrize("text_of", [safe_repr, error_text, traceback_of])
def test_an_interrupt_that_a_class_raises_itself_does_not_end_who_looks(text_of):
    """It is told as every other error of the class."""
    assert "Interrupted" in text_of(Interrupted(always=True))


def test_control_characters_are_escaped():
    """What an item holds cannot move the cursor, nor clear the screen, nor ring."""
    nasty = ValueError("\x1b[2J\x07 a\rb \u202e \x9b line\nline\ttab")
    assert error_text(nasty) == "ValueError: \\x1b[2J\\x07 a\\rb \\u202e \\x9b line\nline\ttab"
    assert "\x1b" not in traceback_of(nasty)


def test_what_is_huge_is_shortened():
    """A message of megabytes is told by its beginning and its length."""
    huge = ValueError("x" * 3_000_000)
    assert len(error_text(huge)) < 1100
    assert "(3000000 characters)" in error_text(huge)


def test_only_the_first_line_begins_a_line():
    """Further lines are indented: they cannot pass for lines of their own."""
    assert indented("one\ntwo\r\nthree") == "one\n    two\\r\n    three"
