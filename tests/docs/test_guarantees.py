"""The page of guarantees names every stock component, and every kind of channel."""

from __future__ import annotations

import re
from pathlib import Path

from exop.model.slet import spec_of
from exop.runtime.channels import BUILT_IN
from exop.stock.slets import STOCK

PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "guarantees.md").read_text(encoding="utf-8")


def named() -> set[str]:
    """What stands in the first cells of its tables."""
    return {name for row in re.findall(r"^\|([^|]*)\|", PAGE, re.MULTILINE) for name in re.findall(r"`([^`]+)`", row)}


def test_every_stock_slet_has_a_row():
    """Nobody has to guess what a component of ours guarantees."""
    assert {f"stock:{spec_of(one).name}" for one in STOCK} <= named()


def test_every_kind_of_channel_has_a_row():
    """Built-in kinds, each by its name."""
    assert {kind.kind for kind in BUILT_IN} <= named()
