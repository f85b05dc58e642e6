"""The registry against a naive one: for any history, the same answers."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from exop.model.filter import as_filter
from tests.registry.prompt import PromptRegistry

scalars = st.one_of(st.sampled_from(["x", "y", "1", "true"]), st.integers(0, 2), st.booleans(), st.just(1.0))
values = st.one_of(scalars, st.lists(scalars, max_size=3))
properties = st.dictionaries(st.sampled_from("abc"), values, max_size=3)
rankings = st.sampled_from([None, None, 0, 1, -1])
interfaces = st.sampled_from([("P",), ("Q",), ("P", "Q")])
QUERIES = [
    (None, None),
    ("P", None),
    (None, "(a=1)"),
    ("Q", "(a=x)"),
    (None, "(a=true)"),
    (None, "(&(a=x)(b=1))"),
    ("P", "(|(a=x)(b=y)(c=1))"),
    (None, "(!(a=x))"),
    ("P", "(&(a=*)(!(b=2)))"),
    (None, "(b>=1)"),
    (None, "(service.ranking=1)"),
    (None, "(service.id>=3)"),
    ("P", "(interface=Q)"),
    (None, "(c=1.0)"),
    (None, "(c=TRUE)"),
    (None, "(|)"),
]


class Naive:
    """A service as a dictionary; a look-up that asks each of them."""

    def __init__(self):
        self.services = {}

    def find(self, interface, query):
        """The identifiers of what fits, in order."""
        fitting = [
            number
            for number, known in self.services.items()
            if (interface is None or interface in known["interface"]) and as_filter(query).match(known)
        ]
        return sorted(fitting, key=lambda number: (-self.services[number].get("service.ranking", 0), number))


class Histories(RuleBasedStateMachine):
    """Any order of registering, modifying, unregistering, following and letting go."""

    registrations = Bundle("registrations")
    trackers = Bundle("trackers")

    def __init__(self):
        super().__init__()
        self.registry, self.naive, self.open = PromptRegistry(), Naive(), []

    @rule(target=registrations, interfaces=interfaces, properties=properties, ranking=rankings)
    def register(self, interfaces, properties, ranking):
        """Register a service on both sides."""
        given = properties if ranking is None else {**properties, "service.ranking": ranking}
        registration = self.registry.register(interfaces, object(), given)
        self.naive.services[registration.id] = {**given, "interface": interfaces, "service.id": registration.id}
        return registration

    @rule(registration=registrations, changes=properties, ranking=rankings, dropped=st.sampled_from("abc"))
    def modify(self, registration, changes, ranking, dropped):
        """Modify a service on both sides."""
        given = {dropped: None, "service.ranking": ranking, **changes}
        registration.update(given)
        known = {**self.naive.services[registration.id], **given}
        self.naive.services[registration.id] = {name: value for name, value in known.items() if value is not None}

    @rule(registration=consumes(registrations))
    def unregister(self, registration):
        """Unregister a service on both sides."""
        assert registration.unregister()
        del self.naive.services[registration.id]

    @rule(target=trackers, query=st.sampled_from(QUERIES))
    def track(self, query):
        """Follow a query, keeping in `told` what the callbacks say is there."""
        told = {}
        tracker = self.registry.track(
            *query,
            added=lambda service: told.__setitem__(service.id, [*told.get(service.id, []), service]),
            modified=lambda service: told[service.id].__setitem__(0, service),
            removed=lambda service: told.pop(service.id),
        )
        self.open.append((query, tracker, told))
        return tracker

    @rule(tracker=consumes(trackers))
    def let_go(self, tracker):
        """Close a tracker: its callbacks have removed everything."""
        tracker.close()
        (closed,) = [entry for entry in self.open if entry[1] is tracker]
        self.open.remove(closed)
        assert closed[2] == {}

    @invariant()
    def the_same_is_found(self):
        """Every query finds the same services in the same order."""
        for query in QUERIES:
            expected = self.naive.find(*query)
            assert [found.id for found in self.registry.find(*query)] == expected

    @invariant()
    def trackers_show_it(self):
        """Every tracker shows what a look-up finds, and its callbacks have told the same, each service once."""
        for query, tracker, told in self.open:
            expected = self.naive.find(*query)
            assert [reference.id for reference in tracker] == expected
            assert sorted(told) == sorted(expected)
            for (latest,) in told.values():
                assert latest.properties == self.registry.get(latest.id).properties

    def teardown(self):
        """When all is gone, the indexes hold nothing."""
        for _, tracker, _ in self.open:
            tracker.close()
        for number in list(self.naive.services):
            self.registry._unregister(number)
        assert self.registry._services._postings == {}
        assert self.registry._subscriptions._by_value == {}
        assert not self.registry._subscriptions._unconditional


TestHistories = Histories.TestCase
TestHistories.settings = settings(deadline=None, max_examples=80, stateful_step_count=25)
