"""`Cluster`: a standalone Spark cluster on the loopback.

The file `cluster.json`, in a private directory of the user, lists its processes, and contains the secret that all
clients need; platforms of the same user read it there (`secret_of`).
"""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
import socket
import sys
import tempfile
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from exop.remoting.transport.rundir import private_directory

from ..errors import ClusterError
from ..java import find_java, java_home
from ..settings import JAVA_OPTIONS, connect_server_options
from .process import Daemon, free_port, mark, reason_in_log, start, stop, wait_for

DEFAULT_NAME: Final = "default"
_FILE: Final = "cluster.json"
_LOOPBACK: Final = "127.0.0.1"
_MASTER: Final = "org.apache.spark.deploy.master.Master"
_WORKER: Final = "org.apache.spark.deploy.worker.Worker"
_CONNECT: Final = "org.apache.spark.sql.connect.service.SparkConnectServer"
#: The maximum time until a process is ready, in seconds.
_START: Final = 180.0
#: The maximum time until the system has closed the port of a process that was killed, in seconds.
_CLOSING: Final = 3.0
#: The heap of a master, of a worker (executors have their own), and of a Connect server, which plans queries.
_MEMORY: Final = {"master": "256m", "worker": "256m", "connect": "1g"}
#: The least memory of an executor in MiB: one and a half times what Spark reserves for itself.
_LEAST: Final = 450
_LOGGING: Final = """rootLogger.level = warn
rootLogger.appenderRef.stderr.ref = stderr
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %d{HH:mm:ss} %p %c{1}: %m%n%ex
"""


@dataclass(frozen=True)
class Worker:
    """The resources of one worker for each of *shares* applications: cores, and the memory (`2g`) for executors."""

    cores: int = 1
    memory: str = "2g"
    shares: int = 1

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[1-9][0-9]*[mg]", self.memory):
            raise ClusterError(name="", problem=f"{self.memory!r} is no memory", cure="write 512m or 2g, for example")
        if self.memory[-1] == "m" and int(self.memory[:-1]) < _LEAST:
            problem = f"no executor starts with {self.memory} of memory, and applications would wait for ever"
            raise ClusterError(name="", problem=problem, cure=f"give {_LEAST}m or more")

    def arguments(self) -> list[str]:
        """Return the arguments of the worker."""
        size, unit = int(self.memory[:-1]), self.memory[-1]
        return ["--cores", str(self.cores * self.shares), "--memory", f"{size * self.shares}{unit}"]


@dataclass(frozen=True)
class Status:
    """The processes of a cluster.

    Attributes:
        master: The URL of the master, `spark://…`; empty if no cluster runs.
        connect: The URL of the Connect server, `sc://…`; empty if there is none.
        workers: The number of registered workers.
        cores, cores_used: The number of their cores, and of those in use.
        lost: The roles of processes that were started and have ended.
    """

    name: str
    master: str = ""
    connect: str = ""
    workers: int = 0
    cores: int = 0
    cores_used: int = 0
    processes: tuple[Daemon, ...] = ()
    lost: tuple[str, ...] = ()
    directory: str = ""

    def facts(self) -> dict[str, Any]:
        """Return the status as plain data."""
        return asdict(self)


