"""The registry bench: its floor is right, and its names are those of the design."""

from __future__ import annotations

from bench import registry


def test_the_floor_finds_what_the_registry_finds():
    """The plain dict index gives the same services for the same terms, also after some went."""
    ours = registry.fill(registry.ServiceRegistry(), registry.into_registry, 50)
    floor = registry.fill(registry.DictIndex(), registry.into_index, 50)
    for gone in (1, 20, 50):
        ours._unregister(gone)
        floor.unregister(gone)
    for terms in ((("kind", "slet"),), (("kind", "slet"), ("host", "h3")), (("name", "ch-0"),), (("name", "no"),)):
        text = f"(&{''.join(f'({name}={value})' for name, value in terms)})"
        assert floor.find(terms) == [found.id for found in ours.find(None, text)]


def test_the_results_have_the_names_of_the_design(monkeypatch):
    """One small run gives each documented name once, with a value, a ratio and its pairs."""
    monkeypatch.setattr(registry, "timed", lambda block: lambda: (block(3), 1.0)[1])
    results = {result.name: result for result in registry.measure(services=20, rounds=2)}
    assert {"registry/lookup/10", "registry/lookup/20", "registry/register", "registry/register/100-listeners"} <= set(
        results
    )
    assert all(result.ratio is not None and result.against for result in results.values())
