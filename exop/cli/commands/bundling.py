"""`exop bundle …`: manages the bundles on a running platform, and makes the skeleton of a new one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from shlex import quote
from typing import Annotated, Any

from cyclopts import Parameter

from exop.cli.options import Bounds, Call, Json
from exop.cli.peers import the_platform
from exop.cli.text import answer, columns
from exop.errors import BundleBroken

# Modules are imported inside the functions, since only these commands make bundles.


def bundle_new(
    folder: Path, /, *, script: Annotated[Path | None, Parameter(name="--from")] = None, json: Json = False
) -> int:
    """Make the skeleton of a bundle: a folder with `bundle.toml`, a module with a slet, and a test.

    With --from, it has the slets of a script, its functions with `-> Application`, and what they need, but no test.

    Example: `exop bundle new speeds --from sketch.py`

    Args:
        folder: The folder to make; its name becomes the name of the bundle.
        script: A Python file whose slets the bundle offers.
    """
    from exop.bundle.skeleton import make_skeleton

    made = make_skeleton(folder, script)
    none = f"; {script} has no function with `-> Application`: write one that builds it, and name it in bundle.toml"
    more = f", exop apply {made.name}" if made.builders else none if script is not None else ""
    text = f"{made.key} in {folder}; next: exop bundle install {quote(str(folder))} --start{more}"
    return answer({"bundle": made.key, "folder": str(folder)}, text, json=json)


def bundle_install(path: Path, /, *, start: bool = False, call: Call = Call()) -> int:
    """Send a bundle to a running platform, which stores it, but imports its code only when the bundle is started.

    Example: `exop bundle install speeds --start`

    Args:
        path: A folder with a bundle.toml, or a zip archive of one.
        start: Start the bundle as well.
    """
    with the_platform(call) as platform, _errors_in(path):
        facts = platform.bundles.install(path)
        if start:
            facts = platform.bundles.start(facts["bundle"])
    return _state(facts, json=call.json)


def bundle_start(bundle: str, /, *, call: Call = Call()) -> int:
    """Start a bundle: import its code, and register its slets and channels.

    The bundles that it requires are started first.

    Example: `exop bundle start speeds@0.1.0`

    Args:
        bundle: NAME@VERSION, or NAME for the highest version.
    """
    with the_platform(call) as platform:
        return _state(platform.bundles.start(bundle), json=call.json)


def bundle_update(
    path: Path, /, *, application: str | None = None, bounds: Bounds = Bounds(), call: Call = Call()
) -> int:
    """Replace the started version of a bundle by a new one, in all applications, while the streams run.

    The command replaces all components of the bundle, and of the bundles that import from it, which get versions of the
    same code that import from the new one. All retain their states; if one cannot be replaced, none is. Then the
    command stops the old versions, which remain installed. An application that runs on several hosts is updated on all
    of them, by a command to its home; if other applications use the bundle, too, each of those that run on several
    hosts is updated by a command of its own, with --application.

    Example: `exop bundle update speeds --timeout 5`

    Args:
        path: A folder with a bundle.toml, or a zip archive of one.
        application: Update only this application; the old version remains started as long as others use it.
    """
    with the_platform(call) as platform, _errors_in(path):
        facts = platform.bundles.update(path, application, **bounds.limits())
    replaced = ", ".join(facts["replaced"]) or "no node runs a slet of it"
    lines = [f"{facts['bundle']}: {facts['state']}; replaced: {replaced}"]
    lines += [f"with it, since they import from it: {', '.join(facts['along'])}"] if facts["along"] else []
    lines += [f"{node}: {'; '.join(changes)}" for node, changes in facts["settings"].items()]
    lines += [f"stopped: {', '.join(facts['stopped'])}"] if facts["stopped"] else []
    lines += [f"not replaced: {node}, whose home is {home}" for node, home in facts["elsewhere"].items()]
    lines += facts["warnings"]
    return answer(facts, "\n".join(lines), json=call.json)


def bundle_stop(bundle: str, /, *, call: Call = Call()) -> int:
    """Stop a bundle that no application uses; the bundle remains installed.

    Example: `exop bundle stop speeds`

    Args:
        bundle: NAME@VERSION, or NAME if one version is started.
    """
    with the_platform(call) as platform:
        return _state(platform.bundles.stop(bundle), json=call.json)


def bundle_uninstall(bundle: str, /, *, call: Call = Call()) -> int:
    """Stop a bundle that no application uses, and remove it.

    Example: `exop bundle uninstall speeds@0.1.0`

    Args:
        bundle: NAME@VERSION, or NAME if there is one version.
    """
    with the_platform(call) as platform:
        return _state(platform.bundles.uninstall(bundle), json=call.json)


def bundle_list(*, call: Call = Call()) -> int:
    """List the bundles of a platform: state, slets, missing requirements, and the applications that use them.

    What a bundle offers has the names in its `bundle.toml` until the bundle is started for the first time.

    Example: `exop bundle list --json`
    """
    with the_platform(call) as platform:
        rows = platform.bundles.list()
    none = "no bundle is installed; `exop bundle install FOLDER` installs one"
    head = ("bundle", "state", "offers", "used by", "")
    return answer(rows, lambda: columns(head, map(_row, rows)) or none, json=call.json)


@contextmanager
def _errors_in(path: Path) -> Iterator[None]:
    """Report code that cannot be loaded by the path of its file in the sent folder, not in the platform's copy."""
    from exop.bundle.manifest import MANIFEST, read_manifest

    try:
        yield
    except BundleBroken as error:
        if not path.is_dir() or error.bundle not in (parts := Path(error.file).parts):
            raise
        file = path.joinpath(*parts[parts.index(error.bundle) + 1 :])
        manifest = read_manifest((path / MANIFEST).read_text(encoding="utf-8"), str(path))
        if error.bundle != manifest.key or not file.exists():
            raise
        raise BundleBroken(bundle=error.bundle, file=str(file), line=error.line, problem=error.problem) from error


def _state(facts: Mapping[str, Any], *, json: bool) -> int:
    lack = _lack(facts["missing"])
    return answer(facts, f"{facts['bundle']}: {facts['state']}{lack and '; '}{lack}", json=json)


def _row(facts: Mapping[str, Any]) -> tuple[object, ...]:
    offers = [name.rpartition(":")[2] for name in (*facts.get("slets", ()), *facts.get("channels", ()))]
    remark = facts.get("problem") or _lack(facts.get("missing", ()))
    return facts["bundle"], facts["state"], ", ".join(offers) or "-", ", ".join(facts.get("used_by", ())) or "-", remark


def _lack(missing: Sequence[str]) -> str:
    return f"it lacks {'; '.join(missing)}" if missing else ""
