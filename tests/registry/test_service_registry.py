"""The registry: register, modify, unregister, find."""

from __future__ import annotations

import doctest

import pytest

from exop.errors import FilterSyntaxError, RegistryError, ServiceGone
from exop.model.properties import RANKING
from exop.registry import ServiceRegistry, service_registry


def names(found):
    """The names of services, in their order."""
    return [reference.properties["name"] for reference in found]


@pytest.fixture
def registry():
    """A registry with three channels and a slet."""
    registry = ServiceRegistry()
    for name, host in (("a", "h1"), ("b", "h2"), ("c", "h1")):
        registry.register("Channel", object(), {"name": name, "host": host})
    registry.register(["Slet", "Metered"], object(), {"name": "s", "host": "h1", "ports": [1, 2]})
    return registry


def test_a_reference_shows_what_was_registered(registry):
    """A reference has the identifier, interfaces, service object and properties, identifier and interfaces included."""
    service = object()
    registration = registry.register(["Slet", "Metered"], service, {"role": "pi", "ports": ["x"]})
    reference = registration.reference
    assert reference.service is service
    assert reference.interfaces == ("Slet", "Metered")
    assert reference.id == registration.id
    assert dict(reference.properties) == {
        "role": "pi",
        "ports": ("x",),
        "interface": ("Slet", "Metered"),
        "service.id": registration.id,
    }


def test_identifiers_are_never_used_again(registry):
    """Each service has its own identifier, also after others went."""
    first = registry.register("X", None)
    first.unregister()
    assert registry.register("X", None).id > first.id


def test_update_sets_and_removes_properties(registry):
    """update() sets what is given, removes what is None, keeps the rest; look-ups see it at once."""
    registration = registry.register("X", None, {"name": "x", "state": "installed", "host": "h9"})
    before = registration.reference
    after = registration.update({"state": ["active", "busy"], "host": None})
    assert "host" not in after.properties
    assert after.properties["name"] == "x"
    assert names(registry.find(None, "(state=busy)")) == ["x"]
    assert registry.find(None, "(host=h9)") == registry.find(None, "(state=installed)") == []
    assert before.properties["state"] == "installed"
    assert before == after


def test_a_reference_cannot_be_changed(registry):
    """Neither its properties nor the mapping that was registered reach into the registry."""
    given = {"name": "x"}
    reference = registry.register("X", None, given).reference
    given["name"] = "y"
    assert reference.properties["name"] == "x"
    with pytest.raises(TypeError):
        reference.properties["name"] = "z"


def test_unregister(registry):
    """What is unregistered is not found any more; a second time does nothing; whoever still asks is told."""
    registration = registry.register("X", None, {"name": "x"})
    assert registration.unregister()
    assert not registration.unregister()
    assert registry.find("X") == []
    assert len(registry) == 4
    for ask in (lambda: registration.reference, lambda: registration.update({}), lambda: registry.get(registration.id)):
        with pytest.raises(ServiceGone, match=f"the service {registration.id} is gone"):
            ask()


@pytest.mark.parametrize(
    ("interfaces", "properties"),
    [
        ([], {}),
        ("", {}),
        ("X", {"service.id": 4}),
        ("X", {"interface": "Y"}),
        ("X", {RANKING: "high"}),
        ("X", {"p": {}}),
    ],
)
def test_what_cannot_be_registered_is_refused_whole(registry, interfaces, properties):
    """A wrong registration or modification raises and leaves the registry as it was."""
    registration = registry.register("Y", None, {"name": "y"})
    with pytest.raises(RegistryError):
        registry.register(interfaces, None, {"name": "x", **properties})
    if properties:
        with pytest.raises(RegistryError):
            registration.update({"name": "x", **properties})
    assert registry.find(None, "(name=x)") == []
    assert names(registry.find("Y")) == ["y"]
    assert registration.unregister()


def test_a_query_that_is_no_filter_is_told(registry):
    """Every call that takes text raises FilterSyntaxError for what is no filter, and nothing stays behind."""
    for call in (registry.find, registry.track):
        with pytest.raises(FilterSyntaxError):
            call("X", "(name=")
    with pytest.raises(FilterSyntaxError):
        registry.listen("name", print)


def test_examples_of_the_documentation_run():
    """The examples in the module's docstrings hold."""
    assert doctest.testmod(service_registry).failed == 0
