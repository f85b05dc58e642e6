"""Test tools for authors of slets, which need no platform and start no threads.

A function slet can be called like any function. `open` creates an instance of a class slet with its ports and memento,
`feed` runs a slet on items, `check_source` tests the restart of an α-slet after every item, and `replay` processes an
item on which a running slet has failed. Only `check_sharing` runs an application: it finds who alters items of others.
"""

from exop.testing.checks import check_sharing, check_source
from exop.testing.feeding import CollectingOutput, GivenInput, collected, feed, open, replay  # noqa: A004 (it opens a slet)

__all__ = ["CollectingOutput", "GivenInput", "check_sharing", "check_source", "collected", "feed", "open", "replay"]
