"""Filters: what their text means, how they match, and how they are built from code."""

from __future__ import annotations

import doctest
import enum

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from exop.errors import FilterSyntaxError
from exop.model import filter as filters
from exop.model.filter import (
    ANYTHING,
    DEEPEST,
    And,
    Approx,
    AtLeast,
    AtMost,
    Equal,
    Filter,
    Not,
    Or,
    Present,
    Substring,
    as_filter,
    parse,
    text_of,
    where,
)

names = st.from_regex(filters.NAME, fullmatch=True)
values = st.text(st.characters(codec="utf-8"), max_size=8)
parts = st.lists(values, min_size=2, max_size=4).filter(lambda found: any(found) and all(found[1:-1])).map(tuple)
comparisons = st.one_of(
    st.builds(Equal, names, values),
    st.builds(Approx, names, values),
    st.builds(AtLeast, names, values),
    st.builds(AtMost, names, values),
    st.builds(Present, names),
    st.builds(Substring, names, parts),
)
trees = st.recursive(
    comparisons,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3).map(tuple).map(And),
        st.lists(inner, max_size=3).map(tuple).map(Or),
        st.builds(Not, inner),
    ),
    max_leaves=12,
)


@given(trees)
@settings(deadline=None)
def test_text_of_any_filter_reads_back_as_the_same_filter(tree: Filter):
    """parse(str(filter)) == filter, whatever letters, stars and parentheses its values hold."""
    assert parse(str(tree)) == tree


@given(trees, st.dictionaries(names, st.one_of(values, st.integers(), st.booleans(), st.lists(values, max_size=3))))
@settings(deadline=None)
def test_connectives_are_those_of_logic(tree: Filter, properties):
    """And, or and not of a filter match as `and`, `or` and `not` of its match."""
    fits = tree.match(properties)
    assert (~tree).match(properties) is not fits
    assert (tree & ~tree).match(properties) is False
    assert (tree | ~tree).match(properties) is True
    assert And((tree, tree, ANYTHING)).match(properties) == fits


@given(st.text("()&|!=<>~*\\a1 ", max_size=12))
@settings(deadline=None, max_examples=300)
def test_any_text_is_a_filter_or_an_error_with_a_place(text: str):
    """A text reads as a filter or raises FilterSyntaxError with a position inside the text; nothing else happens."""
    try:
        place = 0 if isinstance(parse(text), Filter) else -1
    except FilterSyntaxError as error:
        place = error.position
    assert 0 <= place <= len(text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("(role=pi)", Equal("role", "pi")),
        ("(&(a=1)(b=2))", And((Equal("a", "1"), Equal("b", "2")))),
        ("(|(a=1)(!(b=2)))", Or((Equal("a", "1"), Not(Equal("b", "2"))))),
        ("(a=*)", Present("a")),
        ("(a=**)", Present("a")),
        ("(a=x*)", Substring("a", ("x", ""))),
        ("(a=*x**y*)", Substring("a", ("", "x", "y", ""))),
        ("(service.id>=3)", AtLeast("service.id", "3")),
        ("(connected-to<=3)", AtMost("connected-to", "3")),
        ("(a~=x)", Approx("a", "x")),
        ("(a=)", Equal("a", "")),
        (r"(a=\2a\28\29\5C)", Equal("a", "*()\\")),
        (r"(a=\c3\a9*)", Substring("a", ("é", ""))),
        (" ( & ( a=1 ) (b=2) ) ", And((Equal("a", "1 "), Equal("b", "2")))),
        ("(&)", ANYTHING),
        ("(|)", Or(())),
    ],
)
def test_text_means(text: str, expected: Filter):
    """The syntax of RFC 4515 (and RFC 4526), with white space allowed around parentheses only."""
    assert parse(text) == expected


@pytest.mark.parametrize(
    ("text", "position", "words"),
    [
        ("", 0, "`(`"),
        ("role=pi", 0, "`(`"),
        ("(role=pi", 8, "`)`"),
        ("(role=pi)x", 9, "the end"),
        ("()", 1, "the name of a property"),
        ("(a>b)", 2, "~= >= <="),
        ("(a:=b)", 2, "~= >= <="),
        ("(a=b(c)", 4, r"\28"),
        (r"(a=\2)", 3, r"\5c"),
        (r"(a=x\ff)", 4, "UTF-8"),
        ("(a>=x*)", 5, r"\2a"),
        ("(!(a=b)(c=d))", 7, "`)`"),
        ("(!" * (DEEPEST + 1), 2 * DEEPEST, "deep"),
    ],
)
def test_what_is_no_filter_is_told_at_the_place(text: str, position: int, words: str):
    """A FilterSyntaxError carries text and position, says what was expected, and marks the place."""
    with pytest.raises(FilterSyntaxError) as caught:
        parse(text)
    assert caught.value.filter == text
    assert caught.value.position == position
    assert words in str(caught.value)
    assert str(caught.value).splitlines()[-1] == "  " + " " * position + "^"


