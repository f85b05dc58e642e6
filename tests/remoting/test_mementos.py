"""The state of a node of a platform in another process: fetched and sent in pieces, checked when it arrives."""

from pathlib import Path
from typing import Any, cast

import pytest

from exop import Application, Platform
from exop.errors import MeshError, MessageTooLarge, PlanError, RequestInvalid, StoredStateError
from exop.model.slets.stored_memento import dump_memento
from exop.model.values.classes import name_of
from exop.remoting.api import wire_types
from exop.remoting.api.remote_platform import RemotePlatform, as_memento
from exop.remoting.api.service import ALL_CHUNKED, MOST_CHUNKED, MOST_HEAVY_PLANS, ManagementService
from exop.remoting.api.wire_types import CHUNK, LARGEST, Chunked
from exop.stock.sinks import Written
from exop.stock.sources import Position, count_up


def test_taken_and_restored(remote: RemotePlatform) -> None:
    """As on a platform here: an instance of its class, and a change that gives the mesh that runs then."""
    found = remote.memento("numbers", "numbers")
    assert isinstance(found, Position)
    found.number += 10_000_000
    mesh = remote.restore("numbers", "numbers", found)
    assert mesh.revision == 2
    assert mesh.node("numbers").memento is None
    again = remote.memento("numbers", "numbers")
    assert isinstance(again, Position)
    assert again.number >= found.number


def test_it_travels_with_a_plan(remote: RemotePlatform) -> None:
    """A memento in a mesh that is planned there, beside other edits."""
    mesh = remote.mesh("numbers").restore("numbers", Position(number=5)).configure("numbers", step=3)
    plan = remote.plan(mesh)
    assert "replace numbers: stock:count_up with another state; the state (Position) as it is given" in str(plan)
    assert plan.apply().node("numbers").settings["step"] == 3


def test_files(remote: RemotePlatform) -> None:
    """What is exported can be imported, in both forms."""
    for form in (None, "json", "msgpack"):
        _, data = remote.export_memento("numbers", "numbers", form)
        assert remote.import_memento("numbers", "numbers", data).apply()
    with pytest.raises(RequestInvalid, match="xml"):
        remote.export_memento("numbers", "numbers", "xml")


def test_bad_states_are_refused_there(remote: RemotePlatform) -> None:
    """Another class, garbage, a node without memento: the errors are those of a platform here."""
    with pytest.raises(MeshError, match="pass_on keeps no memento"):
        remote.export_memento("numbers", "pass")
    with pytest.raises(StoredStateError, match="it is a Written, and Position has no upgrade for it"):
        remote.import_memento("numbers", "numbers", dump_memento(Written(), "x"))
    with pytest.raises(StoredStateError, match=r"numbers\.numbers cannot be taken over"):
        remote.import_memento("numbers", "numbers", b"\x00" * 10)
    assert remote.mesh("numbers").revision == 1


def test_in_chunks(remote: RemotePlatform, monkeypatch: pytest.MonkeyPatch) -> None:
    """A longer value travels in several chunks, in order."""
    monkeypatch.setattr(wire_types, "CHUNK", 7)
    monkeypatch.setattr(wire_types, "INLINE", 5)
    found = remote.memento("numbers", "numbers")
    assert remote.restore("numbers", "numbers", found).revision == 2


def test_plans_that_hold_mementos_are_few(remote: RemotePlatform) -> None:
    """Such a plan may be large: the oldest makes room, and the others can be carried out."""
    _, data = remote.export_memento("numbers", "numbers")
    plans = [remote.import_memento("numbers", "numbers", data) for _ in range(MOST_HEAVY_PLANS + 1)]
    with pytest.raises(PlanError, match=r"no plan .* \(any more\)"):
        plans[0].carry_out()
    assert plans[-1].carry_out().revision == 2


