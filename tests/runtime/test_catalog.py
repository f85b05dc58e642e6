"""The offers of plugins: a bad one is reported, and the others stay available."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

import pytest

from exop import Application, Channel, slet
from exop.errors import UnknownName
from exop.hooks import Plugins, hookimpl
from exop.runtime.catalog import Catalog, in_use, known_slets
from exop.runtime.channels.base import Outlet
from exop.runtime.dataflow.entry import NOWHERE, Entry


@slet
def double(item: int) -> int:
    """A slet."""
    return item * 2


@slet(name="double")
def also_double(item: int) -> int:
    """Another slet of the same name."""
    return item + item


class MyKind(Channel):
    """A channel kind."""

    kind: ClassVar[str] = "mine"

    def entry(self, outlets: Sequence[Outlet]) -> Entry:
        """Nowhere."""
        return NOWHERE


class OtherQueue(MyKind):
    """A kind whose name is taken."""

    kind: ClassVar[str] = "queue"


def plugin(**answers: Any) -> object:
    """A plugin that answers hooks with what is given; exceptions are raised."""

    def answering(answer: Any):
        def hook() -> Any:
            if isinstance(answer, BaseException):
                raise answer
            return answer

        return hookimpl(hook)

    return type("Given", (), {name: staticmethod(answering(answer)) for name, answer in answers.items()})()


def gathered(**plugins: object) -> Catalog:
    """The catalog of these plugins, the built-ins first."""
    found = Plugins()
    found.discover()
    for name, one in plugins.items():
        found.register(name, one)
    catalog = Catalog(found)
    catalog.gather()
    return catalog


def test_offers_have_the_name_of_their_plugin():
    """Slets are `plugin:name`; kinds have their own name; builders stand by plugin."""

    def build() -> None:
        """A builder."""

    catalog = gathered(mine=plugin(register_slets=[double], register_channels=[MyKind], register_builders=[build]))
    assert catalog.slets["mine:double"].plugin == "mine"
    assert catalog.kinds["mine"] is MyKind
    assert catalog.builders()["mine"] == [build]
    assert "stock:count_up" in catalog.slets
    assert set(catalog.kinds) >= {"direct", "queue", "window", "latch", "table", "log"}


def test_gathering_again_changes_nothing():
    """A plugin that is loaded later adds its offers; the others stay as they are."""
    catalog = gathered(mine=plugin(register_slets=[double], register_channels=[MyKind]))
    before = (dict(catalog.slets), dict(catalog.kinds))
    catalog.gather()
    assert (catalog.slets, catalog.kinds) == before
    assert catalog.plugins.broken == {}


def failing(error: BaseException) -> Iterator[Any]:
    """A generator that breaks off."""
    yield double
    raise error


@pytest.mark.parametrize(
    ("hook", "answer", "problem"),
    [
        ("register_slets", RuntimeError("no network"), "RuntimeError: no network"),
        ("register_slets", double, r"register_slets\(\) returned no list: 'function' object is not iterable"),
        ("register_slets", SystemExit("leaves"), "SystemExit: leaves"),
        ("register_slets", failing(RuntimeError("half way")), r"register_slets\(\) returned no list: half way"),
        ("register_slets", failing(SystemExit("half way")), r"register_slets\(\) returned no list: half way"),
        ("register_slets", [len], "SletError: len is no slet: it is not marked"),
        (
            "register_slets",
            [double, also_double],
            "it registers two slets as 'bad:double'; set another name= for one",
        ),
        ("register_channels", [int], "type object 'int' has no attribute 'kind'"),
        (
            "register_channels",
            [OtherQueue],
            r"the channel kind 'queue' is registered already \(exop.runtime.channels.queue\)",
        ),
        ("register_slets", None, None),
    ],
)
def test_a_wrong_offer_is_told_and_the_others_count(hook, answer, problem):
    """Whatever one plugin gives, the platform's catalog is there, with what all others offer."""
    catalog = gathered(bad=plugin(**{hook: answer}), good=plugin(register_slets=[double]))
    assert "good:double" in catalog.slets
    assert "stock:count_up" in catalog.slets
    assert catalog.kinds["queue"].__module__ == "exop.runtime.channels.queue"
    if problem is None:
        assert catalog.plugins.broken == {}
    else:
        with pytest.raises(Exception, match=problem):
            raise catalog.plugins.broken["bad"]


def test_a_good_offer_beside_a_wrong_one_counts():
    """One bad slet in a list does not take the others of its plugin with it."""
    catalog = gathered(mixed=plugin(register_slets=[len, double]))
    assert "mixed:double" in catalog.slets
    assert "mixed" in catalog.plugins.broken


def test_what_is_installed_is_known_without_a_platform():
    """`app.add("node", "plugin:name")` works where no platform runs yet."""
    assert "stock:show" in known_slets().slets


def test_names_mean_what_the_given_plugins_offer():
    """An application may name slets and channel kinds of plugins that are not installed."""
    catalog = gathered(mine=plugin(register_slets=[double], register_channels=[MyKind]))
    app = Application("named", plugins=catalog.plugins)
    app.add("double", "mine:double", item=app.add("numbers", "stock:count_up", out=app.channel("c", kind="mine")))
    assert app.build().channels["c"].kind == "mine"
    with pytest.raises(UnknownName, match="no kind 'mine'"):
        Application("other").channel("c", kind="mine")


def test_a_builder_is_run_with_the_catalog_that_found_it():
    """An application that a folder builds can name the slets of that folder."""
    with in_use(gathered(mine=plugin(register_channels=[MyKind]))):
        assert Application("named").channel("c", kind="mine").name == "c"
    with pytest.raises(UnknownName, match="no kind 'mine'"):
        Application("named").channel("c", kind="mine")
