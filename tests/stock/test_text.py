"""`tokenize`: the tokens of a text, and patterns without bound."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exop import Application, slet
from exop.errors import ExpressionError, SettingError
from exop.stock.text import LONGEST, Pattern, Tokenize
from exop.testing import feed
from tests.stock.tools import changed_under_load


@dataclass(frozen=True)
class Note:
    """An item."""

    time: int
    text: str | None


@slet
def notes() -> Iterator[Note]:
    """Items."""
    yield Note(1, "to be or")


def tokens(text: object, pattern: str) -> list[str]:
    """The tokens of a text."""
    return [row["token"] for row in feed(Tokenize, [{"x": text}], field="x", pattern=pattern, into="token")]


@given(st.text(max_size=40), st.sampled_from([r"\w+", r"\w", r"[^,]*", r"a|b+|cc", r"\d++(?:\.\d+)?"]))
def test_each_match_that_is_not_empty_is_a_token(text, pattern):
    """In their order, whatever the letters are."""
    assert tokens(text, pattern) == [found[0] for found in re.finditer(pattern, text) if found[0]]


def test_each_token_comes_with_the_fields_of_its_item():
    """Of a dictionary or a class; `into` may be the field of the text."""
    item = Note(3, "to be")
    assert feed(Tokenize, [item], field="text", pattern=r"\w+", into="word") == [
        {"time": 3, "text": "to be", "word": "to"},
        {"time": 3, "text": "to be", "word": "be"},
    ]
    assert feed(Tokenize, [item], field="text", pattern=r"\w+", into="text")[1] == {"time": 3, "text": "be"}


def test_null_and_a_text_without_tokens_give_no_row_and_what_is_no_text_fails():
    """A text that is too long fails, too: its cost would have no bound."""
    assert tokens(None, r"\w+") == tokens("", r"\w+") == tokens("...", r"\w+") == []
    assert len(tokens("ab " * (LONGEST // 3), r"\w+")) == LONGEST // 3
    with pytest.raises(TypeError, match="the field 'x' is 3, and no text"):
        tokens(3, r"\w+")
    with pytest.raises(ValueError, match="has 10001 characters; the most are 10000"):
        tokens("a" * (LONGEST + 1), r"\w+")
    with pytest.raises(LookupError, match="has no field 'y'; it has x"):
        feed(Tokenize, [{"x": ""}], field="y", pattern="a", into="token")


@pytest.mark.parametrize(
    ("pattern", "told"),
    [
        ("(a", "it is no regular expression: missing \\)"),
        ("(a+)+", r"its cost has no bound: it repeats a group; repeat a set of characters, such as \[a-z\]\+"),
        ("(?:a|aa)*b", "it repeats a group"),
        ("(a|b){2,}", "it repeats a group"),
        (r"(\w)\1", "it refers to one of its groups"),
        (r"(?P<x>\w)(?P=x)", "it refers to one of its groups"),
        ("a*a*b", "of several repetitions, all but one must be possessive"),
        ("a{1,9}.{2,}", "all but one must be possessive"),
        ("a?a?a?a?aaaa", "more than 3 choices"),
        ("(a|b)(a|b)(a|b)(a|b)", "more than 3 choices"),
        ("a" * 501, "it has 501 characters"),
    ],
)
def test_a_pattern_without_bound_is_refused_where_it_is_written(pattern, told):
    """The error names the setting, and how to write it."""
    with pytest.raises(SettingError, match=f"x: the setting 'pattern' does not fit: .*{told}"):
        Application("a").add("x", Tokenize, field="x", pattern=pattern, into="y")


@pytest.mark.parametrize(
    "pattern",
    [
        r"[()*+?]+",
        r"\(\*\+",
        r"[]a+]b*",
        r"\w++@\w++\.\w+",
        "(?i:ab)?+c+",
        r"\d{4}-\d{2}-\d{2}",
        "x|y|z|u|v|w",
        r"(?<=#)\w+",
    ],
)
def test_a_pattern_with_a_bound_is_taken(pattern):
    """Sets and escapes are no repetitions; possessive repetitions, and alternatives outside of groups, have a bound."""
    assert Pattern(pattern) == pattern


def test_a_wrong_field_is_refused():
    """Before and behind the slet."""
    app = Application("typed")
    source = app.add("notes", notes)
    with pytest.raises(SettingError, match="'field' does not fit: Note has no field 'txt'; did you mean 'text'"):
        app.add("x", Tokenize, item=source, field="txt", pattern="a", into="word")
    words = app.add("words", Tokenize, item=source, field="text", pattern="a", into="word")
    with pytest.raises(ExpressionError, match="has no field 'wrd'; did you mean 'word'"):
        app.add("wrong", "stock:filter", item=words, where="item.wrd == 'a'")
    app.add("right", "stock:filter", item=words, where="item.word == 'a' and item.time > 0")


def test_another_instance_goes_on_while_rows_flow():
    """Nothing is lost, doubled or reordered."""

    class Again(Tokenize, name="again"):
        pass

    app_of_texts = {"field": "name", "pattern": "[a-z]+", "into": "token"}
    rows, seen = changed_under_load(Tokenize, lambda mesh: mesh.replace("x", Again), **app_of_texts)
    assert seen == [row | {"token": token} for row in rows for token in ("row", "of", "group")]
