"""Masters: which are possible, how their workers reach this process, and what is refused before a query starts."""

import socket

import pytest
from exop_spark.cluster.master import (
    check_encrypted,
    check_master,
    check_reachable,
    check_workers,
    is_on_loopback,
    own_host,
)
from exop_spark.cluster.probe import difference, versions
from exop_spark.errors import MasterRefused


@pytest.mark.parametrize(
    "master", ["local", "local[*]", "local[4]", "spark://a-1:77,b:77", "sc://host", "k8s://https://host:6443", "yarn"]
)
def test_masters_that_can_be_used(master):
    """Local ones and clusters."""
    check_master(master)


@pytest.mark.parametrize(
    "master", ["", "mesos://host", "local[0]", "local[x]", "local[2", "spark://host", "spark://[::1", "sc://", "yarn-x"]
)
def test_another_master_is_refused_and_the_error_names_the_possible_ones(master):
    """A mistake is found before Java is started."""
    with pytest.raises(MasterRefused, match=r"its form is not supported; use local\[\*\].*spark://HOST:PORT"):
        check_master(master)


def test_a_master_that_does_not_answer_is_refused_at_once():
    """Spark would try for minutes; of several masters, one that answers is enough."""
    with socket.socket() as silent, socket.socket() as open_:
        silent.bind(("127.0.0.1", 0))
        open_.bind(("127.0.0.1", 0))
        open_.listen()
        dead, alive = (one.getsockname()[1] for one in (silent, open_))
        with pytest.raises(MasterRefused, match=r"it does not answer .*exop-spark cluster up"):
            check_reachable(f"spark://127.0.0.1:{dead}")
        check_reachable(f"spark://127.0.0.1:{dead},127.0.0.1:{alive}")
        check_reachable("local[2]")


@pytest.mark.parametrize(
    ("master", "inside", "host"),
    [
        ("local[2]", True, ""),
        ("spark://127.0.0.1:7077", True, "127.0.0.1"),
        ("sc://localhost:15002", True, "127.0.0.1"),
        ("spark://192.0.2.7:7077", False, "192.0.2.1"),
        ("yarn", False, "192.0.2.1"),
        ("spark://127.0.0.1:7077,localhost:7078", True, "127.0.0.1"),
        ("spark://127.0.0.1:7077,192.0.2.7:7077", False, "192.0.2.1"),
    ],
)
def test_a_cluster_on_the_loopback_is_reached_there(master, inside, host):
    """No other host can connect there; for workers on other hosts, the user may give the address of this host."""
    assert (is_on_loopback(master), own_host(master, "192.0.2.1")) == (inside, host)


def test_of_several_masters_the_first_one_tells_the_address():
    """The list is no URL."""
    assert own_host("spark://0.0.0.0:7077,192.0.2.7:7077") == "127.0.0.1"


def test_rows_leave_this_machine_only_encrypted():
    """The tickets of the feed travel in Spark's own messages."""
    master, both = "spark://192.0.2.7:7077", {"spark.authenticate": "true", "spark.network.crypto.enabled": "true"}
    with pytest.raises(MasterRefused, match=r"unencrypted; set spark.authenticate"):
        check_encrypted(master, {"spark.authenticate": "true"}.get)
    check_encrypted(master, both.get)
    check_encrypted("spark://127.0.0.1:7077", {}.get)


def test_a_process_that_is_no_master_is_told():
    """Spark has stopped its context, after a minute; that says nothing about workers."""

    class Context:
        def parallelize(self, *_):
            raise RuntimeError("Cannot call methods on a stopped SparkContext.")

    with pytest.raises(MasterRefused, match=r"is no master, or one that refuses it; check host and port"):
        check_workers("spark://127.0.0.1:80", Context())


def test_a_worker_needs_the_same_spark_and_its_libraries():
    """Each missing package is named, with the interpreter that lacks it."""
    here = versions(0)
    assert difference(here, here) == ""
    there = here | {"python": "/usr/bin/python3", "pyarrow": ""}
    assert difference(here, there) == "/usr/bin/python3 there has no pyarrow"
    assert "pyspark 3.5.0, here it is" in difference(here, here | {"pyspark": "3.5.0"})
