"""An operation is a small typed function; a mistake is told at the line that makes it."""

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


def test_request_must_be_declared() -> None:
    """A parameter that is no Request, or one too many, is told at the decorator."""
    with pytest.raises(TypeError, match="annotated with a sub-class of"):

        @operation
        def loose(request: dict[str, object]) -> None: ...

    with pytest.raises(TypeError, match="is no operation"):

        @operation
        def many(request: Words, more: int) -> None: ...

    with pytest.raises(TypeError, match="is no operation"):

        @operation
        def untyped(request) -> None: ...  # type: ignore[no-untyped-def]


def test_method_mistake_is_told() -> None:
    """The same mistake in a method is told when the operations are collected."""

    class Wrong:
        @operation
        def loose(self, request: int) -> None: ...

    with pytest.raises(TypeError, match=r"Wrong\.loose is no operation"):
        operations(Wrong())


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
