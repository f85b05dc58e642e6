"""How whoever changes a mesh shares the interpreter with the streams."""

import gc
import threading

import pytest

from exop.runtime.interpreter import give_way, uncollected


@pytest.fixture
def collector():
    """The collector is on before and after each test."""
    gc.enable()
    yield
    gc.enable()


@pytest.mark.usefixtures("collector")
def test_nothing_is_collected_inside():
    """The collector is off inside, and on again afterwards, also after an error."""
    with uncollected():
        assert not gc.isenabled()
    assert gc.isenabled()
    with pytest.raises(ValueError, match="inside"), uncollected():
        raise ValueError("inside")
    assert gc.isenabled()


@pytest.mark.usefixtures("collector")
def test_who_has_switched_the_collector_off_finds_it_so():
    """An application that does without the collector goes on without it."""
    gc.disable()
    with uncollected():
        assert not gc.isenabled()
    assert not gc.isenabled()


def test_who_gives_way_lets_others_run():
    """Another thread gets on while one gives way."""
    moved = threading.Event()
    thread = threading.Thread(target=moved.set)
    thread.start()
    while not moved.is_set():
        give_way()
    thread.join()
