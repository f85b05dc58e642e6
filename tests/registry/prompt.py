"""A registry whose changes return after their listeners: what these have heard can be compared at once."""

from contextlib import suppress
from typing import Any

from exop.errors import RegistryError
from exop.registry import ServiceRegistry
from tests.rig import PATIENCE


class PromptRegistry(ServiceRegistry):
    """Waits behind every change until it is delivered, unless a listener makes it."""

    def register(self, *given: Any) -> Any:
        """Offer a service."""
        return self._delivered(super().register(*given))

    def track(self, *given: Any, **callbacks: Any) -> Any:
        """Follow services."""
        return self._delivered(super().track(*given, **callbacks))

    def _close(self, *given: Any) -> None:
        self._delivered(super()._close(*given))  # type: ignore[func-returns-value]

    def _modify(self, *given: Any) -> Any:
        return self._delivered(super()._modify(*given))

    def _unregister(self, *given: Any) -> Any:
        return self._delivered(super()._unregister(*given))

    def _delivered(self, result: Any) -> Any:
        with suppress(RegistryError):  # a listener makes it
            self.settle(PATIENCE)
        return result
