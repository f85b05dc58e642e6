"""Fixtures of the whole test-suite."""

import functools
import signal
import sys

import pytest
from hypothesis import settings

from exop.hooks import manager
from tests.rig import Rig, threads_leave

# Every run tries the same examples, and a slow moment of the machine fails none of them.
settings.register_profile("exop", deadline=None, derandomize=True)
settings.load_profile("exop")

#: Parts of the names of the tests that take longest; the plugin's tests keep one Spark running for all others.
LONGEST = (
    "plugins/exop-spark",
    "spark",
    "tests/recovery/",
    "tests/change/test_any_",
    "tests/change/test_planted",
    "tests/bench/",
    "tests/runtime/channels/test_connector_machine",
    "tests/change/test_hanging",
    "tests/remoting/test_peer_attacks",
    "tests/hosts/",
    "plugins/exop-kafka",
    "plugins/exop-duckdb",
    "tests/typing/",
)
#: Parts of the names of the tests that start Java processes of their own, or kill that of others.
OWN_JAVA = ("/cluster/", "test_spark_kills", "test_hanging")

# Each of the thousands of platforms would read the entry points of all that is installed: a fifth of its test.
_found = functools.cache(lambda path, group, read=manager.entry_points: read(group=group))
manager.entry_points = lambda *, group: _found(tuple(sys.path), group)

# A suite that runs in the background ignores Ctrl-C, and its children would: what they do with it is tested.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """Keep the tests of a file in one process, and all of Spark's, so that its Java process is started once.

    Those with Java of their own are beside it, where there are several processes.
    """
    from xdist.scheduler import LoadFileScheduling

    class ByFile(LoadFileScheduling):
        def _split_scope(self, nodeid):
            shared = "spark" in nodeid and not any(part in nodeid for part in OWN_JAVA)
            return "spark" if shared else nodeid.partition("::")[0]

    return ByFile(config, log)


def pytest_collection_modifyitems(items):
    """Put the tests that take longest first: the processes end at the same time, and none waits for another one."""
    items.sort(key=lambda item: next((at for at, part in enumerate(LONGEST) if part in item.nodeid), len(LONGEST)))
    for item in items:
        if "spark" in item.nodeid and not item.get_closest_marker(
            "timeout"
        ):  # it may share two processors with three others
            item.add_marker(pytest.mark.timeout(900))


@pytest.fixture
def rig():
    """The services of a platform; after the test nothing of it runs any more."""
    with threads_leave():
        made = Rig()
        yield made
        made.close()