class Cluster:
    """The cluster *name* of this user, whether it runs or not."""

    def __init__(self, name: str = DEFAULT_NAME) -> None:
        if not name.replace("-", "").replace("_", "").isalnum():
            raise ClusterError(name=name, problem="it is no name", cure="use letters, digits, - and _")
        self.name = name
        self.directory = private_directory(_root() / name)
        self._offer = Worker()
        self._secret = ""
        self._web = ""
        self._daemons: list[Daemon] = []

    def up(self, workers: int, offer: Worker, *, connect: bool = False, port: int = 0) -> Status:
        """Start a master, *workers* workers and, with *connect*, a Connect server; those that run already remain.

        A new master listens at *port* if it is free. A master or a Connect server that is started again uses its
        former port; the master then knows the applications that run.

        Raises:
            JavaMissing: no Java.
            ClusterError: a process did not start.
        """
        with self._changed(), self._undone_on_failure():
            former = {one.role: urlsplit(one.url).port or 0 for one in self._daemons}
            alive = self._alive("master")
            known = former.get("master", 0)
            returns = not alive and known > 0 and wait_for(lambda: free_port(known) == known, _CLOSING)
            if not alive and not returns:
                self._down()
            self._forget_lost()
            if not self._daemons:  # nothing would be changed under a running process
                self._offer = Worker(offer.cores, offer.memory, 2) if connect else offer
            elif connect and self._offer.shares == 1:
                problem = "its workers have cores and memory for one application, and a Connect server is one"
                raise ClusterError(name=self.name, problem=problem, cure="end it, and start it with --connect")
            if returns:
                self._start_master(known)
            elif not alive:
                self._prepared()
                self._start_master(port)
            for _ in range(workers - sum(map(_is_worker, self._daemons))):
                self._start_worker()
            self._registered()
            if connect and not self._alive("connect"):
                self._start_connect(former.get("connect", 0))
        return self.status()

    def add_worker(self) -> Status:
        """Start another worker like the others.

        Raises:
            ClusterError: no cluster runs, or the worker did not start.
        """
        with self._changed(), self._undone_on_failure():
            if not self._alive("master"):
                cure = f"start it: exop-spark cluster up --name {self.name}"
                raise ClusterError(name=self.name, problem="it does not run", cure=cure)
            self._forget_lost()
            self._start_worker()
            self._registered()
        return self.status()

    def down(self) -> Status:
        """End all processes, and remove their files; return the status before. It is no error if no process runs."""
        before = self.status()
        with self._changed():
            self._down()
        return before

    def status(self) -> Status:
        """Return the processes that run."""
        self._read()
        alive = [one for one in self._daemons if one.alive(self.directory)]
        roles = {one.role: one for one in alive}
        lost = tuple(one.role for one in self._daemons if one.role not in roles)
        master = roles["master"].url if "master" in roles else ""
        ready = self._workers().values() if master else ()
        return Status(
            self.name,
            master,
            roles["connect"].url if "connect" in roles else "",
            len(ready),
            sum(one["cores"] for one in ready),
            sum(one["coresused"] for one in ready),
            tuple(alive),
            lost,
            str(self.directory),
        )

    def secret(self, url: str) -> str:
        """Return the secret of this cluster if *url* is its master or its Connect server; otherwise an empty text."""
        self._read()
        return self._secret if any(one.url == url for one in self._daemons) else ""

    def _prepared(self) -> None:
        """Write the settings of a new cluster."""
        self._secret = secrets.token_hex(32)
        settings = self.directory / "conf"
        settings.mkdir(exist_ok=True)
        lines = {
            "spark.authenticate": "true",
            "spark.authenticate.secret": self._secret,
            # It would run programs of any user, at a fixed port.
            "spark.master.rest.enabled": "false",
            "spark.ui.killEnabled": "false",
            # A master that is started again finds the workers and applications here, and tells them so. Those that do
            # not answer within these seconds are forgotten; only then are executors started.
            "spark.deploy.recoveryMode": "FILESYSTEM",
            "spark.deploy.recoveryDirectory": str(self.directory / "recovery"),
            "spark.deploy.recoveryTimeout": "10",
        }
        (settings / "spark-defaults.conf").write_text("".join(f"{name} {value}\n" for name, value in lines.items()))
        (settings / "log4j2.properties").write_text(_LOGGING)

    def _start_master(self, wanted: int) -> None:
        port, web = free_port(wanted), free_port()
        self._web = f"http://{_LOOPBACK}:{web}"
        arguments = ["--host", _LOOPBACK, "--port", str(port), "--webui-port", str(web)]
        self._start("master", _MASTER, arguments, f"spark://{_LOOPBACK}:{port}")
        self._await("master", lambda: bool(self._asked()))

    def _start_worker(self) -> None:
        number = 1 + max((int(one.role.partition("-")[2]) for one in self._daemons if _is_worker(one)), default=0)
        role, port, web = f"worker-{number}", free_port(), free_port()
        arguments = ["--host", _LOOPBACK, "--port", str(port), "--webui-port", str(web), *self._offer.arguments()]
        arguments += ["--work-dir", str(self.directory / "work")]
        self._start(role, _WORKER, [*arguments, self._url("master")], f"{_LOOPBACK}:{port}")

    def _start_connect(self, wanted: int = 0) -> None:
        port = free_port(wanted)
        options = connect_server_options(port, self.directory) | {
            "spark.master": self._url("master"),
            "spark.cores.max": str(self._offer.cores * sum(map(_is_worker, self._daemons))),
            "spark.connect.authenticate.token": self._secret,
        }
        settings = self.directory / "connect.conf"
        defaults = (self.directory / "conf" / "spark-defaults.conf").read_text()
        settings.write_text(defaults + "".join(f"{name} {value}\n" for name, value in options.items()))
        self._start("connect", _CONNECT, ["--properties-file", str(settings)], f"sc://localhost:{port}")
        self._await("connect", lambda: _listens(port))

    def _start(self, role: str, main: str, arguments: list[str], url: str) -> None:
        from pyspark.find_spark_home import _find_spark_home

        home = Path(_find_spark_home())
        script = ["spark-class", main] if role != "connect" else ["spark-submit", "--class", main]
        options = os.environ.get("EXOP_SPARK_JAVA_OPTIONS", JAVA_OPTIONS)
        environment = _without_spark(os.environ) | {
            "JAVA_HOME": str(java_home(find_java(), self.directory)),
            "JDK_JAVA_OPTIONS": options,
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_HOME": str(home),
            "SPARK_CONF_DIR": str(self.directory / "conf"),
            "SPARK_LOCAL_IP": _LOOPBACK,
            "SPARK_LOCAL_DIRS": str(self.directory / "scratch"),
            "SPARK_DAEMON_MEMORY": _MEMORY[role.partition("-")[0]],
            # If the port was taken meanwhile, starting fails, because clients would not find another one.
            "SPARK_DAEMON_JAVA_OPTS": f"{mark(self.directory, role)} -Dspark.port.maxRetries=0",
            "SPARK_SUBMIT_OPTS": mark(self.directory, role),
        }
        command = ["bash", str(home / "bin" / script[0]), *script[1:], *arguments]
        log = self.directory / f"{role}.log"
        log.unlink(missing_ok=True)
        self._daemons.append(start(role, command, url=url, environment=environment, directory=self.directory, log=log))
        self._write()

    def _registered(self) -> None:
        """Wait until all workers are registered at the master."""
        for one in filter(_is_worker, self._daemons):
            self._await(one.role, lambda url=one.url: url in self._workers())

    def _workers(self) -> dict[str, dict[str, Any]]:
        """Return the workers that are registered at the master, by their addresses."""
        found = self._asked().get("workers", [])
        return {f"{one['host']}:{one['port']}": one for one in found if one["state"] == "ALIVE"}

    def _await(self, role: str, condition: Any) -> None:
        daemon = next(one for one in self._daemons if one.role == role)
        # The script that starts Java does not have the mark, so that `Daemon.alive` does not recognize it.
        if wait_for(lambda: condition() or not _exists(daemon.pid), _START) and condition():
            return
        problem = f"its {role} did not start ({reason_in_log(daemon.log)})"
        raise ClusterError(name=self.name, problem=problem, cure=f"see {daemon.log}")

    def _asked(self) -> dict[str, Any]:
        """Return the status that the master reports; it is empty while the master does not answer."""
        try:
            # Proxies of the environment do not apply to the loopback.
            opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
            with opener.open(f"{self._web}/json/", timeout=10) as answer:
                found: dict[str, Any] = json.load(answer)
                return found
        except (OSError, ValueError):
            return {}

    def _alive(self, role: str) -> bool:
        return any(one.role == role and one.alive(self.directory) for one in self._daemons)

    def _url(self, role: str) -> str:
        return next(one.url for one in self._daemons if one.role == role)

    def _forget_lost(self) -> None:
        """Remove the processes that have ended from the list; executors end with their worker."""
        self._daemons = [one for one in self._daemons if one.alive(self.directory)]

    def _down(self) -> None:
        """End all processes, and remove their files."""
        stop(self._daemons, self.directory)
        self._daemons = []
        for one in self.directory.iterdir():
            if one.name != "lock":
                shutil.rmtree(one) if one.is_dir() else one.unlink()

    @contextmanager
    def _undone_on_failure(self) -> Iterator[None]:
        """End all processes that were started in the block if it fails; the logs remain."""
        before = list(self._daemons)
        try:
            yield
        except BaseException:
            stop([one for one in self._daemons if one not in before], self.directory)
            self._daemons = before
            self._write()
            raise

    @contextmanager
    def _changed(self) -> Iterator[None]:
        """Hold the lock of the cluster, and read its file, while the block changes it."""
        import fcntl

        with (self.directory / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            self._read()
            yield

    def _read(self) -> None:
        path = self.directory / _FILE
        try:
            found = json.loads(path.read_text())
            self._secret, self._web = found["secret"], found["web"]
            self._offer = Worker(**found["offer"])
            self._daemons = [Daemon(**one) for one in found["processes"]]
        except FileNotFoundError:
            self._daemons = []
        except (ValueError, KeyError, TypeError):
            cure = f"end the processes that `ps -ef` shows with {self.directory}; remove it"
            raise ClusterError(name=self.name, problem=f"{path} is damaged", cure=cure) from None

    def _write(self) -> None:
        facts = {"secret": self._secret, "web": self._web, "offer": asdict(self._offer)}
        text = json.dumps(facts | {"processes": [asdict(one) for one in self._daemons]}, indent=1)
        written = self.directory / f"{_FILE}.new"
        written.write_text(text)
        written.replace(self.directory / _FILE)


def secret_of(url: str) -> str:
    """Return the secret of the cluster of this user with this URL; an empty text for all others."""
    root = _root()
    for path in root.glob(f"*/{_FILE}"):
        with suppress(ClusterError):  # one that is damaged does not keep a platform from the others
            if found := Cluster(path.parent.name).secret(url):
                return found
    return ""


def _root() -> Path:
    owner = private_directory(Path(os.environ.get("TMPDIR") or tempfile.gettempdir()) / f"exop-{os.geteuid()}")
    return private_directory(owner / "spark")


def _without_spark(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment without the variables that configure another Spark."""
    return {name: value for name, value in environment.items() if not name.startswith(("SPARK_", "PYSPARK_"))}


def _is_worker(one: Daemon) -> bool:
    return one.role.startswith("worker-")


def _listens(port: int) -> bool:
    try:
        socket.create_connection((_LOOPBACK, port), timeout=1).close()
    except OSError:
        return False
    return True


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
