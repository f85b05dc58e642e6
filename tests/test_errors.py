"""The errors: one tree; facts kept; messages that say what to do."""

from __future__ import annotations

import ast
import copy
import inspect
import pickle
import string
from pathlib import Path

import pytest

from exop import errors
from exop.errors import ExopError, UnknownName, counted, suggest
from tests.error_samples import SAMPLES

ROOT = Path(__file__).parents[1]
CLASSES = {
    name: value for name, value in vars(errors).items() if inspect.isclass(value) and issubclass(value, Exception)
}


def test_there_is_one_root():
    """`except ExopError` catches all that ExoP raises on purpose, and the pairs that must not be mixed are siblings."""
    assert all(issubclass(value, ExopError) for value in CLASSES.values())
    assert not issubclass(errors.ChannelFull, errors.ChannelClosed)
    assert errors.ChannelFull.__base__ is errors.ChannelClosed.__base__ is ExopError


def test_names_and_numbers_of_things():
    """Of hundreds of known names a message lists twenty, and says how many more there are; one thing is singular."""
    many = [f"n{number:03}" for number in range(300)]
    told = suggest("quite else", many)
    assert told.endswith("n018, n019, … and 280 more")
    assert suggest("n299", many).startswith("did you mean 'n299'? known: n000")
    assert suggest("quite else", many[:20]).endswith("n018, n019")
    assert [counted(number, "dead letter") for number in (0, 1, 1234)] == [
        "0 dead letters",
        "1 dead letter",
        "1,234 dead letters",
    ]


def test_every_error_has_a_sample():
    """A new error is added to the samples here: its message is looked at once."""
    assert set(SAMPLES) == set(CLASSES)


@pytest.mark.parametrize("name", SAMPLES)
def test_an_error_composes_its_message_and_keeps_its_facts(name):
    """Facts are attributes; the message is made of them."""
    facts, message = SAMPLES[name]
    error = CLASSES[name](**facts)
    assert str(error) == message
    for fact, value in facts.items():
        assert getattr(error, fact) == value
        assert error.facts[fact] == value
    with pytest.raises(AttributeError):
        error.nothing


@pytest.mark.parametrize("name", SAMPLES)
def test_an_error_can_be_copied_and_sent_to_a_worker_process(name):
    """Copy and pickle keep class, message, facts and notes (multiprocessing does this to errors)."""
    facts, message = SAMPLES[name]
    error = CLASSES[name](**facts)
    error.add_note("in the slet 'a'")
    for other in (copy.copy(error), pickle.loads(pickle.dumps(error))):
        assert type(other) is type(error)
        assert (str(other), other.facts, other.__notes__) == (message, error.facts, ["in the slet 'a'"])


@pytest.mark.parametrize("name", SAMPLES)
def test_the_docstring_names_every_fact(name):
    """What a handler may read from an error stands in its docstring."""
    template = CLASSES[name].template
    fields = {field.split("!")[0].split(":")[0] for _, field, _, _ in string.Formatter().parse(template) if field}
    for field in fields - {"text"}:
        assert f"`{field}`" in (CLASSES[name].__doc__ or ""), field


SAY_NO_CURE = {"ComponentFailed", "PeerRefused", "RequestInvalid", "PluginError", "FeedClosed"}
SAY_NO_CURE |= {"ChannelClosed", "ChannelFull"}


@pytest.mark.parametrize("name", sorted(set(SAMPLES) - SAY_NO_CURE))
def test_a_composed_message_says_what_to_do(name):
    """After the fact comes the cure; in those left out here the problem itself says it, or nobody can do anything."""
    if CLASSES[name].template == "{text}" and CLASSES[name].compose is ExopError.compose:
        return
    message = SAMPLES[name][1]
    assert any(mark in message for mark in ("; ", "did you mean", "expected", "^")), message


def test_suggestions():
    """The nearest name, all names, or that there is none."""
    assert suggest("reprt", ["report"]) == "did you mean 'report'?"
    assert suggest("reprt", ["report", "report"]) == "did you mean 'report'?"
    assert suggest("reprt", ["report", "other"]) == "did you mean 'report'? known: other, report"
    assert suggest("x", ["report", "other"]) == "known: other, report"
    assert suggest("x", [], "node") == "there is no node here"
    missing = UnknownName(place="a", kind="slet", name="duckdb:sql", known=["stock:show"])
    assert str(missing) == "a has no slet 'duckdb:sql'; run `pip install plugins/exop-duckdb` in the folder of ExoP"
    absent = UnknownName(place="a", kind="kind", name="kafka", known=["queue"])
    assert str(absent) == "a has no kind 'kafka'; run `pip install plugins/exop-kafka` in the folder of ExoP"
    known = [*(f"a:{number}" for number in range(30)), "mine@1.0.0:tag", "mine:tag", "mine"]
    own = UnknownName(place="a", kind="slet", name="mine:nix", known=known)
    assert str(own) == "a has no slet 'mine:nix'; did you mean 'mine:tag'? known: mine:tag, mine@1.0.0:tag"
    for module in ("pyarrow", "numpy"):
        file = errors.PluginError(plugin="a.py", problem=f"No module named '{module}'")
        assert str(file).endswith("; run `pip install 'exop[columns]'`")
    assert "did you mean 'duckdb:sql'" in str(
        UnknownName(place="a", kind="slet", name="duckdb:sq", known=["duckdb:sql"])
    )
    assert str(UnknownName(place="a", kind="port", name=5, known=["b"])) == "a has no port 5; known: b"


def raised() -> list[tuple[str, ast.Call]]:
    """Every place in the code where an error of ours is made."""
    found = []
    for folder in ("exop", "plugins", "apps"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Call):
                    name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
                    if name in CLASSES:
                        found.append((f"{path.relative_to(ROOT)}:{node.lineno}", node))
    return found


def test_every_error_is_made_with_all_its_facts():
    """No message fails for a missing fact: each place in the code gives a text, or all that the class wants."""
    lacking = []
    for place, call in raised():
        name = call.func.attr if isinstance(call.func, ast.Attribute) else call.func.id  # type: ignore[attr-defined]
        given = {keyword.arg for keyword in call.keywords}
        if call.args or None in given or "text" in given:
            continue
        wanted = set(SAMPLES[name][0]) - set(CLASSES[name].defaults)
        if not wanted <= given:
            lacking.append(f"{place}: {name} lacks {', '.join(sorted(wanted - given))}")
    assert not lacking, "\n".join(lacking)


def test_a_cure_in_python_has_its_option_beside_it():
    """A user of the command line reads the same message: where it says `lose_state=True`, it names the option, too."""
    missing = []
    for path in [*ROOT.glob("exop/**/*.py"), *ROOT.glob("plugins/*/exop_*/**/*.py")]:
        source = path.read_text(encoding="utf-8")
        for function in ast.walk(ast.parse(source)) if "lose_state=True" in source else ():
            if isinstance(function, ast.FunctionDef):
                told = texts(function)
                missing += [path.name] * (told.count("lose_state=True") > told.count("--lose-state"))
    assert missing == []


def texts(function: ast.FunctionDef) -> str:
    """The texts in a function, without its docstring."""
    found = (
        one.value
        for part in function.body[ast.get_docstring(function) is not None :]
        for one in ast.walk(part)
        if isinstance(one, ast.Constant)
    )
    return "".join(one for one in found if isinstance(one, str))
