"""Trackers and listeners: what they see, and in which order."""

from __future__ import annotations

import logging

import pytest

from exop.errors import RegistryError
from exop.registry import Change
from tests.registry.prompt import PromptRegistry


@pytest.fixture
def registry():
    """An empty registry."""
    return PromptRegistry()


class Story:
    """Writes down what a tracker tells."""

    def __init__(self):
        self.lines = []
        self.callbacks = {
            word: lambda reference, word=word: self.lines.append(f"{word} {reference.properties['name']}")
            for word in ("added", "modified", "removed")
        }


def test_a_tracker_starts_with_what_is_present_and_ends_with_what_is_left(registry):
    """The callbacks begin with the present services, in order, follow what happens, and close with `removed`."""
    first = registry.register("X", None, {"name": "a", "up": True})
    registry.register("X", None, {"name": "b", "service.ranking": 1, "up": True})
    story = Story()
    with registry.track("X", "(up=true)", **story.callbacks) as tracker:
        assert story.lines == ["added b", "added a"]
        third = registry.register("X", None, {"name": "c", "up": False})
        third.update({"up": True})
        first.update({"load": 3})
        first.update({"up": False})
        assert [reference.properties["name"] for reference in tracker] == ["b", "c"]
    third.update({"up": False})
    assert story.lines == ["added b", "added a", "added c", "modified a", "removed a", "removed b", "removed c"]


def test_a_tracker_shows_the_services_in_order(registry):
    """Contents, service objects and the first one are there without any callback, and always current."""
    one, two = object(), object()
    with registry.track("X") as tracker:
        assert tracker.first is None
        low = registry.register("X", one)
        high = registry.register("X", two, {"service.ranking": 3})
        assert [found.service for found in tracker] == [two, one]
        assert tracker.first == high.reference
        assert tracker.references[1] == low.reference
        assert len(tracker) == 2
        high.update({"service.ranking": -3})
        assert [found.service for found in tracker] == [one, two]
        assert tracker.references[1].properties["service.ranking"] == -3
        high.unregister()
        assert [found.service for found in tracker] == [one]
    assert not tracker


def test_a_listener_hears_how_a_service_comes_to_fit_and_ceases_to(registry):
    """An event says what a change means to the filter, with the service as it is and as it was."""
    registry.register("X", None, {"name": "before"})
    heard = []
    subscription = registry.listen("(state=active)", heard.append)
    service = registry.register("X", None, {"name": "s", "state": "installed"})
    service.update({"state": "active"})
    service.update({"name": "t"})
    service.update({"state": "stopped"})
    service.update({"state": "active"})
    service.unregister()
    subscription.close()
    registry.register("X", None, {"state": "active"})
    assert [event.change for event in heard] == [
        Change.ADDED,
        Change.MODIFIED,
        Change.REMOVED,
        Change.ADDED,
        Change.REMOVED,
    ]
    assert heard[1].before.properties["name"] == "s"
    assert heard[1].service.properties["name"] == "t"
    assert heard[2].service.properties["state"] == "stopped"
    assert heard[2].before.properties["state"] == "active"
    assert heard[4].service.properties["state"] == "active"


@pytest.mark.parametrize(
    "query",
    [None, "(name=x)", "(|(name=x)(host=h2))", "(!(name=y))", "(&(name=x)(tags=b))", "(n=7)", "(n>=7)", "(ok=TRUE)"],
)
def test_every_kind_of_filter_hears(registry, query):
    """However a filter is indexed, its listener hears of a service that fits, once, and not of one that does not."""
    heard = []
    with registry.listen(query, heard.append):
        made = registry.register("X", None, {"name": "x", "host": "h2", "tags": ["a", "b"], "n": 7, "ok": True})
        assert len(heard) == 1
        made.unregister()
        assert len(heard) == 2
        registry.register("X", None, {"name": "y", "host": "h3", "n": 6, "ok": False})
        assert len(heard) == (3 if query is None else 2)


def test_listeners_are_called_in_the_order_in_which_they_came(registry):
    """Of several listeners the oldest hears first, whatever their filters."""
    heard = []
    for number, query in enumerate(("(a=1)", None, "(b=2)", "(a=1)", "(c>=1)")):
        registry.listen(query, lambda event, number=number: heard.append(number))
    registry.register("X", None, {"a": 1, "b": 2, "c": 3})
    assert heard == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("error", [ZeroDivisionError("no"), SystemExit("no"), KeyboardInterrupt("no")], ids=repr)
def test_a_failing_listener_is_logged_and_the_others_go_on(registry, caplog, error):
    """What a listener raises reaches neither who registers nor the next listener; the log has it with its traceback."""
    heard = []

    def fail(event):
        raise error

    registry.listen(None, fail)
    registry.listen(None, heard.append)
    with caplog.at_level(logging.ERROR, "exop.registry"):
        registry.register("X", None)
    assert len(heard) == 1
    assert f"{type(error).__name__}: no" in caplog.text


def test_what_a_listener_changes_is_told_after_what_it_hears(registry):
    """A listener may use the registry; every listener still hears all events in the same order."""
    heard = []

    def answer(event):
        heard.append(("first", event.service.properties["name"]))
        if event.service.properties["name"] == "a":
            registry.register("X", None, {"name": "b"})
            assert registry.find(None, "(name=b)")

    registry.listen(None, answer)
    registry.listen(None, lambda event: heard.append(("second", event.service.properties["name"])))
    registry.register("X", None, {"name": "a"})
    registry.settle(60)
    assert heard == [("first", "a"), ("second", "a"), ("first", "b"), ("second", "b")]


def test_a_listener_may_close_itself_and_others(registry):
    """What is closed hears nothing more, not even what was under way; closing twice does nothing."""
    heard = []

    def once(event):
        heard.append("once")
        mine.close()
        other.close()
        other.close()

    mine = registry.listen(None, once)
    other = registry.listen(None, lambda event: heard.append("other"))
    registry.register("X", None)
    registry.register("X", None)
    assert heard == ["once"]


def test_a_listener_cannot_wait_for_itself(registry, caplog):
    """settle() inside a listener raises instead of waiting for ever; outside it tells that all was delivered."""
    with registry.listen(None, lambda event: registry.settle()), caplog.at_level(logging.ERROR, "exop.registry"):
        registry.register("X", None)
    assert RegistryError.__name__ in caplog.text
    assert registry.settle(timeout=60)
