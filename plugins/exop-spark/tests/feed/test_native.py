"""A channel that Spark reads by itself: offsets and control items pass, rows do not."""

from dataclasses import dataclass, field

import pyarrow as pa
import pytest
from exop_spark.errors import SparkError
from exop_spark.feed import native_source
from exop_spark.feed.native import NativeFeed

from exop import Tie
from exop.engine.pull import EventTime, InputPosition
from exop.engine.trigger import BatchTrigger
from exop.model.slets.tie import Committed
from tests.rig import eventually

COLUMNS = pa.schema([("time", pa.int64()), ("key", pa.int64())])


@dataclass
class Channel:
    """Two partitions: how far they are written, and how far they may be read."""

    end: dict[str, int] = field(default_factory=lambda: {"0": 0, "1": 0})
    open: dict[str, int] = field(default_factory=lambda: {"0": 0, "1": 0})

    topic: bool = False

    def native(self, engine):
        """The reference."""
        return {"format": "kafka", "topic": "t"} if self.topic else {"format": "log"}

    def written(self):
        """Return the ends that producers have written."""
        return dict(self.end)

    def readable(self):
        """Return the ends of the last checkpoint."""
        return dict(self.open)

    def write(self, *ends, settled=True):
        """Append rows to both."""
        self.end = dict(zip("01", ends, strict=True))
        if settled:
            self.open = dict(self.end)


@pytest.fixture
def channel():
    """An empty one."""
    return Channel()


@pytest.fixture
def tie(channel):
    """The connection to the platform: Spark begins at the beginning."""
    made = Tie()
    made.native["rows"] = channel
    made.begin_reading("rows", {"0": 0, "1": 0})
    return made


@pytest.fixture
def feeds(tie):
    """Make feeds; they are retired at the end."""
    made = []

    def make(timed=False, **options):
        time = EventTime("time") if timed else None
        options |= {"tie": tie, "event_time": time, "by_input": not timed}
        made.append(NativeFeed("rows", COLUMNS, BatchTrigger(), **options))
        return made[-1]

    yield make
    for feed in made:
        feed.retire()


def seen(feed, channel):
    """Wait until the feed knows how far it may be read."""
    eventually(lambda: feed._readable == channel.open)
    return feed


def step(feed, start, limit=None):
    """One micro-batch: planned, computed, sent."""
    end = feed.latest(start, limit, 0)
    feed.plan(end)
    feed.put_out()
    return end


def test_the_first_batch_reads_nothing_and_later_ones_what_is_there(feeds, channel):
    """Spark's checkpoint has the beginning before a row is read: a restart cannot begin elsewhere."""
    channel.write(3, 2)
    feed = seen(feeds(), channel)
    first = step(feed, {})
    assert first == {"at": {"0": 0, "1": 0}, "mark": 0, "moment": None}
    assert step(feed, first)["at"] == {"0": 3, "1": 2}
    assert feed.rows == 5
    assert feed.reached().parts == {"0": 3, "1": 2}
    assert feed.lag == 0


def test_a_batch_takes_an_equal_share_of_every_partition(feeds, channel):
    """`max_rows` is for all of them together."""
    channel.write(10, 3)
    feed = seen(feeds(), channel)
    second = step(feed, step(feed, {}), limit=8)
    assert second["at"] == {"0": 4, "1": 3}
    assert feed.latest(second, 8, 0)["at"] == {"0": 8, "1": 3}


def test_what_no_checkpoint_counts_is_not_read(feeds, channel):
    """A recovery may put other rows there."""
    channel.write(4, 4)
    channel.write(9, 9, settled=False)
    feed = seen(feeds(), channel)
    end = step(feed, step(feed, {}))
    assert end["at"] == {"0": 4, "1": 4}
    assert feed.latest(end, None, 0) == end
    assert feed.lag == 0
    feed.end()
    assert feed.lag == 10


