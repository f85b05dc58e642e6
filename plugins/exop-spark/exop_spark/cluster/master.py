"""The master of the setting `master`: which are possible, how its workers reach this process, and whether they can."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from ..errors import MasterRefused
from ..failure import condition_of, detail_of
from ..feed.server import is_loopback
from . import probe
from .standalone import secret_of

if TYPE_CHECKING:
    from pyspark import SparkContext

#: Longest wait for a master to accept a connection, in seconds.
_CONNECT: Final = 5.0
#: Longest wait for a first executor, in seconds.
_EXECUTOR: Final = 180.0
_KNOWN: Final = ("spark://", "sc://", "k8s://", "yarn")


def check_master(master: str) -> None:
    """Accept `local`, `local[n]`, `local[*]`, `spark://…`, `sc://…`, `k8s://…` and `yarn`.

    Raises:
        MasterRefused: another master.
    """
    if not (is_local(master) or master.startswith(_KNOWN)):
        cure = "use local[*], local[N], spark://HOST:PORT, sc://HOST:PORT, k8s://URL or yarn"
        raise MasterRefused(master=master, problem="it is none that exop-spark knows", cure=cure)


def is_local(master: str) -> bool:
    """Whether Spark runs in this process's own Java."""
    return master == "local" or master.startswith("local[")


def is_on_loopback(master: str) -> bool:
    """Whether nothing of the cluster is outside this machine."""
    return is_local(master) or is_loopback(urlsplit(master).hostname or "")


def own_host(master: str, given: str = "") -> str:
    """The address at which the workers of *master* reach this process, *given* where the user knows it better.

    Empty for a local master, which needs none.
    """
    if is_local(master):
        return ""
    if is_on_loopback(master):
        return "127.0.0.1"
    if given:
        return given
    url = urlsplit(master.removeprefix("k8s://"))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as way:
        # No packet is sent: the system chooses the address that this route would have.
        way.connect((url.hostname or "192.0.2.1", url.port or 443))
        return str(way.getsockname()[0])


def secrets_of(master: str) -> dict[str, str]:
    """The options by which a cluster of `exop-spark cluster up` knows its owner; none for others."""
    secret = secret_of(master)
    return {"spark.authenticate": "true", "spark.authenticate.secret": secret} if secret else {}


def check_reachable(master: str) -> None:
    """Check that a process listens at the address of the master: Spark itself would try for minutes.

    Raises:
        MasterRefused: nobody does.
    """
    if not master.startswith(("spark://", "sc://")):
        return
    problems = []
    scheme, _, rest = master.partition("://")
    for one in rest.split(","):
        url = urlsplit(f"{scheme}://{one}")
        try:
            port = url.port or (7077 if scheme == "spark" else 15002)
            socket.create_connection((url.hostname or "", port), timeout=_CONNECT).close()
            return
        except (OSError, ValueError) as problem:
            problems.append(str(problem))
    cure = "`exop-spark cluster status` shows what runs on this machine, `exop-spark cluster up` starts a cluster"
    raise MasterRefused(master=master, problem=f"nobody answers there ({problems[-1]})", cure=cure)


def check_encrypted(master: str, setting: Callable[[str, str], Any]) -> None:
    """Insist on encryption where rows, and the tickets by which they are read, leave this machine.

    Raises:
        MasterRefused: Spark is set up to send them for all to read.
    """
    if is_on_loopback(master):
        return

    def holds(name: str) -> bool:
        return str(setting(name, "false")).lower() == "true"

    if holds("spark.authenticate") and (holds("spark.network.crypto.enabled") or holds("spark.ssl.rpc.enabled")):
        return
    raise MasterRefused(
        master=master,
        problem="its workers are on other hosts, and Spark would send rows and state there unencrypted",
        cure="set spark.authenticate and spark.network.crypto.enabled to true in spark-defaults.conf, here and there",
    )


def check_workers(master: str, context: SparkContext) -> None:
    """Run one task on the cluster, which shows that its Python can do the work.

    Raises:
        MasterRefused: no executor comes, or it lacks a module, or has another version of Python or Spark.
    """
    from pyspark import cloudpickle

    if is_local(master):
        return
    cloudpickle.register_pickle_by_value(probe)  # type: ignore[no-untyped-call]
    found: list[Any] = []

    def run() -> None:
        try:
            found.extend(context.parallelize([0], 1).map(probe.versions).collect())
        except Exception as error:  # noqa: BLE001 - told by the caller, in its own words
            found.append(error)

    task = threading.Thread(target=run, name="exop-spark probe", daemon=True)
    task.start()
    task.join(_EXECUTOR)
    if not found:
        context.cancelAllJobs()
        raise MasterRefused(
            master=master,
            problem=f"it gave no executor within {_EXECUTOR:.0f} s: its cores or memory are in use",
            cure="end another application, add a worker (`exop-spark cluster add-worker`), or lower spark.cores.max",
        )
    problem = _failure(found[0]) if isinstance(found[0], Exception) else probe.difference(probe.versions(0), found[0])
    if problem:
        cure = "install pyspark, pyarrow and pandas there, as here, and set PYSPARK_PYTHON to that interpreter"
        raise MasterRefused(master=master, problem=f"its workers cannot do the work: {problem}", cure=cure)


def _failure(error: Exception) -> str:
    text = str(error)
    missing = next((line for line in text.splitlines() if "No module named" in line), "")
    return missing.strip() or detail_of(text, condition_of(text))