@pytest.mark.parametrize(
    ("operation", "request_", "said"),
    [
        ("read_chunk", {"number": "x", "offset": -1}, ">= 0"),
        ("read_chunk", {"number": 1, "offset": 0}, "`str`"),
        ("send_chunk", {"number": "", "data": bytes(CHUNK + 1)}, "length <= 2097152"),
        ("send_chunk", {"number": "", "data": "text", "more": 1}, "more|bytes|base64"),
        ("import_memento", {"application": "numbers", "node": "numbers"}, "missing required field `data`"),
    ],
)
def test_requests_are_checked(remote: RemotePlatform, operation: str, request_: dict[str, object], said: str) -> None:
    """A request of another form is refused before it is looked at."""
    with pytest.raises(RequestInvalid, match=said):
        remote._client.call(operation, request_)


def test_a_chunk_is_bounded_as_a_message(remote: RemotePlatform) -> None:
    """A message that is much longer than a chunk is not even decoded."""
    with pytest.raises(MessageTooLarge, match="the bound is"):
        remote._client.call("send_chunk", {"number": "", "data": bytes(CHUNK + 20_000)})
    with pytest.raises(MessageTooLarge, match=r"take it in the platform's own process"):
        remote.import_memento("numbers", "numbers", bytes(LARGEST + 1))


def test_what_is_kept_is_bounded() -> None:
    """One whole, and all together; the oldest makes room, and what was taken is gone."""
    kept: Any = ManagementService(cast(Any, None))
    half = bytes(LARGEST)
    first = kept.send_chunk("", half)
    with pytest.raises(MessageTooLarge, match="the memento has"):
        kept.send_chunk(first, b"x")
    others = [kept.send_chunk("", half) for _ in range(ALL_CHUNKED // LARGEST)]
    with pytest.raises(PlanError, match=r"keeps nothing under the number .* \(any more\); send it again"):
        kept.read_chunk(first, 0)
    assert len(kept._from_wire(Chunked(others[-1], 0))) == LARGEST
    for gone in (others[-1], "", "x"):
        with pytest.raises(PlanError):
            kept._from_wire(Chunked(gone, 0))


def test_empty_wholes_are_bounded() -> None:
    """A peer that sends nothing, again and again, takes no memory: the oldest makes room."""
    kept: Any = ManagementService(cast(Any, None))
    numbers = [kept.send_chunk("", b"") for _ in range(3 * MOST_CHUNKED)]
    assert kept._from_wire(Chunked(numbers[-1], 0)) == b""
    assert kept._from_wire(Chunked(numbers[-MOST_CHUNKED], 0)) == b""
    with pytest.raises(PlanError, match="keeps nothing under the number"):
        kept.send_chunk(numbers[-MOST_CHUNKED - 1], b"")


def test_a_class_that_is_not_here(remote: RemotePlatform) -> None:
    """A memento whose class is not here is told so; nothing is imported for it."""
    data, name = dump_memento(Position(), "x"), name_of(Position)
    gone = name.replace("exop", "xxxx")
    with pytest.raises(StoredStateError, match=rf"the module {gone.partition(':')[0]} is not loaded here"):
        as_memento(data.replace(name.encode(), gone.encode()), "numbers.numbers")
    odd = dump_memento(Position(), "x").replace(b":Position", b":count_up")
    with pytest.raises(StoredStateError, match="that is no memento|has no count_up"):
        as_memento(odd, "numbers.numbers")


def test_what_was_restored_is_in_the_next_checkpoint(tmp_path: Path) -> None:
    """A durable application goes on from the state that it was given, also after its platform has left."""
    app = Application("numbers")
    app.add("sink", "stock:write_lines", item=app.add("numbers", count_up), path=tmp_path / "out")
    app.durable(every=1000)
    with Platform(state=tmp_path / "state") as platform:
        platform.apply(app.build())
        platform.restore("numbers", "numbers", Position(number=10**9))
    with Platform(state=tmp_path / "state") as platform:
        found = platform.memento("numbers", "numbers")
        assert isinstance(found, Position)
        assert found.number >= 10**9
        assert platform.mesh("numbers").node("numbers").memento is None
        platform.remove("numbers")
