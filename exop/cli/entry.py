"""Runs one command from the arguments of the process, and converts every error into an exit code."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import App, CycloptsError, Parameter, UnknownOptionError, UnusedCliTokensError, ValidationError

import exop
from exop.cli.overview import COMMANDS, COMMON, EPILOGUE, FAMILIES, HELP, PLANNED, discovered
from exop.cli.report import DONE, INTERRUPTED, MISTAKE, report_error, say
from exop.hooks import Plugins
from exop.logs import levels_in, set_up

#: Flags have no negative form; the help texts name defaults.
PLAIN = Parameter(negative=(), show_default=False)

Format = Literal["console", "json"]


def run_command_line(arguments: list[str]) -> int:
    """Run one command and return its exit code; only a broken pipe raises, which `main` handles for all output."""
    try:
        app = make_app(arguments)
        # Plugins need not be loaded if the first word is a built-in command.
        first = next((word for word in arguments if not word.startswith(("-", "__complete"))), None)
        if first is None or first not in app:
            plugins = discovered()
            add_plugin_commands(app, plugins, plugins.ask("register_commands"))
            if arguments and not arguments[0].startswith("-") and arguments[0] not in app:
                arguments = arguments[:1]  # `exop replac --help` is the same mistake as `exop replac`
        add_common_options(app)
        result = app.meta(arguments)
        sys.stdout.flush()
        return result if isinstance(result, int) and not isinstance(result, bool) else DONE
    except CycloptsError as problem:
        command = " ".join(["exop", *(problem.command_chain or ()), "--help"])
        say(f"exop: {_one_line(problem)}; see `{command}`")
        return MISTAKE
    except KeyboardInterrupt:
        say("exop: stopped")
        return INTERRUPTED
    except BrokenPipeError:
        raise
    except Exception as error:  # noqa: BLE001 (the last resort of a program)
        wanted = os.environ.get("EXOP_DEBUG", "").lower() in ("1", "t", "true", "y", "yes")  # as the parser reads it
        return report_error(error, debug=wanted or "--debug" in arguments)


def make_app(arguments: Sequence[str] = ()) -> App:
    """Return the built-in commands; those that *arguments* may name are imported at once, the others on demand."""
    app = App(
        name="exop",
        help=HELP,
        version=lambda: f"exop {exop.__version__}",
        help_epilogue=EPILOGUE,
        default_parameter=PLAIN,
        result_action="return_value",
        suppress_keyboard_interrupt=False,
        exit_on_error=False,
        print_error=False,
        help_format="markdown",
    )
    app.register_install_completion_command(add_to_startup=False)
    for command in COMMANDS:
        family, _, name = command.names[0].rpartition(" ")
        function = command.function if (family or name) in arguments else f"{command.module}:{command.name}"
        if family and family not in app:
            app.command(App(name=family, help=FAMILIES[family], default_parameter=PLAIN, result_action="return_value"))
        (app[family] if family else app).command(function, name=name if family else command.names)
    return app


def add_plugin_commands(app: App, plugins: Plugins, offers: Iterable[tuple[str, Any]]) -> dict[str, Callable[..., Any]]:
    """Add the commands of plugins, and return them by name; `plugins.broken` records those that cannot be added.

    *offers* are the plugins, each with its answer to `register_commands`.
    """
    added: dict[str, Callable[..., Any]] = {}
    for plugin, offered in offers:
        try:
            for function in offered or ():
                if (name := str(function.__name__).replace("_", "-").strip("-")) in app:
                    raise ValueError(f"its command {name!r} is taken already")
                alone = App(default_parameter=PLAIN)
                alone.default(function)
                alone.assemble_argument_collection()  # raises if its signature would break the help of all commands
                app.command(function, name=name)
                added[name] = function
        except Exception as problem:  # noqa: BLE001 (an invalid command must not affect the others)
            plugins.note(plugin, problem)
    return added


def add_common_options(app: App) -> None:
    """Add the options that every command has; they may precede or follow the command."""

    def launch(
        *tokens: Annotated[str, Parameter(show=False, allow_leading_hyphen=True)],
        debug: Annotated[bool, Parameter(help=COMMON["--debug"][1], env_var="EXOP_DEBUG")] = False,
        log_format: Annotated[Format, Parameter(help=COMMON["--log-format"][1], env_var="EXOP_LOG")] = "console",
        log_level: Annotated[
            tuple[str, ...],
            Parameter(
                help=COMMON["--log-level"][1], env_var="EXOP_LOG_LEVEL", validator=lambda _, texts: levels_in(texts)
            ),
        ] = (),
    ) -> Any:
        """Options of every command."""
        level, named = levels_in(log_level)
        set_up("debug" if debug else level, log_format, named)
        return app(_dry_run_of(app, tokens))

    app.meta.default(launch)
    app.meta.suppress_keyboard_interrupt = False
    app.meta.group_parameters = "Options of every command"


def _dry_run_of(app: App, tokens: Sequence[str]) -> Sequence[str]:
    """Return `exop VERB --dry-run …` for `exop plan VERB …`, which so takes what the verb takes; else the same."""
    verbs = [verb for verb in PLANNED if verb in tokens] if "plan" in tokens[:1] else []
    known = [argument for name in ("plan", *verbs) if verbs for argument in app[name].assemble_argument_collection()]
    flags = {*app.help_flags, *(name for argument in known if argument.hint is bool for name in argument.names)}
    alone = [not one.startswith("-") or "=" in one or one in flags for one in tokens]  # no value follows
    words = (at for at in range(1, len(tokens)) if alone[at - 1] and not tokens[at].startswith("-"))
    if (at := next(words, 0)) and (word := tokens[at]) in verbs and not Path(word).exists():
        return [word, *tokens[1:at], "--dry-run", *tokens[at + 1 :]]
    return tokens


def _one_line(problem: CycloptsError) -> str:
    text = " ".join(str(problem).split())
    if isinstance(problem, UnusedCliTokensError):
        text = f"too many arguments: {' '.join(problem.unused_tokens or ())}"
    elif (
        isinstance(problem, UnknownOptionError)
        and "Did you mean" not in text
        and any("--params" in argument.names for argument in problem.argument_collection)
    ):
        name = (problem.token.keyword or problem.token.value).partition("=")[0].lstrip("-").replace("-", "_")
        text = f"{text.removesuffix('.')}; a parameter of the application is written {name}=VALUE"
    elif isinstance(problem, ValidationError) and problem.argument is not None:
        text = f"{problem.argument.name}: {problem.exception_message}"
    return text if text.endswith("..") else text.removesuffix(".")
