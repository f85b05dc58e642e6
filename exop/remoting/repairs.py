"""The requests about the failed items of a running platform: list them, write one to a file, try them again."""

from __future__ import annotations

from typing import Any, Protocol

from exop.remoting.declare import Request, operation
from exop.runtime.deployment import Deployment
from exop.runtime.failure import failed_item, failed_items, retry_dead_letters


class Repairing(Protocol):
    """The interface that a platform offers for them."""

    def deployment(self, application: str) -> Deployment: ...  # noqa: D102 (as `Platform` has it)


class FailedItems(Request, frozen=True):
    """Names a node whose failed items are meant."""

    application: str
    node: str


class OneFailedItem(Request, frozen=True):
    """Names one of them: a dead letter by its number from 1, or the kept item."""

    application: str
    node: str
    dead_letter: int | None = None


#: So many dead letters are listed.
LISTED = 100


class RepairOperations:
    """The operations of one platform that are about failed items."""

    def __init__(self, platform: Repairing) -> None:
        self._platform = platform

    @operation
    def failed_items(self, request: FailedItems) -> dict[str, Any]:
        """The kept item and the first dead letters of a node, in words."""
        deployment = self._platform.deployment(request.application)
        kept, letters = failed_items(deployment, request.node)
        return {
            "kept": kept.summary() if kept is not None else None,
            "dead_letters": [letter.summary() for letter in letters[:LISTED]],
            "count": len(letters),
            "dropped": deployment.components[request.node].trouble.dead.dropped,
        }

    @operation
    def failed_item(self, request: OneFailedItem) -> bytes:
        """One failed item as the content of a file."""
        deployment = self._platform.deployment(request.application)
        return failed_item(deployment, request.node, request.dead_letter).to_bytes()

    @operation
    def retry_dead_letters(self, request: FailedItems) -> int:
        """Have the dead letters of a node tried again."""
        return retry_dead_letters(self._platform.deployment(request.application), request.node)
