"""The checks of the setting `master`: its form, its address, encryption, and the Python of its workers."""

from __future__ import annotations

import re
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

#: The maximum time in which a master accepts a connection, in seconds.
_CONNECT: Final = 5.0
#: The maximum time until the first executor, in seconds.
_EXECUTOR: Final = 180.0
_PLACE: Final = r"([\w.-]+|\[[0-9a-fA-F:]+\])"
_FORM: Final = re.compile(
    rf"local(\[(\*|[1-9]\d*)(, *[1-9]\d*)?\])?|spark://{_PLACE}:\d+(,{_PLACE}:\d+)*|sc://{_PLACE}(:\d+)?(/.*)?|k8s://.+|yarn"
)


def check_master(master: str) -> None:
    """Check the form: `local`, `local[n]`, `local[*]`, `spark://…`, `sc://…`, `k8s://…` or `yarn`.

    Raises:
        MasterRefused: it is another one.
    """
    if not _FORM.fullmatch(master):
        cure = "use local[*], local[N], spark://HOST:PORT, sc://HOST:PORT, k8s://URL or yarn"
        raise MasterRefused(master=master, problem="its form is not supported", cure=cure)


def is_local(master: str) -> bool:
    """Return whether Spark runs in the Java process of this platform."""
    return master == "local" or master.startswith("local[")


def is_on_loopback(master: str) -> bool:
    """Return whether the whole cluster is on this machine."""
    hosts = (urlsplit(f"//{one}").hostname or "" for one in urlsplit(master).netloc.split(","))
    return is_local(master) or all(map(is_loopback, hosts))


def own_host(master: str, given: str = "") -> str:
    """Return the address at which the workers of *master* reach this process; *given* takes precedence.

    Return an empty text for a local master, which needs no address.
    """
    if is_local(master):
        return ""
    if is_on_loopback(master):
        return "127.0.0.1"
    if given:
        return given
    url = urlsplit(master.removeprefix("k8s://").split(",")[0])
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as route:
        # No packet is sent: the system only chooses the route, and with it the address.
        route.connect((url.hostname or "192.0.2.1", url.port or 443))
        return str(route.getsockname()[0])


def secrets_of(master: str) -> dict[str, str]:
    """Return the options with the secret of a cluster of `exop-spark cluster up`; none for others."""
    secret = secret_of(master)
    return {"spark.authenticate": "true", "spark.authenticate.secret": secret} if secret else {}


def check_reachable(master: str) -> None:
    """Check that a process listens at the address of the master; Spark would try to connect for minutes.

    Raises:
        MasterRefused: no process listens there.
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
    raise MasterRefused(master=master, problem=f"it does not answer ({problems[-1]})", cure=cure)


def check_encrypted(master: str, setting: Callable[[str, str], Any]) -> None:
    """Check that Spark encrypts its messages if the cluster is not on this machine: they contain rows and tickets.

    Raises:
        MasterRefused: it does not.
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
    """Check the Python of the workers by a task on the cluster.

    Raises:
        MasterRefused: there is no executor, or its Python lacks a module, or it has another version of Python or Spark.
    """
    from pyspark import cloudpickle

    if is_local(master):
        return
    cloudpickle.register_pickle_by_value(probe)  # type: ignore[no-untyped-call]
    found: list[Any] = []

    def run() -> None:
        try:
            found.extend(context.parallelize([0], 1).map(probe.versions).collect())
        except Exception as error:  # noqa: BLE001 - reported by the caller
            found.append(error)

    task = threading.Thread(target=run, name="exop-spark probe", daemon=True)
    task.start()
    task.join(_EXECUTOR)
    if not found:
        context.cancelAllJobs()
        raise MasterRefused(
            master=master,
            problem=f"it gave no executor within {_EXECUTOR:.0f} s: its cores or memory are in use, or its workers "
            f"have less memory than an executor takes ({context.getConf().get('spark.executor.memory', '1g')})",
            cure="end another application, add a worker (`exop-spark cluster add-worker`), or lower spark.cores.max or "
            "spark.executor.memory in spark-defaults.conf",
        )
    if "stopped SparkContext" in str(found[0]):
        here = probe.versions(0)["pyspark"]
        problem = "it has not registered the application, so that it is no master, or one that refuses it"
        cure = f"check host and port, that it runs Spark {here}, and spark.authenticate.secret, if it has one"
        raise MasterRefused(master=master, problem=problem, cure=cure)
    problem = _failure(found[0]) if isinstance(found[0], Exception) else probe.difference(probe.versions(0), found[0])
    if problem:
        cure = "install pyspark, pyarrow and pandas there, as here, and set PYSPARK_PYTHON to that interpreter"
        raise MasterRefused(master=master, problem=f"its workers cannot do the work: {problem}", cure=cure)


def _failure(error: Exception) -> str:
    text = str(error)
    missing = next((line for line in text.splitlines() if "No module named" in line), "")
    return missing.strip() or detail_of(text, condition_of(text))
