"""Objects and exceptions of user code as text: always bounded and printable, whatever their classes do.

An exception may be any object: `__str__`, `__repr__` and `__getattribute__` may raise, attributes may be read-only,
causes may form a cycle. All reports on user code use these functions. Control characters are escaped.
"""

from __future__ import annotations

import re
import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

#: Held while Python parses, which it also does for the marks below the lines of a traceback: before 3.11.8 and 3.12.2
#: it counts the depth of trees for all threads together, and one of two at the same time may get a `SystemError`.
PARSING: Final = threading.RLock()
#: The longest text of an error, and the longest traceback, that are shown, in characters.
MESSAGE: Final = 1000
TRACEBACK: Final = 20_000
#: Larger groups and longer chains of exceptions are not formatted; of deep recursion, the innermost frames are.
MOST: Final = 200
#: Seconds for a second try to make a text, after an interrupt that may be that of the user.
_AGAIN: Final = 0.2
#: Files whose frames are between a driver and a slet: compiled methods, the runtime, and taps.
_CALLERS: Final = ("<fused ", *(str(Path(__file__).parent / one) for one in ("runtime", "wiring/shadow")))


#: Exceptions of user code, including `sys.exit()`; caught where it runs outside of the handling of items.
RAISED: Final = (Exception, SystemExit, GeneratorExit)

#: Characters that move the cursor, change colours or turn the text direction; not line ends, nor tabulators.
_CONTROL: Final = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
#: Attributes as the interpreter itself reads them: nothing that a class defines runs.
_READ: Final[dict[str, Callable[[BaseException], Any]]] = {
    name: vars(BaseException)[name].__get__ for name in ("__cause__", "__context__", "__traceback__", "__dict__")
}


class Verbatim(str):
    """A text that is its own `repr()`, and so is shown without quotes."""

    __slots__ = ()
    __repr__ = str.__str__


def clean(text: str) -> str:
    """The text with control characters escaped."""
    return _CONTROL.sub(lambda found: found.group().encode("unicode_escape", "surrogatepass").decode(), text)


def json_text(value: object, *, indent: int | None = 2, default: Callable[[Any], Any] | None = None) -> str:
    """A value as JSON for terminals and line-based files; control characters that JSON permits are escaped too."""
    import json

    text = json.dumps(value, indent=indent, ensure_ascii=False, default=default)
    return _CONTROL.sub(lambda found: f"\\u{ord(found.group()):04x}", text)


def indented(text: str) -> str:
    """The text with all lines but the first indented, so that none looks like the line of another event."""
    return clean(text).replace("\n", "\n    ")


def class_of(thing: object) -> str:
    """The name of the object's class."""
    name: str = vars(type)["__name__"].__get__(type(thing))
    return clean(name[:MOST])


def safe_repr(item: object, most: int = 500) -> str:
    """The `repr()` of an item, shortened; if that raises, its class."""
    return _called(repr, item, most, f"{class_of(item)} ")


def message(thing: object) -> str:
    """The `str()` of an exception or other object, shortened; if that raises, the text says so."""
    return _called(str, thing, MESSAGE)


def error_text(error: BaseException) -> str:
    """The class of an exception and its message."""
    return f"{class_of(error)}: {message(error)}"


def add_note(error: BaseException, text: str) -> None:
    """Add a note like `error.add_note()`, also to an error with read-only attributes."""
    if type(notes := _READ["__dict__"](error).setdefault("__notes__", [])) is list:
        notes.append(text)


def notes_of(error: BaseException) -> list[str]:
    """The notes of an exception."""
    notes = _READ["__dict__"](error).get("__notes__")
    return [message(note) for note in notes[:MOST]] if type(notes) is list else []


def traceback_of(error: BaseException, without: type[BaseException] | None = None) -> str:
    """The traceback as Python prints it, without a context of class *without*.

    For an exception that Python cannot print, or only at excessive length: its own traceback without causes.
    """
    try:
        text = _formatted(error, without) if _is_small(error) else _alone(error)
    except BaseException as problem:  # noqa: BLE001 (whatever the classes in the chain do)
        _let_interrupts_pass(problem, lambda: _formatted(error, without))
        text = _alone(error)
    if len(text) > TRACEBACK:  # the middle of a long one tells the least
        half = TRACEBACK // 2
        text = f"{text[:half]}\n… ({len(text) - TRACEBACK} characters) …\n{text[-half:]}"
    return clean(text)


def without_own_frames(error: BaseException) -> None:
    """Remove the platform's own frames, so that the traceback begins in the user's code."""
    trace, own = _READ["__traceback__"](error), None
    while trace is not None and trace.tb_frame.f_code.co_filename.startswith(_CALLERS):
        own = trace  # the last one stays where the platform itself has raised
        trace = trace.tb_next
    if trace is None and own is not None and not own.tb_frame.f_code.co_filename.startswith(_CALLERS[0]):
        trace = own
    BaseException.with_traceback(error, trace)


def frames_of(error: BaseException) -> traceback.StackSummary:
    """Return the frames of the place where the exception was raised, innermost last."""
    return traceback.extract_tb(_READ["__traceback__"](error), limit=-MOST)


def _called(text_of: Callable[[object], str], thing: object, most: int, otherwise: str = "") -> str:
    try:
        text = str.__str__(text_of(thing))  # it may be of a subclass of str with its own methods
    except BaseException as problem:  # noqa: BLE001 (whatever the class does)
        _let_interrupts_pass(problem, lambda: text_of(thing))
        return f"{otherwise}(its {text_of.__name__}() raised {class_of(problem)})"
    return clean(text if len(text) <= most else f"{text[:most]}… ({len(text)} characters)")


def _let_interrupts_pass(problem: BaseException, again: Callable[[], object]) -> None:
    """Raise a Ctrl-C of the user, which only the main thread receives: in another one, *again()* does not raise it."""
    if issubclass(type(problem), KeyboardInterrupt) and threading.current_thread() is threading.main_thread():
        raised = list[BaseException]()

        def called() -> None:
            try:
                again()
            except BaseException as own:  # noqa: BLE001 (whatever the class does)
                raised.append(own)

        thread = threading.Thread(target=called, daemon=True)
        thread.start()
        thread.join(_AGAIN)
        if not (raised and issubclass(type(raised[0]), KeyboardInterrupt)):
            raise problem


def _formatted(error: BaseException, without: type[BaseException] | None) -> str:
    whole = traceback.TracebackException.from_exception(error)
    part: traceback.TracebackException | None = whole
    while part is not None:
        if part.__context__ is not None and part.__context__.exc_type is without:
            part.__context__ = None
        part = part.__cause__ or part.__context__
    with PARSING:
        return "".join(whole.format())


def _alone(error: BaseException) -> str:
    """The traceback without causes and sub-exceptions, without calling code of any class."""
    with PARSING:
        frames = "".join(frames_of(error).format())
    head = f"Traceback (most recent call last):\n{frames}" if frames else ""
    return "\n".join([f"{head}{error_text(error)}", *notes_of(error)]) + "\n"


def _is_small(error: BaseException) -> bool:
    """Whether an exception has few causes and sub-exceptions, since Python formats all of them."""
    seen: set[int] = set()
    left = [error]
    while left and len(seen) <= MOST:
        if id(one := left.pop()) not in seen:
            seen.add(id(one))
            left += [before for name in ("__cause__", "__context__") if (before := _READ[name](one)) is not None]
            if issubclass(type(one), BaseExceptionGroup):
                left += vars(BaseExceptionGroup)["exceptions"].__get__(one)[: MOST + 1]
    return len(seen) <= MOST