def test_a_punctuation_is_delivered_when_the_rows_before_it_are_sent(feeds, channel):
    """Those of every partition."""
    feed = feeds()
    first = step(feed, {})
    channel.write(2, 2, settled=False)
    feed.punctuate(7)
    assert feed.complete() is None
    channel.write(2, 2)
    step(seen(feed, channel), first)
    assert feed.complete() == 7
    assert feed.reached() == InputPosition(1, 0, 7, {"0": 2, "1": 2})


def test_a_punctuation_moves_the_watermark_by_a_mark_behind_its_rows(feeds, channel):
    """The mark is part of the offset: a batch that is done again has it again."""
    feed = feeds(timed=True)
    first = step(feed, {})
    channel.write(2, 2)
    feed.punctuate(7)
    end = step(seen(feed, channel), first)
    assert (end["mark"], end["moment"]) == (1, 8)
    assert feed.markers == 1
    feed.end(close_windows=True)
    last = step(feed, end)
    assert (last["mark"], last["moment"]) == (2, feed.never)
    assert feed.finished
    feed.put_out(over=True)
    assert feed.reached().event == 2


def test_a_restarted_query_does_the_batch_again_to_the_same_end(feeds, channel):
    """Spark plans it from its own checkpoint, without asking how far to go."""
    channel.write(9, 9)
    feed = seen(feeds(begin=InputPosition(0, 0, None, {"0": 1, "1": 1})), channel)
    feed.resume(InputPosition(0, 0, None, {"0": 1, "1": 1}))
    again = {"at": {"0": 4, "1": 2}, "mark": 3, "moment": 50}
    feed.plan(again)
    feed.put_out()
    assert feed.reached().parts == {"0": 4, "1": 2}
    assert feed.latest(again, None, 0) == {"at": {"0": 9, "1": 9}, "mark": 3, "moment": 50}


def test_the_marks_of_a_restarted_query_follow_those_in_its_checkpoint(feeds, channel):
    """Spark has committed the last batch, and does not plan it again; a mark with a known number would make no row."""
    parts = {"0": 4, "1": 2}
    channel.write(4, 2)
    feed = seen(feeds(timed=True, begin=InputPosition(0, 0, None, parts)), channel)
    feed.resume(InputPosition(0, 0, None, parts))
    feed.punctuate(70)
    assert step(feed, {"at": parts, "mark": 3, "moment": 50}) == {"at": parts, "mark": 4, "moment": 71}
    assert feed.markers == 1


def test_a_checkpoint_that_is_older_than_what_was_sent_ends_the_query(feeds, channel, tie):
    """Spark would count on from numbers of batches that the platform knows, with other rows, which would be dropped."""
    channel.write(9, 9)
    tie.begin_reading("rows", {"0": 4, "1": 2})
    feed = seen(feeds(), channel)
    with pytest.raises(SparkError, match=r"it ends at \{'0': 4, '1': 1\}, and the results up to .* restore both from"):
        feed.latest({"at": {"0": 4, "1": 1}, "mark": 0, "moment": None}, None, 0)


def test_a_successor_waits_until_it_knows_where_its_predecessor_ended(feeds, channel, tie):
    """It is open before, and reads nothing."""
    tie.committed = type(tie.committed)()
    channel.write(5, 5)
    feed = seen(feeds(), channel)
    assert feed.latest({}, None, 0) == {}
    tie.begin_reading("rows", {"0": 2, "1": 3})
    assert step(feed, {})["at"] == {"0": 2, "1": 3}


def test_while_it_is_held_nothing_new_begins(feeds, channel):
    """A slet that comes to rest leaves what it has not read to its successor."""
    feed = feeds()
    first = step(feed, {})
    channel.write(5, 5)
    seen(feed, channel).hold(on=True)
    assert feed.latest(first, None, 0) == first
    assert feed.lag == 0
    feed.hold(on=False)
    assert feed.latest(first, None, 0)["at"] == {"0": 5, "1": 5}


