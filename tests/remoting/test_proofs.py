"""Proofs and rollbacks of a platform in another process: what crosses, and what is refused."""

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest

from exop import Mesh, Platform, Shadow, connect
from exop.errors import ShadowFailed
from exop.remoting.api.remote_platform import RemotePlan, RemotePlatform
from exop.remoting.api.wire_types import Proof, as_proof
from tests.cli.line import PACKAGE


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package with the slets."""
    folder = tmp_path_factory.mktemp("proofs") / "proven_line"
    folder.mkdir()
    (folder / "__init__.py").write_text(PACKAGE.replace("pace: float = 0.002", "pace: float = 0.0005"))
    return folder


@pytest.fixture
def remote(tmp_path: Path, package: Path) -> Iterator[RemotePlatform]:
    """A platform with an application, seen over its socket."""
    with Platform(state=tmp_path / "state", name="there") as platform:
        platform.load(package)
        module = platform.slets()["proven_line:tag"].factory.__globals__
        platform.apply(module["line"](output=tmp_path / "out").build())
        with connect(tmp_path / "state") as remote:
            yield remote


def replaced(remote: RemotePlatform, slet: str, shadow: Shadow | None = None, keep: float | None = None) -> RemotePlan:
    """The plan that puts another slet in the place of `tag`."""
    edits = [{"edit": "replace", "node": "tag", "slet": slet}]
    return remote.plan_edits("line", edits, proof=as_proof(shadow, keep))


def test_a_different_one_is_refused_with_its_report(remote: RemotePlatform) -> None:
    """The error crosses with all that was compared."""
    plan = replaced(remote, "proven_line:shout", Shadow(items=50))
    with pytest.raises(ShadowFailed, match="tag was not replaced: .*the old one runs on") as caught:
        plan.carry_out()
    first = caught.value.report["differences"][0]
    assert (first["kind"], first["port"]) == ("different", "out")
    assert first["new"].startswith("'a!")
    assert remote.status("line")["nodes"]["tag"]["slet"] == "proven_line:tag"


def test_what_is_asked_of_a_proof_crosses() -> None:
    """Every field of a shadow but the comparison, which is code, arrives as it was given."""
    shadow = Shadow(items=5, seconds=2.0, slower=3.0, divert={"level": 3}, copy=False, allow_no_output=True)
    sent = msgspec.convert(as_proof(shadow, None), Proof)
    asked = []
    plan = SimpleNamespace(after=Mesh("line"), steps=(), proven=lambda *given: asked.append(given))
    sent.of(plan)  # type: ignore[arg-type]
    assert asked == [(shadow, None)]
