"""What a bundle says of itself is read strictly: a mistake is named with its cure."""

from __future__ import annotations

import pytest

from exop.bundle.manifest import Offer, read_manifest, wired_to
from exop.errors import BundleError


def test_all_keys_are_read():
    """Name, version, offers, files, requirements and properties, each as its type."""
    found = read_manifest(
        """
        name = "linear-road"
        version = "1.2.0rc1"
        description = "Tolls"
        slets = ["tolls:average", "sub.module:Match"]
        channels = ["rings:Ring"]
        builders = ["build:road"]
        files = ["tariff.csv", "data/*"]
        [requires]
        exop = ">=0.1"
        bundles = ["numbers>=1,<2"]
        distributions = ["pyarrow>=18"]
        [properties]
        team = "road"
        levels = [1, 2]
        """,
        "road",
    )
    assert found.key == "linear-road@1.2.0rc1"
    assert found.package == "linear_road"
    assert found.slets == (Offer("tolls", "average"), Offer("sub.module", "Match"))
    assert (found.channels, found.builders) == ((Offer("rings", "Ring"),), (Offer("build", "road"),))
    assert found.files == ("tariff.csv", "data/*")
    assert str(found.exop) == ">=0.1"
    assert [str(one) for one in (*found.bundles, *found.distributions)] == ["numbers<2,>=1", "pyarrow>=18"]
    assert found.properties == {"team": "road", "levels": (1, 2)}


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("name = ", "is no TOML"),
        ('version = "1"', "has no name"),
        ('name = "a"', "has no version"),
        ('name = "A_b"\nversion = "1"', "is called 'A_b'"),
        ('name = "a"\nversion = "one"', "has the version 'one'"),
        ('name = "a"\nversion = "1"\nslet = []', "did you mean 'slets'"),
        ('name = "a"\nversion = "1"\nslets = "x:y"', "write a list of texts"),
        ('name = "a"\nversion = "1"\nslets = ["xy"]', 'write "module:name"'),
        ('name = "a"\nversion = "1"\nfiles = ["../secret"]', "inside the bundle's folder"),
        ('name = "a"\nversion = "1"\nfiles = ["/etc/passwd"]', "inside the bundle's folder"),
        ('name = "a"\nversion = "1"\n[requires]\nexop = "new"', "requires exop 'new'"),
        ('name = "a"\nversion = "1"\n[requires]\npython = []', "unknown key of [requires]"),
        ('name = "a"\nversion = "1"\n[requires]\nbundles = ["b @ http://x"]', "only a name and a range of versions"),
        ('name = "a"\nversion = "1"\n[properties]\nx = 1979-05-27', "has an invalid property"),
    ],
)
def test_a_mistake_is_named(text: str, told: str):
    """The error names the place, what is wrong there, and what to write instead."""
    with pytest.raises(BundleError) as caught:
        read_manifest(text, "folder/speeds")
    assert told in str(caught.value)
    assert "folder/speeds" in str(caught.value)


def test_chosen_versions_replace_those_before_wherever_they_stand():
    """An author may have moved the line of an earlier update, or put it on several lines; all else stays as it is."""
    rest = 'version = "1"\n\n[requires]\nbundles = []\n'
    text = f'# Tolls\nname = "road"\nwired = [\n  "a===1",\n  "b===2",\n]  # chosen\n{rest}'
    before = read_manifest(text, "road")
    other = read_manifest('name = "a"\nversion = "3"', "a")
    after = wired_to(text, before, [other])
    assert after == f'wired = ["a===3", "b===2"]\n# Tolls\nname = "road"\n{rest}'
    assert wired_to(after, read_manifest(after, "road"), []) == after