def test_a_channel_that_fails_ends_the_query(feeds, channel):
    """The question of the engine raises the error: otherwise the query would wait for ever."""

    def readable():
        raise OSError("the topic is gone")

    channel.readable = readable
    feed = feeds()
    eventually(lambda: feed._failure is not None)
    with pytest.raises(SparkError, match=r"port 'rows': the channel cannot be read: OSError: the topic is gone"):
        feed.latest({}, None, 0)


def test_no_row_is_taken_from_the_platform(feeds):
    """The wiring elides them; one that comes all the same is an error, not a double."""
    with pytest.raises(SparkError, match="read by Spark itself"):
        feeds().admit(pa.record_batch({"time": [1], "key": [1]}, schema=COLUMNS))


class Policy:
    """A policy that notes what it is applied to, by offset, while it omits records."""

    def __init__(self, *, omits=True):
        self.omits = omits
        self.found = []

    def __call__(self, port, failed):
        """Note the records."""
        assert port == "rows"
        for (item,), error in failed:
            place = f"the topic 't', partition {item['partition']}, offset {item['offset']}: the value is not one JSON"
            assert str(error).startswith(place)
            assert item["topic"] == "t"
            self.found.append((item["partition"], item["offset"], item["value"]))
        return self.omits


@pytest.fixture
def policy(tie, channel):
    """The policy of the slet whose input is a topic."""
    channel.topic, tie.omit = True, Policy()
    return tie.omit


def test_the_policy_is_applied_once_when_the_micro_batch_is_sent(feeds, channel, policy):
    """However often its tasks are repeated; and not again for a micro-batch that was sent before."""
    channel.write(4, 2)
    feed = seen(feeds(), channel)
    first = step(feed, {})
    feed.plan(feed.latest(first, None, 0))
    for _ in range(2):
        assert feed.omit("0", [(1, "no", b"x"), (3, "no", b"y")])
        assert feed.omit("1", [(0, "no", b"z")])
        feed.apply_policy()
        assert policy.found == []
    feed.put_out()
    for _ in range(2):
        feed.apply_policy()
        assert policy.found == [(0, 1, b"x"), (0, 3, b"y"), (1, 0, b"z")]
        assert feed.omit("0", [(3, "no", b"y")])
    policy.omits = False
    assert not feed.omit("0", [(4, "no", b"")])


def test_a_successor_that_has_followed_does_not_repeat_the_policy(feeds, channel, policy):
    """It has read the same records beside its predecessor, which has sent them."""
    channel.write(4, 2)
    feed = seen(feeds(), channel)
    assert feed.omit("0", [(1, "no", b"x"), (3, "no", b"y")])
    feed.resume(InputPosition(0, 0, None, {"0": 2, "1": 2}))
    feed.plan({"at": {"0": 4, "1": 2}, "mark": 0, "moment": None})
    feed.put_out()
    feed.apply_policy()
    assert policy.found == [(0, 3, b"y")]


def test_after_a_kill_the_policy_is_applied_to_what_was_sent_since_the_checkpoint(
    feeds, channel, tie, policy, monkeypatch
):
    """The results come from the journal, without a micro-batch; the dead letters since the checkpoint are lost."""

    def read_topic(place, schema, omit):
        if place.partition == "1":
            raise ValueError("no broker")
        assert omit([(offset, "no", b"") for offset in range(place.start, place.end)])
        yield pa.record_batch([[1], [2]], schema=schema)

    monkeypatch.setattr(native_source, "read_topic", read_topic)
    tie.checkpointed = Committed(3, positions={"rows": {"0": 5, "1": 0}})
    tie.committed = Committed(5, positions={"rows": {"0": 7, "1": 2}})
    channel.write(9, 9)
    seen(feeds(), channel)
    assert policy.found == [(0, 5, b""), (0, 6, b"")]
