"""Run the durable application in a state directory until it has finished: start it, or let it go on."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Any

from bench.durable_app import ON_SPARK
from exop import Platform
from exop.errors import ExopError, StaleMesh

#: The engines of the aggregate, in turn.
ENGINES = ("stock", "spark", "duckdb")
HERE = Path(__file__).parent
NAME = "durable"


def main() -> int:
    """Exit code 0 when it has finished, 3 when it could not be started again."""
    parser = argparse.ArgumentParser(prog="python -m bench.durable_app")
    parser.add_argument("folder", type=Path, help="where state and output are")
    parser.add_argument("--to", type=int, default=20_000, help="how many numbers")
    parser.add_argument("--every", type=float, default=0.02, help="seconds between two checkpoints")
    parser.add_argument("--megabytes", type=float, default=0.01, help="the size of the large state")
    parser.add_argument("--changes", type=float, default=0.0, help="seconds between two replacements; 0: none")
    parser.add_argument("--only", default="", help="the only node that is replaced")
    parser.add_argument("--pace", type=float, default=0.0, help="seconds that 500 numbers take at least")
    parser.add_argument("--spark", action="store_true", help="with two queries on Spark")
    given = parser.parse_args()
    begin = time.perf_counter()
    with Platform(state=given.folder / "state", control=False) as platform:
        for name, problem in platform.failed_to_restart.items():
            print(f"{name}: {problem}", file=sys.stderr)
            return 3
        if not known(platform):
            start(platform, given)
        print(f"started {time.perf_counter() - begin:.4f}", flush=True)
        while NAME in platform.applications() and not platform.wait(NAME, given.changes or None):
            change(platform, given.only)
        return 0


def known(platform: Platform) -> bool:
    """It has been started before: killed after it had finished, it is not run once more."""
    store = platform._applications.store
    return store is not None and any(one.name == NAME for one in store.applications())


def start(platform: Platform, given: argparse.Namespace) -> None:
    """Deploy it anew."""
    name = platform.load(HERE)
    slet = platform.slets()[f"{name}:numbers"].factory
    build = sys.modules[slet.__module__].durable_app
    options = {"every": given.every, "megabytes": given.megabytes, "pace": given.pace, "spark": given.spark}
    app = build(to=given.to, folder=given.folder, **options)
    platform.apply(app.build())


def change(platform: Platform, only: str = "") -> None:
    """Replace a slet by its twin, or the twin by it; or give an engine another setting, which opens another one."""
    mesh = platform.mesh(NAME)
    twins = {"keyed": "keyed_again", "doubled": "doubled_here", "spark_doubled": "native_doubled"}
    twins |= {twin: name for name, twin in twins.items()}
    nodes = ["keyed", "doubled", "engine", *(name for name in ON_SPARK if name in mesh.nodes)]
    node = only or nodes[mesh.revision % len(nodes)]
    slet = mesh.node(node).slet
    if node == "engine":
        after = mesh.configure(node, most=30 + mesh.revision % 20)
    elif node == "aggregate":
        order = [f"{plugin}:aggregate" for plugin in ENGINES if f"{plugin}:aggregate" in platform.slets()]
        following = order[(order.index(f"{slet.plugin}:aggregate") + 1) % len(order)]
        settings: dict[str, Any] = {"warm_up": 0} if "spark" in following else {}
        after = mesh.replace(node, platform.slets()[following], **settings)
    elif node == "spark-sums":
        after = mesh.configure(node, max_rows=100_000 + mesh.revision)
    else:
        after = mesh.replace(node, platform.slets()[f"{slet.plugin}:{twins[slet.name]}"])
    try:
        platform.apply(after, timeout=60)
    except StaleMesh:
        return
    except ExopError as problem:
        # Right after a crash an engine is ahead of what is before it: the change is refused, and made later.
        if "finished" not in str(problem) and "is ahead of" not in str(problem):
            raise


if __name__ == "__main__":
    sys.exit(main())
