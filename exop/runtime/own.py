"""What a slet says of itself by `metrics()`: asked in a thread of its own, since nobody knows how long it takes."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from typing import Any, Final

from exop.model.slet import Slet
from exop.shown import message, shown

#: So long is an answer waited for, in seconds; who looks at all slets waits so long for each one at the most.
PATIENCE: Final = 0.1


class OwnFigures:
    """The figures of one slet's own, as it has told them last."""

    def __init__(self) -> None:
        self._last: Mapping[str, Any] = {}
        self._asking: threading.Thread | None = None
        self._since = 0.0
        self._turn = threading.Lock()

    def ask(self, instance: Any) -> dict[str, Any]:
        """What `metrics()` says now, or said last; one that raises, or does not answer, is told of there."""
        if instance is None or getattr(type(instance), "metrics", None) is Slet.metrics:
            return {}
        with self._turn:
            if self._asking is None or not self._asking.is_alive():
                self._since = time.monotonic()
                self._asking = threading.Thread(target=self._ask, args=(instance,), name="exop figures", daemon=True)
                self._asking.start()
            asking, since = self._asking, self._since
        asking.join(PATIENCE)
        if asking.is_alive():
            return {**self._last, "metrics()": f"has not answered for {time.monotonic() - since:.1f} s"}
        return dict(self._last)

    def _ask(self, instance: Any) -> None:
        try:
            self._last = {message(name): value for name, value in instance.metrics().items()}
        except BaseException as problem:  # noqa: BLE001 (whatever a slet raises: it runs for others here)
            self._last = {"metrics()": f"raised {shown(problem)}"}
