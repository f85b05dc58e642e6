"""An operation is a small typed function; a mistake is told at the line that makes it."""

from typing import Annotated

import msgspec
import pytest

from exop.remoting import NoRequest, Page, PageRequest, operation, operations, page
from tests.remoting.desk import Answer, Desk, Words


def test_read_from_the_signature() -> None:
    """Name, request, reply and help come from the signature and the docstring."""
    found = operations(Desk())["echo"]
    assert (found.name, found.request, found.reply, found.doc) == ("echo", Words, Answer, "Say the words again.")


def test_the_function_stays_what_it_was() -> None:
    """A marked method is called as before."""
    assert Desk().echo(Words(words=["a"])) == Answer("a", 1)


def test_methods_are_bound() -> None:
    """Operations of an object run on that object."""
    first, second = Desk(), Desk()
    second.names = ["other"]
    found = operations(second)["services"]
    assert found.handler(PageRequest()) == Page(["other"])
    assert first.names != second.names


def test_without_request() -> None:
    """A function without a parameter needs to know nothing."""
    found = operations(Desk())["ready"]
    assert found.request is NoRequest
    assert found.handler(NoRequest()) is True


def test_one_name_once() -> None:
    """Two operations with one name are refused."""
    with pytest.raises(ValueError, match="two operations are called 'echo'"):
        operations(Desk(), Desk())


def test_parameters_are_the_fields_of_the_request() -> None:
    """A request is made of the signature: types, bounds and defaults; a wrong or unknown field is refused."""

    @operation(role="observe")
    def repeat(word: str, times: Annotated[int, msgspec.Meta(ge=1)] = 1) -> str:
        return word * times

    found = operations(repeat)["repeat"]
    assert (found.role, found.reply, operations(Desk())["echo"].role) == ("observe", str, "admin")
    assert found.handler(msgspec.convert({"word": "a", "times": 3}, found.request)) == "aaa"
    assert found.handler(found.request(word="a")) == "a"
    for wrong in ({}, {"word": 1}, {"word": "a", "times": 0}, {"word": "a", "more": 1}):
        with pytest.raises(msgspec.ValidationError):
            msgspec.convert(wrong, found.request)


def test_an_overriding_method_is_the_operation() -> None:
    """The signature of the base class, which is the interface, counts; the method of the object is called."""

    class Other(Desk):
        def ready(self) -> bool:
            return False

    assert operations(Other())["ready"].handler(NoRequest()) is False
    assert operations(Other())["ready"].doc == "Say yes."


def test_parameters_must_be_annotated() -> None:
    """A parameter without a type is told at the line that makes the mistake."""
    with pytest.raises(TypeError, match="is no operation: annotate its parameter 'request' with a type"):

        @operation
        def untyped(request) -> None: ...  # type: ignore[no-untyped-def]


def test_pages_meet() -> None:
    """The pages of a list are the list, whatever the size of a page."""
    names = [f"{number:03}" for number in range(23)]
    for limit in (1, 5, 22, 23, 24):
        request: PageRequest | None = PageRequest(limit=limit)
        found: list[str] = []
        while request is not None:
            part = page(reversed(names), request, key=str)
            assert len(part.items) <= limit
            found += part.items
            request = None if part.after is None else PageRequest(after=part.after, limit=limit)
        assert found == names