class Role(enum.StrEnum):
    """An enumeration as callers use them for property values."""

    PI = "pi"


@pytest.mark.parametrize(
    ("text", "value", "fits"),
    [
        ("(p=pi)", "pi", True),
        ("(p=pi)", Role.PI, True),
        ("(p=pi)", "PI", False),
        ("(p=10)", 10, True),
        ("(p=10)", "10", True),
        ("(p=10.0)", 10, True),
        ("(p=10.0)", "10", False),
        ("(p=1e1)", 10, True),
        ("(p=1_0)", 10, False),
        ("(p=1)", True, False),
        ("(p=true)", True, True),
        ("(p=TRUE)", True, True),
        ("(p=no)", False, False),
        ("(p=false)", "false", True),
        ("(p=x)", ["y", "x"], True),
        ("(p=2)", (1, 2), True),
        ("(p=x)", [], False),
        ("(p=*)", [], True),
        ("(p>=9)", 10, True),
        ("(p>=9)", "10", False),
        ("(p>=x)", 10, False),
        ("(p<=9.5)", 9.5, True),
        ("(p<=inf)", 10**400, True),
        ("(p>=0)", True, False),
        ("(p>=b)", ["a", "c"], True),
        ("(p~= Traffic Jams)", "trafficjams", True),
        ("(p~=1.0)", 1, True),
        ("(p~=x)", "y", False),
        ("(p=ab*ba)", "aba", False),
        ("(p=ab*ba)", "abba", True),
        ("(p=*a*b*)", "xbya", False),
        ("(p=*a*b*)", "xayb", True),
        ("(p=7*)", 77, False),
        ("(p=h*)", ["g1", "h1"], True),
        ("(!(p=x))", "y", True),
    ],
)
def test_the_type_of_the_property_decides(text: str, value: object, fits: bool):
    """Numbers compare as numbers, truth values as such, text as text; of several values any may fit."""
    assert parse(text).match({"p": value}) is fits


@pytest.mark.parametrize("text", ["(p=x)", "(p~=x)", "(p>=x)", "(p<=x)", "(p=x*)", "(p=*)"])
def test_an_absent_property_never_fits(text: str):
    """A comparison with a property that is not there fails, and its negation holds."""
    assert parse(text).match({}) is False
    assert parse(f"(!{text})").match({}) is True


@given(st.dictionaries(names, st.one_of(values, st.integers(), st.floats(allow_nan=False), st.booleans()), max_size=4))
@settings(deadline=None)
def test_where_fits_what_it_was_made_from(properties):
    """where(properties) matches those properties, also after a way through text."""
    assert where(properties).match(properties)
    assert parse(str(where(properties))).match(properties)


@given(trees, st.dictionaries(names, st.one_of(values, st.integers(-2, 2), st.booleans()), max_size=4))
@settings(deadline=None)
def test_terms_are_necessary(tree: Filter, properties):
    """What fits has at least one alternative of every term: an index over the terms misses nothing."""
    keys = {(name, text_of(value) if isinstance(value, bool) else value) for name, value in properties.items()}
    if tree.match(properties):
        assert all(any(alternative in keys for alternative in term) for term in tree.terms)


def test_terms_of_alternatives():
    """An `or` of equalities is one term with alternatives; with a part that has none, it is no term at all."""
    assert parse("(|(a=x)(&(b=y)(c>=1)))").terms == ((("a", "x"), ("b", "y")),)
    assert parse("(|(a=x)(c>=1))").terms == ()
    assert parse("(|)").terms == ((),)


def test_same_text_gives_the_same_object():
    """Parsed filters are kept, so that a filter used again is neither read nor compiled again."""
    assert parse("(kept=1)") is parse("(kept=1)")
    assert parse("(kept=1)").test is parse("(kept=1)").test


def test_as_filter_takes_what_callers_pass():
    """Text is parsed, a filter stays itself, nothing fits everything."""
    assert as_filter("(a=1)") == Equal("a", "1")
    assert as_filter(Present("a")) == Present("a")
    assert as_filter(None).match({})


@pytest.mark.parametrize(
    "build",
    [
        lambda: Equal("a b", "x"),
        lambda: Equal("", "x"),
        lambda: Equal("a", 1),
        lambda: Present("a)"),
        lambda: Substring("a", ("x",)),
        lambda: Substring("a", ("", "")),
        lambda: Substring("a", ("x", "", "y")),
    ],
)
def test_a_node_that_has_no_text_cannot_be_built(build):
    """Every filter built from code can be written and read back, so what could not raises at once."""
    with pytest.raises(FilterSyntaxError):
        build()


def test_filters_are_values():
    """Equal filters are equal and hash alike; comparisons of different kinds differ."""
    assert len({Equal("a", "x"), Equal("a", "x"), Approx("a", "x")}) == 2
    with pytest.raises(AttributeError):
        Equal("a", "x").name = "b"  # type: ignore[misc]


def test_examples_of_the_documentation_run():
    """The examples in the module's docstring hold."""
    assert doctest.testmod(filters).failed == 0
