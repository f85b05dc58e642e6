"""One door for everything that is logged."""

import json
import logging
from collections.abc import Iterator

import pytest
import structlog

from exop import logs
from exop.logs import levels_in, logger, set_up


@pytest.fixture(autouse=True)
def _put_back() -> Iterator[None]:
    """Logging belongs to the whole process: leave it as it was."""
    root, ours = logging.getLogger(), logging.getLogger("exop")
    kept = root.handlers.copy(), root.level, ours.level, vars(logs._choice).copy()
    vars(logs._choice).update(vars(logs._Choice()))  # as in a process of its own, whatever ran here before
    yield
    root.handlers, root.level, ours.level = kept[:3]
    vars(logs._choice).update(kept[3])
    structlog.reset_defaults()


def test_lines_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    """By default a log line is readable text on stderr; stdout is never touched."""
    logger("exop.x").warning("something happened", node="a")
    out, err = capsys.readouterr()
    assert out == ""
    assert "something happened" in err
    assert "node=a" in err


def test_lines_for_programs(capsys: pytest.CaptureFixture[str]) -> None:
    """As JSON every line is one object, errors with their traceback as data, facts that JSON has not as text."""
    set_up(form="json")
    try:
        raise ValueError("no")
    except ValueError as error:
        logger("exop.x").error("it broke", exc_info=error, thing=object)
    line = json.loads(capsys.readouterr().err)
    assert (line["event"], line["level"], line["logger"]) == ("it broke", "error", "exop.x")
    assert line["exception"][0]["exc_type"] == "ValueError"
    assert line["thing"] == "<class 'object'>"
    assert "timestamp" in line


def test_levels(capsys: pytest.CaptureFixture[str]) -> None:
    """What is below the chosen level is not shown."""
    set_up(level="warning")
    logger("exop.x").info("quiet")
    logger("exop.x").warning("loud")
    logging.getLogger("exop.y").info("quiet too")
    assert capsys.readouterr().err.count("quiet") == 0


def record(name: str, level: int, text: str, file: str = json.__file__) -> None:
    """Log something from the code in *file*."""
    one = logging.getLogger(name)
    if one.isEnabledFor(level):
        one.handle(one.makeRecord(name, level, file, 1, text, (), None))


def test_standard_logging_takes_the_same_way(capsys: pytest.CaptureFixture[str]) -> None:
    """What standard logging is told leaves as the rest does: ours and the user's, and libraries' from warning on."""
    set_up(form="json")
    logging.getLogger("exop.remoting").info("peer %s", "here")
    record("somebody.else", logging.INFO, "chatter")
    record("somebody.else", logging.WARNING, "careful")
    logging.getLogger("mine").info("my own")
    logging.getLogger("mine").debug("not asked for")
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert [(line["logger"], line["event"]) for line in lines] == [
        ("exop.remoting", "peer here"),
        ("somebody.else", "careful"),
        ("mine", "my own"),
    ]


def test_a_logger_with_a_level_of_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    """`LOGGER=LEVEL` holds for the logger and those below it, also for libraries; another choice forgets it."""
    level, named = levels_in(["warning", "mine=DEBUG", "mine.quiet=error", "somebody.else=info", "mine=debug"])
    set_up(level, "json", named)
    for name in ("mine", "mine.sub", "mine.quiet", "yours"):
        logging.getLogger(name).debug("debug")
        logging.getLogger(name).warning("warning")
    record("somebody.else", logging.INFO, "chatter")
    logger("exop.x").info("not asked for")
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert [(line["logger"], line["event"]) for line in lines] == [
        ("mine", "debug"),
        ("mine", "warning"),
        ("mine.sub", "debug"),
        ("mine.sub", "warning"),
        ("yours", "warning"),
        ("somebody.else", "chatter"),
    ]
    set_up("warning")
    logging.getLogger("mine").info("forgotten")
    assert capsys.readouterr().err == ""


def test_a_level_that_there_is_not() -> None:
    """The error names those that there are."""
    with pytest.raises(ValueError, match="no level 'loud'; known: debug, info, warning, error; or LOGGER=LEVEL"):
        levels_in(["mine=loud"])


def test_an_embedding_program_decides(capsys: pytest.CaptureFixture[str]) -> None:
    """A program that has configured structlog and embeds a platform gets the log lines its own way."""
    seen = []

    def keep(_: object, method: str, event: dict[str, object]) -> dict[str, object]:
        seen.append((method, event))
        raise structlog.DropEvent

    structlog.configure(processors=[keep])
    logger("exop.x").warning("something")
    assert seen == [("warning", {"event": "something"})]
    assert capsys.readouterr().err == ""


class Forging(Exception):
    """Its text looks like further log lines."""

    def __str__(self) -> str:
        return "no\n12:00:00 [info     ] all is well\x1b[2J"


class Mute(Exception):
    """Nothing can be asked of it."""

    def __getattribute__(self, name: str) -> object:
        raise SystemExit(name)


@pytest.mark.parametrize("form", ["console", "json"])
@pytest.mark.parametrize("kind", [Forging, Mute])
def test_an_exception_forges_no_log_line(capsys: pytest.CaptureFixture[str], form: str, kind: type[Exception]) -> None:
    """Its lines are indented, its control characters escaped; one that cannot be asked is logged all the same."""
    set_up(form=form)
    try:
        raise kind
    except kind as error:
        text = "nothing" if kind is Mute else str(error)
        logger("exop.x").error(f"it broke: {text}", exc_info=error, why=text, item=[error])
        logging.getLogger("mine").exception(text)
    lines = capsys.readouterr().err.splitlines()
    assert len([line for line in lines if not line.startswith("    ")]) == 2
    assert not any("\x1b" in line for line in lines)
    assert kind.__name__ in "".join(lines)
