"""`check_sharing`: an application run to its end, with a look at what its slets do to the items that they share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from exop.app import Application


def check_sharing(app: Application) -> dict[str, Any]:
    """Run an application whose sources end; no slet may alter an item that other slets get, too.

    Items are compared before and after every call, which takes far longer than most calls.

    Returns:
        The report of the run, as `app.run()` gives it.

    Raises:
        AssertionError: a slet has; the message names it, the channel, the other readers and the change.
        ComponentFailed: a slet could not open, or raised.
    """
    # The other helpers need no platform.
    from exop.platform import Platform
    from exop.wiring.sharing import Sharing

    with Platform() as platform:
        platform.wiring.sharing = Sharing()
        report = app.run(platform)
        found = platform.wiring.sharing.found()
    assert not found, "\n".join(map(str, found))
    return report
