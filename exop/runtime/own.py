"""A slet's own `metrics()`: bounded in time and size."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sized
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from exop.model.depth import deep_place
from exop.model.slet import Slet
from exop.shown import message, shown

if TYPE_CHECKING:
    from exop.runtime.budget import UserCall
    from exop.runtime.component import Component

#: So long is an answer waited for, in seconds; who looks at all slets waits so long for each one at the most.
PATIENCE: Final = 0.1
#: The bounds of what one slet adds to the status of its platform: figures, characters of each, levels of nesting.
_FIGURES: Final = 200
_LENGTH: Final = 500
_LEVELS: Final = 8


class OwnFigures:
    """One slet's own metrics, as last returned."""

    def __init__(self) -> None:
        self._last: Mapping[str, Any] = {}
        self._asking: UserCall[None] | None = None
        self._turn = threading.Lock()

    def ask(self, component: Component) -> dict[str, Any]:
        """Return the latest answer of `metrics()`; it notes if the call raises, or does not return."""
        instance = component.instance
        if instance is None or getattr(type(instance), "metrics", None) is Slet.metrics:
            return {}
        with self._turn:
            if self._asking is None or self._asking.over:
                self._asking = component.user.begin(component, "reporting figures", partial(self._ask, instance))
            asking = self._asking
        if not asking.wait(PATIENCE):
            return {**self._last, "metrics()": f"has not answered for {asking.seconds:.1f} s"}
        return dict(self._last)

    def _ask(self, instance: Any) -> None:
        try:
            found = list(instance.metrics().items())
            self._last = {_text(name): _bounded(value) for name, value in found[:_FIGURES]}
            if len(found) > _FIGURES:
                self._last["metrics()"] = f"has {len(found)} figures; {_FIGURES} are shown"
        except BaseException as problem:  # noqa: BLE001 (whatever a slet raises: it runs for others here)
            self._last = {"metrics()": f"raised {shown(problem)}"}


def _bounded(value: Any) -> Any:
    """Return the value, or an abbreviated text if it is too long or nested too deeply for the status."""
    if isinstance(value, str):
        return _text(value)
    if value is None or isinstance(value, (bool, float)) or (isinstance(value, int) and value.bit_length() <= _LENGTH):
        return value
    if isinstance(value, Sized) and len(value) > _FIGURES:
        return f"a {type(value).__name__} of {len(value)} values"
    text = shown(value, _LENGTH)
    return value if len(text) < _LENGTH and deep_place(value, _LEVELS) is None else text


def _text(value: Any) -> str:
    text = message(value)
    return text if len(text) <= _LENGTH else f"{text[:_LENGTH]}…"
