"""Log records of user code name the application and the node of the slet that has made them."""

import logging
import threading
from collections.abc import Iterator

import pytest

from exop import Application, OutputPort, Slet, input_port, slet
from exop.logs import Located
from tests.rig import PATIENCE

LOG = logging.getLogger("mine")


def note(text: object) -> None:
    """A function that several slets share."""
    LOG.warning(text)


@slet
def numbers() -> Iterator[int]:
    """A source."""
    note("source")
    yield 1


@slet
def doubled(item: int) -> int:
    """A function that stands at two nodes."""
    note("function")
    return item * 2


@slet
def several(item: int) -> Iterator[int]:
    """A generator."""
    yield item
    note("generator")


class Written(Slet):
    """A class, with a part that another thread opens."""

    def __enter__(self) -> "Written":
        note("opened")
        return self

    @input_port
    def item(self, item: int) -> None:
        """Take."""
        note("class")


class Driven(Slet, own_driver=True):
    """An engine that pushes from a thread of its own."""

    out: OutputPort[int]

    def ready(self) -> None:
        """Begin."""
        threading.Thread(target=self.work).start()

    def work(self) -> None:
        """Push once."""
        note("engine")
        self.out.push(1)
        self.out.end()

    def quiesce(self) -> None:
        """Nothing is kept back."""


class Kept(logging.Handler):
    """Keeps what is logged, with its place."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: set[tuple[str, str, str]] = set()
        self.addFilter(Located())

    def emit(self, record: logging.LogRecord) -> None:
        """Keep it."""
        self.seen.add((record.application, record.node, record.getMessage()))


@pytest.fixture
def kept() -> Iterator[Kept]:
    """The log records of the slets."""
    handler = Kept()
    LOG.addHandler(handler)
    yield handler
    LOG.removeHandler(handler)


def test_a_record_names_its_slet(rig, kept):
    """Whatever its kind, at each of several nodes and applications; outside of slets the names are empty."""
    deployments = []
    for name in ("one", "other"):
        app = Application(name)
        first = app.add("first", doubled, item=app.add("numbers", numbers))
        app.add("written", Written, item=app.add("several", several, item=app.add("second", doubled, item=first)))
        app.add("end", doubled, item=app.add("engine", Driven))
        deployments.append(rig.deploy(app))
    for deployment in deployments:
        assert deployment.wait(PATIENCE)
    note("outside")
    expected = {
        ("numbers", "source"),
        ("first", "function"),
        ("second", "function"),
        ("end", "function"),
        ("several", "generator"),
        ("written", "opened"),
        ("written", "class"),
        ("engine", "engine"),
    }
    assert kept.seen == {(app, *one) for app in ("one", "other") for one in expected} | {("", "", "outside")}
