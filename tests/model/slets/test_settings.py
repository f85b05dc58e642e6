"""Settings of slets, builders and channel kinds: complete, checked, and shared with nobody."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from exop import Application
from exop.errors import SettingError, SletError, UnknownName
from exop.model.slets.signature import read_settings
from exop.model.slets.spec import Setting, configured
from exop.runtime.channels import BUILT_IN
from exop.runtime.channels.queue import QueueChannel


@dataclass
class Sizes:
    """A default that can be changed."""

    width: int = 1


SETTINGS = {
    "window": Setting("window", int, 10),
    "path": Setting("path", Path, required=True),
    "tags": Setting("tags", list[str], ["a"]),
    "sizes": Setting("sizes", Sizes, Sizes()),
}


def test_defaults_complete_what_is_given():
    """What is not given stands at its default, what is given is converted."""
    found = configured("average", SETTINGS, {"path": "in.csv", "window": "5"})
    assert found == {"window": 5, "path": Path("in.csv"), "tags": ["a"], "sizes": Sizes()}


def test_no_two_instances_share_a_default():
    """A list or dataclass that is a default is copied for each: one instance never changes another's."""
    one, other = (configured("n", SETTINGS, {"path": "p"}) for _ in range(2))
    one["tags"].append("b")
    one["sizes"].width = 7
    assert other["tags"] == ["a"] == SETTINGS["tags"].default
    assert other["sizes"].width == 1


def test_an_unknown_setting_is_told_with_the_known_ones():
    """A misspelled setting is refused with a suggestion; ports count as known names."""
    with pytest.raises(UnknownName) as caught:
        configured("average", SETTINGS, {"windw": 5}, ports=("report", "out"))
    assert str(caught.value).startswith("average has no port or setting 'windw'; did you mean 'window'?")
    assert caught.value.known == ["window", "path", "tags", "sizes", "report", "out"]


def test_a_required_setting_that_is_missing_is_told():
    """A setting without a default has to be given; the message shows its type."""
    with pytest.raises(SettingError) as caught:
        configured("average", SETTINGS, {})
    assert str(caught.value) == "average: the setting 'path' does not fit: it has no default: give path: Path"
    assert caught.value.setting == "path"


def test_a_value_that_does_not_fit_names_place_and_setting():
    """One line: where, which setting, what was expected, what was given."""
    with pytest.raises(SettingError) as caught:
        configured("average", SETTINGS, {"path": "p", "window": True})
    assert str(caught.value) == "average: the setting 'window' does not fit: expected int, got True (bool)"
    assert caught.value.facts == {"place": "average", "setting": "window", "problem": "expected int, got True (bool)"}


def test_a_setting_shows_type_and_default():
    """Help texts print settings as Python would."""
    assert [str(setting) for setting in SETTINGS.values()][:2] == ["window: int = 10", "path: Path"]


def build(*, input: Path, speed: float = 1.0) -> None:  # noqa: A002 (as users call it)
    """An application builder's signature."""


def test_a_builders_parameters_are_settings():
    """Application builders are configured as slets are."""
    found = configured("the builder build", read_settings(build), {"input": "a", "speed": "2"})
    assert found == {"input": Path("a"), "speed": 2.0}


def test_a_builder_takes_keywords_only():
    """A positional parameter of a builder is refused, with the cure."""

    def wrong(path: Path) -> None:
        """A builder with a positional parameter."""

    with pytest.raises(SletError, match=r"no application builder: 'path' is not keyword-only; put `\*, ` before"):
        read_settings(wrong)


@pytest.mark.parametrize("kind", BUILT_IN, ids=lambda kind: kind.kind)
def test_the_settings_of_every_channel_kind_can_be_read(kind):
    """Channel kinds declare their settings like slets: keyword-only and typed."""
    assert all(isinstance(setting, Setting) for setting in read_settings(kind).values())


class WiderQueue(QueueChannel):
    """A kind that inherits its settings."""


def test_a_kind_inherits_the_settings_of_its_base():
    """A subclass without an `__init__` of its own has the base's settings, with their types."""
    assert str(read_settings(WiderQueue)["capacity"]) == "capacity: int = 1024"


def test_channel_settings_are_converted_as_those_of_slets():
    """From a topology or a command line they come as text; what does not fit is refused in the same words."""
    app = Application("channels")
    app.channel("queue", kind="queue", capacity="5")
    app.channel("rows", kind="table", key=("a", "b"))
    with pytest.raises(SettingError, match=r"the channel 'q' \(queue\): the setting 'capacity' .* got 'x'"):
        app.channel("q", kind="queue", capacity="x")
    with pytest.raises(SettingError, match=r"the setting 'key' does not fit: it has no default: give key: str"):
        app.channel("t", kind="table")
    with pytest.raises(UnknownName, match=r"the channel 'l' \(latch\) has no setting 'kye'; did you mean 'key'"):
        app.channel("l", kind="latch", kye="a")
    assert app._mesh.channels["queue"].settings == {"capacity": 5}
