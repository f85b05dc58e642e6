"""`exop bundle …`: bundles on a running platform, and a skeleton of a new one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from exop.cli.commands.edits import UNBOUND, Bounds
from exop.cli.options import HERE, Json, Where
from exop.cli.peers import the_platform
from exop.cli.report import DONE
from exop.cli.text import columns, print_json
from exop.errors import BundleBroken

# Imported lazily, inside the functions: only these commands make bundles.


def new_bundle(
    folder: Path,
    /,
    *,
    script: Annotated[
        Path | None, Parameter(name="--from", help="A Python file whose slets the bundle is to have.")
    ] = None,
) -> int:
    """Make the skeleton of a bundle: a folder with `bundle.toml`, a module with a slet, and a test.

    With --from its slets are those of a script, with all that they need of it.

    Args:
        folder: The folder to make; its name becomes the bundle's.
    """
    from exop.bundle.skeleton import make_skeleton

    made = make_skeleton(folder, script)
    print(f"{made.key} in {folder}; next: exop bundle install {folder} --start")
    return DONE


def install_bundle(
    path: Path,
    /,
    *,
    start: Annotated[bool, Parameter(help="Start it as well.")] = False,
    where: Where = HERE,
    json: Json = False,
) -> int:
    """Send a bundle to a running platform, which keeps it; its code is touched when it is started.

    Args:
        path: A folder with a bundle.toml, or a zip archive of one.
    """
    with the_platform(where) as platform, _told_as_sent(path):
        facts = platform.bundles.install(path)
        if start:
            facts = platform.bundles.start(facts["bundle"])
    return _told(facts, json=json)


def start_bundle(bundle: str, /, *, where: Where = HERE, json: Json = False) -> int:
    """Start a bundle: its code is imported, and its slets and channels are offered.

    Bundles that it requires are started before it.

    Args:
        bundle: NAME@VERSION, or NAME for the highest version.
    """
    with the_platform(where) as platform:
        return _told(platform.bundles.start(bundle), json=json)


def update_bundle(path: Path, /, *, bounds: Bounds = UNBOUND, where: Where = HERE, json: Json = False) -> int:
    """Replace the started version of a bundle by a new one, in all applications, while the streams run.

    Every component of the bundle is replaced and keeps its state; all of them, or none if one cannot be. Then the old
    version is stopped; it stays installed.

    Args:
        path: A folder with a bundle.toml, or a zip archive of one.
    """
    with the_platform(where) as platform, _told_as_sent(path):
        facts = platform.bundles.update(path, **bounds.as_data())
    if json:
        print_json(facts)
        return DONE
    print(f"{facts['bundle']}: {facts['state']}; replaced: {', '.join(facts['replaced']) or 'nothing runs of it'}")
    for node, changes in facts["settings"].items():
        print(f"{node}: {'; '.join(changes)}")
    if facts["stopped"]:
        print(f"stopped: {', '.join(facts['stopped'])}")
    return DONE


def stop_bundle(bundle: str, /, *, where: Where = HERE, json: Json = False) -> int:
    """Stop a bundle that no application uses; it stays installed.

    Args:
        bundle: NAME@VERSION, or NAME where one version is started.
    """
    with the_platform(where) as platform:
        return _told(platform.bundles.stop(bundle), json=json)


def uninstall_bundle(bundle: str, /, *, where: Where = HERE, json: Json = False) -> int:
    """Stop a bundle that no application uses, and remove it.

    Args:
        bundle: NAME@VERSION, or NAME where there is one version.
    """
    with the_platform(where) as platform:
        return _told(platform.bundles.uninstall(bundle), json=json)


def list_bundles(*, where: Where = HERE, json: Json = False) -> int:
    """List the bundles of a platform: their state, what they offer, what they lack, who uses them."""
    with the_platform(where) as platform:
        rows = platform.bundles.list()
    if json:
        print_json(rows)
    elif not rows:
        print("no bundle is installed; `exop bundle install FOLDER` installs one")
    else:
        print(columns(("bundle", "state", "offers", "used by", ""), [_row(one) for one in rows]))
    return DONE


@contextmanager
def _told_as_sent(path: Path) -> Iterator[None]:
    """Report code that cannot be loaded by its file in the folder that was sent, not by the platform's copy."""
    try:
        yield
    except BundleBroken as error:
        parts = Path(error.file).parts
        if not path.is_dir() or error.bundle not in parts or error.bundle != _key(path):
            raise
        file = path.joinpath(*parts[parts.index(error.bundle) + 1 :])
        if not file.exists():
            raise
        told = BundleBroken(bundle=error.bundle, file=str(file), line=error.line, problem=error.problem)
        raise told from error


def _key(folder: Path) -> str:
    from exop.bundle.manifest import MANIFEST, read_manifest

    return read_manifest((folder / MANIFEST).read_text(encoding="utf-8"), str(folder)).key


def _told(facts: dict[str, Any], *, json: bool) -> int:
    if json:
        print_json(facts)
    else:
        print(f"{facts['bundle']}: {facts['state']}{_lack(facts['missing'])}")
    return DONE


def _row(facts: dict[str, Any]) -> tuple[object, ...]:
    offers = ", ".join(_offered(facts.get("slets", ())) + _offered(facts.get("channels", ())))
    remark = facts.get("problem", "") or _lack(facts.get("missing", ())).removeprefix("; ")
    return facts["bundle"], facts["state"], offers or "-", ", ".join(facts.get("used_by", ())) or "-", remark


def _offered(names: Sequence[str]) -> list[str]:
    return [name.rpartition(":")[2] for name in names]


def _lack(missing: Sequence[str]) -> str:
    return f"; it lacks {'; '.join(missing)}" if missing else ""
