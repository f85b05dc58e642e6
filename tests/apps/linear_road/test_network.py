"""The network of the demo on two hosts: bytes wait while it is cut, and arrive when it is healed."""

import socket
import threading

import pytest

from apps.linear_road.demo_hosts import AWAY, HOME, PIPELINE, Outage, changes, late_answers
from apps.linear_road.network import HOST, Network
from apps.linear_road.pace import Pace

#: The second of a question, and the seconds until its answer: the network is cut at second 324, for 12 s.
ANSWERS = [(10, 1), (100, 6), (324, 12), (500, 6), (510, 1), (870, 6)]


@pytest.fixture
def ends():
    """A network, and both ends of a connection through it."""
    with socket.create_server((HOST, 0)) as server, Network(server.getsockname()[1]) as network:
        near = socket.create_connection((HOST, network.port))
        far, _ = server.accept()
        with near, far:
            near.settimeout(30)
            far.settimeout(30)
            yield network, near, far


def test_bytes_pass_in_both_directions(ends):
    """What one side sends, the other receives."""
    _, near, far = ends
    for source, sink in ((near, far), (far, near)):
        source.sendall(b"item")
        assert sink.recv(4) == b"item"


def test_a_cut_network_delays_bytes_and_loses_none(ends):
    """While the network is cut nothing arrives, and neither side sees an end; then everything arrives in order."""
    network, near, far = ends
    network.cut()
    near.sendall(b"1")
    received: list[bytes] = []
    reader = threading.Thread(target=lambda: received.append(far.recv(1)))
    reader.start()
    near.sendall(b"2")
    assert not received
    network.heal()
    reader.join(30)
    assert [*received, far.recv(1)] == [b"1", b"2"]


def test_the_slets_move_to_the_other_host_and_back():
    """The demo moves the pipeline away and a slet back, and cuts the network in between."""
    found = changes(None)
    (cut,) = [place for place, one in enumerate(found) if isinstance(one, Outage)]
    assert {AWAY, *PIPELINE[1:]} < set(found[0].arguments)
    assert 0 < cut < len(found) - 1
    assert found[-1].arguments[-1] == HOME
    assert [one.share for one in found] == sorted(one.share for one in found)


def test_late_answers_are_the_cuts_only_while_it_lasts(tmp_path):
    """An answer that is late before the cut, or long after it, has another reason."""
    output = tmp_path / "answers.csv"
    output.write_text("".join(f"2,{asked},{asked + took},{asked + took},7,0\n" for asked, took in ANSWERS))
    assert late_answers(output, 720, Pace(15.0)) == 2
