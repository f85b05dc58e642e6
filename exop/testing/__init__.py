"""Test tools for authors of slets: no platform, no threads of its own, no waiting.

A function slet is a function: call it. `open` makes an instance of a class slet with its ports and memento, `feed` runs
a slet over items, `check_source` tries every cut of an α-slet, `replay` tries an item again on which a running slet has
failed. `check_sharing` is the exception: it runs an application, and finds slets that alter items which others receive.
"""

from exop.testing.checks import check_sharing, check_source
from exop.testing.feeding import feed, replay
from exop.testing.instances import CollectingOutput, GivenInput, collected, open  # noqa: A004 (it opens a slet)

__all__ = ["CollectingOutput", "GivenInput", "check_sharing", "check_source", "collected", "feed", "open", "replay"]
