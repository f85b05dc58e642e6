"""The command line: `exop COMMAND`. Each command asks a platform, and prints the result as text or as JSON."""

from __future__ import annotations

import io
import os
import sys


def main(arguments: list[str] | tuple[str, ...] | None = None) -> int:
    """Run one command; return 0 (success), 1 (failure), 2 (mistake), 3 (dead letters), or 141 (the output is not read).

    The entry point of `exop` and `python -m exop`. *arguments* are by default those of the process.
    """
    try:
        open_closed_streams()
        given = list(sys.argv[1:] if arguments is None else arguments)
        # Imported lazily: the overview needs no parser.
        from exop.cli.overview import discovered, is_wanted, overview

        if not is_wanted(given):
            from exop.cli.entry import run_command_line

            return run_command_line(given)
        plugins, added = discovered(), {}
        if offers := [(plugin, offer) for plugin, offer in plugins.ask("register_commands") if offer]:
            from exop.cli.entry import add_plugin_commands, make_app

            added = add_plugin_commands(make_app(), plugins, offers)
        summaries = {name: (one.__doc__ or "").strip().partition("\n")[0] for name, one in added.items()}
        print("\n".join(overview(summaries)), flush=True)
        return 0
    except BrokenPipeError:
        return 141
    except KeyboardInterrupt:  # while modules are imported
        os.write(2, b"exop: stopped\n")
        return 130
    except OSError as problem:  # there is no room for the overview
        from exop.cli.report import report_error

        return report_error(problem)
    finally:
        try:
            sys.stdout.flush()
        except OSError:
            # Buffered output has no reader (`exop services | head`), or no room: Python would complain at exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def open_closed_streams() -> None:
    """Open standard streams that were closed before the program began (`2>&-`), so that no file gets their numbers.

    A character that a stream cannot encode is printed as an escape.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if (stream := getattr(sys, name)) is None:
            nowhere = os.open(os.devnull, os.O_RDWR)  # the lowest free number, which is that of the closed stream
            setattr(sys, name, open(nowhere, mode, encoding="utf-8"))  # noqa: SIM115 (open until the program ends)
        elif mode == "w" and isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
