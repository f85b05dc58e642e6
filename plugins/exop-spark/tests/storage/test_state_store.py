"""Key groups: chosen when a query first starts, and kept from then on."""

import json
from types import SimpleNamespace

import pytest
from exop_spark.errors import SparkError
from exop_spark.storage.state_store import ON_A_CLUSTER, fixed, set_up

GROUPS = "spark.sql.shuffle.partitions"
PROVIDER = "spark.sql.streaming.stateStore.providerClass"


class Session(SimpleNamespace):
    """Notes the options."""

    def __init__(self):
        self.options = {}
        super().__init__(conf=SimpleNamespace(set=self.options.__setitem__))


def started(place, **conf):
    """The checkpoint of a query that has begun its batches 9 and 10."""
    (place / "offsets").mkdir(parents=True)
    for number in (9, 10):
        lines = ["v1", json.dumps({"batchWatermarkMs": 0, "conf": conf}), "{}"]
        (place / "offsets" / str(number)).write_text("\n".join(lines))
    return place


@pytest.mark.parametrize(
    ("asked", "local", "groups"), [(0, True, 1), (0, False, ON_A_CLUSTER), (1, False, 1), (3, True, 3)]
)
def test_several_key_groups_keep_their_state_in_rocksdb(tmp_path, asked, local, groups):
    """A small state in one group stays in memory."""
    session = Session()
    assert set_up(session, "counts", asked, tmp_path, local=local) == groups
    assert session.options[GROUPS] == str(groups)
    assert ("RocksDB" in session.options.get(PROVIDER, "")) == (groups > 1)


def test_a_query_that_moves_to_a_cluster_keeps_its_state_as_it_is(tmp_path):
    """A change of the master alone changes nothing else."""
    place = started(tmp_path, **{GROUPS: "1", PROVIDER: "org.apache.HDFSBackedStateStoreProvider"})
    session = Session()
    assert set_up(session, "counts", 0, place, local=False) == 1
    assert PROVIDER not in session.options


def test_another_number_of_key_groups_is_refused_and_named(tmp_path):
    """Spark would ignore it."""
    place = started(tmp_path, **{GROUPS: "4", PROVIDER: "org.apache.RocksDBStateStoreProvider"})
    assert fixed(place)[GROUPS] == "4"
    with pytest.raises(SparkError, match=r"counts: its state is in 4 key groups.*set key_groups=4"):
        set_up(Session(), "counts", 2, place, local=True)
