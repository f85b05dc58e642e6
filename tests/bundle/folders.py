"""Bundles as an author would write them, and archives of them as an enemy would."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Mapping
from pathlib import Path

from exop import Application, Platform

SLETS = '''
"""Slets of the bundle."""
from exop import Memento, slet
from speeds.helpers import SCALE


class Total(Memento):
    """What has been added up."""

    sum: int = 0


@slet
def add_up(number: int, total: Total, *, factor: int = 1) -> int:
    """Add up."""
    total.sum += number * factor * SCALE
    return total.sum
'''


def manifest(version: str = "1.0.0", name: str = "speeds", more: str = "", offers: str = '["slets:add_up"]') -> str:
    """A `bundle.toml`."""
    return f'name = "{name}"\nversion = "{version}"\nslets = {offers}\n{more}\n'


def write(folder: Path, files: Mapping[str, str]) -> Path:
    """Write files into a folder."""
    for path, text in files.items():
        place = folder / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text, encoding="utf-8")
    return folder


def speeds(folder: Path, version: str = "1.0.0", scale: int = 1, more: str = "", slets: str = SLETS) -> Path:
    """A folder with a version of the bundle `speeds`: a slet with a state, and a helper that differs by version."""
    files = {"bundle.toml": manifest(version, more=more), "slets.py": slets, "helpers.py": f"SCALE = {scale}\n"}
    return write(folder / f"speeds-{version}", files)


def started(platform: Platform, folder: Path) -> None:
    """Install and start a bundle."""
    platform.bundles.start(platform.bundles.install(folder)["bundle"])


def states(platform: Platform) -> dict[str, str]:
    """The state of each bundle."""
    return {row["bundle"]: row["state"] for row in platform.bundles.list()}


def adding_up(platform: Platform, name: str = "road") -> None:
    """Run an application without end whose node `sum` is the slet of `speeds@1.0.0`."""
    app = Application(name, plugins=platform.plugins)
    app.add("sum", "speeds@1.0.0:add_up", number=app.add("numbers", "stock:count_up", start=1))
    platform.apply(app.build())


def zipped(entries: Mapping[str, str | bytes], *, head: str = "") -> bytes:
    """A zip archive."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for path, content in entries.items():
            archive.writestr(head + path, content)
    return buffer.getvalue()


GOOD = {"bundle.toml": manifest(), "slets.py": SLETS, "helpers.py": "SCALE = 1\n"}
