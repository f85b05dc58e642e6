"""The reference pages name exactly what is there: properties, channel kinds and settings, topology keys, policies."""

from __future__ import annotations

import re

import pytest

import exop
from exop import Application, Platform
from exop.model import properties
from exop.model.meshes import topology
from exop.model.slets.signature import read_settings
from exop.model.slets.spec import POLICIES
from exop.runtime.channels import BUILT_IN
from exop.runtime.lifecycle import State
from tests.docs.snippets import ROOT

REFERENCE = ROOT / "docs" / "reference"


def page(name: str) -> str:
    """A page of the reference."""
    return (REFERENCE / f"{name}.md").read_text(encoding="utf-8")


def section(text: str, heading: str) -> str:
    """What stands under a heading of the second level."""
    return text.split(f"\n## {heading}\n", 1)[1].split("\n## ", 1)[0]


def rows(text: str) -> list[list[str]]:
    """The cells of all table rows, without the heads and the lines under them."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]
    heads = [number for number, row in enumerate(cells) if row[0] and set("".join(row)) <= set("-:")]
    skip = {*heads, *(number - 1 for number in heads)}
    return [row for number, row in enumerate(cells) if number not in skip]


def names(cell: str) -> list[str]:
    """The code in a cell."""
    return re.findall(r"`([^`]+)`", cell)


def test_every_property_is_documented():
    """Name and constant of each property, as the code has them, and no other."""
    documented = {names(cells[1])[0]: names(cells[0])[0] for cells in rows(page("properties").split("\n## ")[0])}
    in_code = {name: value for name, value in vars(properties).items() if name.isupper() and isinstance(value, str)}
    assert documented == in_code


def test_what_services_have_is_documented():
    """The properties of everything that a running platform registers, by kind of service."""
    on = {names(cells[0])[0]: cells[2] for cells in rows(page("properties").split("\n## ")[0])}
    app = Application("numbers")
    queue = app.channel("queue", kind="queue")
    app.add("console", "stock:show", item=app.add("numbers", "stock:count_up", to=1, out=queue))
    app.add("other", "stock:show", item=queue)
    with Platform() as platform:
        platform.apply(app.build())
        platform.wait("numbers")
        for service in platform.registry.find():
            kind = {"slet": "slets", "port": "ports", "channel": "channels", "platform": "platform"}
            mine = kind[str(service.properties["kind"])]
            for name in service.properties:
                assert any(word in on[name] for word in (mine, "everything", "queues")), (name, mine)


def test_the_states_are_documented():
    """The values of the property `state` are the states of the life cycle."""
    (state,) = (cells for cells in rows(page("properties")) if cells[0] == "`state`")
    assert names(state[-1]) == [str(one) for one in State]


@pytest.mark.parametrize("kind", BUILT_IN, ids=lambda kind: kind.kind)
def test_every_setting_of_every_kind_is_documented(kind):
    """The overview and the kind's own section name its settings with their defaults."""
    settings = read_settings(kind)
    (overview,) = (cells for cells in rows(page("channels")) if cells[0].startswith(f"[`{kind.kind}`]"))
    assert names(overview[2]) == list(settings)
    assert overview[3].startswith("reads" if kind.pull_mode == "read" else "takes")
    own = {names(cells[0])[0]: cells[-1] for cells in rows(section(page("channels"), kind.kind))}
    assert set(own) == set(settings)
    for name, setting in settings.items():
        default = "" if setting.required or setting.default is None else str(setting.default)
        assert own[name].strip("`") == default, name


@pytest.mark.parametrize("kind", BUILT_IN, ids=lambda kind: kind.kind)
def test_the_extended_interface_is_documented(kind):
    """Every public method of a kind beyond those of `Channel` stands in its section."""
    extended = {
        name
        for name in vars(kind)
        if not name.startswith("_") and not hasattr(exop.Channel, name) and name not in ("kind", "live")
    }
    # What the platform itself uses of a queue is no business of slets.
    if kind.kind != "queue":
        for name in extended:
            assert re.search(rf"`{name}[(`]", section(page("channels"), kind.kind)), name


def test_every_key_of_a_topology_is_documented():
    """The tables of nodes, channels and the application name the keys that are read."""
    text = page("mesh-toml")
    assert [names(cells[0])[0] for cells in rows(section(text, "`[application]`"))] == ["name", "durable"]
    assert [*filter(None, (names(cells[0]) for cells in rows(section(text, "`[channels.NAME]`"))))] == [
        ["kind"],
        ["host"],
        ["connector"],
        ["type"],
        ["unset"],
        ["pending"],
    ]
    keys = {names(cells[0])[0] for cells in rows(section(text, "`[nodes.NAME]`"))}
    assert keys == set(topology._NODE)


def test_every_policy_is_documented():
    """The table of policies has them all, the default first."""
    text = page("slets").split("\n## Policies\n")[1]
    assert [names(cells[0])[0] for cells in rows(text)] == list(POLICIES)
