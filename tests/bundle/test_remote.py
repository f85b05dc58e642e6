"""Bundles on a platform in another process: the same calls, the same facts, the same errors."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from exop import Application, Platform
from exop.errors import ArchiveRefused, BundleBroken, MessageTooLarge, PlanError
from exop.remoting.api.folder_archive import LARGEST_ARCHIVE
from exop.remoting.api.remote_platform import RemotePlatform
from exop.stock.slets import count_up
from tests.bundle.folders import speeds, zipped


@pytest.fixture
def platform(tmp_path: Path) -> Iterator[Platform]:
    """A platform that answers on a socket in its state directory."""
    with Platform(state=tmp_path / "state") as platform:
        yield platform


@pytest.fixture
def remote(platform: Platform, tmp_path: Path) -> Iterator[RemotePlatform]:
    """The same platform as others see it."""
    with RemotePlatform(tmp_path / "state") as remote:
        yield remote


def test_it_is_the_same_from_outside(platform: Platform, remote: RemotePlatform, tmp_path: Path):
    """A folder travels as an archive; each call returns what the platform itself would."""
    assert remote.bundles.install(speeds(tmp_path))["state"] == "resolved"
    assert remote.bundles.start("speeds") == platform.bundles.list()[0]
    assert remote.bundles.list() == platform.bundles.list()
    assert remote.status()["bundles"] == {"speeds@1.0.0": "started"}
    assert "speeds@1.0.0:add_up" in platform.slets()
    app = Application("app")
    app.add("sums", platform.slets()["speeds@1.0.0:add_up"], number=app.add("numbers", count_up))
    platform.apply(app.build())
    updated = remote.bundles.update(speeds(tmp_path, "1.1.0"), pause=1.0, stall=True)
    assert (updated["replaced"], updated["stopped"]) == (["app.sums"], ["speeds@1.0.0"])
    assert remote.bundles.list()[0]["slets"] == ["speeds@1.0.0:add_up"], "as they were while it was started"
    with pytest.raises(PlanError, match="takes speeds@1.0.0:add_up back.*`exop bundle start speeds@1.0.0`"):
        remote.plan_reverse("app", 2)
    remote.bundles.start("speeds@1.0.0")
    assert "speeds@1.1.0:add_up → speeds@1.0.0:add_up" in str(remote.plan_reverse("app", 2))
    remote.remove("app")
    for version in ("1.0.0", "1.1.0"):
        assert remote.bundles.stop(f"speeds@{version}")["state"] == "resolved"
    for version in ("1.0.0", "1.1.0"):
        assert remote.bundles.uninstall(f"speeds@{version}")["state"] == "uninstalled"
    assert remote.bundles.list() == []


def test_errors_keep_their_facts(remote: RemotePlatform, tmp_path: Path):
    """What is refused there is told here, with file and line."""
    with pytest.raises(ArchiveRefused, match=r"nowhere.* there is no such file"):
        remote.bundles.install(tmp_path / "nowhere")
    (tmp_path / "bad.zip").write_bytes(zipped({"../evil.py": "x"}))
    with pytest.raises(ArchiveRefused, match=r"bad.zip is refused: the path '../evil.py' leads out of it"):
        remote.bundles.install(tmp_path / "bad.zip")
    remote.bundles.install(speeds(tmp_path, slets="\nimport nowhere\n"))
    with pytest.raises(BundleBroken) as caught:
        remote.bundles.start("speeds")
    assert caught.value.line == 2


def test_what_is_too_large_is_refused_on_both_sides(platform: Platform, remote: RemotePlatform, tmp_path: Path):
    """The sender does not begin, and the receiver does not read it."""
    (tmp_path / "large.zip").write_bytes(b"0" * (LARGEST_ARCHIVE + 1))
    with pytest.raises(ArchiveRefused, match="an archive has at most"):
        remote.bundles.install(tmp_path / "large.zip")
    request = {"archive": b"0" * (LARGEST_ARCHIVE + 20_000), "name": "large"}
    with pytest.raises(MessageTooLarge):
        remote._client.call("install_bundle", request)
    with pytest.raises(ArchiveRefused, match="the bound is"):
        platform.bundles.install_archive(b"0" * (LARGEST_ARCHIVE + 1), "large")
