"""The bench `replace`: its sink catches what a replacement may never do, and its figures mean what they say."""

from __future__ import annotations

import random
import threading
import time

from bench import replace, restarted, streams
from bench.replaced import Gaps, Hash, Seen, first, second
from bench.streams import Checks, Pairs, Stream, Watched
from exop import Platform


def hashed(count):
    """The numbers from 1, each with the hash that belongs to it."""
    state = Hash()
    return [first(number, state) for number in range(1, count + 1)]


def seen_of(items, last):
    """What the sink has seen of these items, of a stream that went until *last*."""
    seen = Seen()
    for item in items:
        seen.see(item)
    seen.ended(last)
    return {name: count for name in ("lost", "doubled", "reordered", "differing") if (count := getattr(seen, name))}


def test_an_undisturbed_stream_is_right():
    """Every number once and in order, each with its hash: nothing is found; both slets hash alike."""
    assert seen_of(hashed(100), 100) == {}
    ours, theirs = Hash(), Hash()
    assert [first(number, ours) for number in range(9)] == [second(number, theirs) for number in range(9)]


def test_what_is_lost_is_counted():
    """Items that are missing in the middle or at the end are lost, and nothing else is wrong with the others."""
    items = hashed(100)
    assert seen_of([*items[:40], *items[43:]], 100) == {"lost": 3}
    assert seen_of(items[:98], 100) == {"lost": 2}


def test_what_comes_twice_is_counted():
    """Items that come again, at once or later, are doubled, and the others are right."""
    items = hashed(100)
    assert seen_of([*items[:40], items[39], *items[40:]], 100) == {"doubled": 1}
    assert seen_of([*items[:40], *items[30:35], *items[40:]], 100) == {"doubled": 5}


def test_what_comes_late_is_counted():
    """An item that was passed over and comes after all is reordered, not lost; coming once more it is doubled."""
    items = hashed(100)
    late = [*items[:40], *items[41:50], items[40], *items[50:]]
    assert seen_of(late, 100) == {"reordered": 1}
    assert seen_of([*late, items[40]], 100) == {"reordered": 1, "doubled": 1}


def test_a_stale_state_is_counted():
    """A successor that does not have its predecessor's whole state shows by the hash of its first item."""
    items, stale = hashed(40), Hash(running=hashed(39)[-1][1])
    assert seen_of([*items, *(first(number, stale) for number in range(41, 101))], 100) == {"differing": 1}


def test_what_the_slet_itself_loses_is_counted():
    """An item that never came to the slet is lost, although the hashes behind it are consistent."""
    state = Hash()
    items = [first(number, state) for number in range(1, 101) if number != 50]
    assert seen_of(items, 100) == {"lost": 1}
    assert items[-1][1] != hashed(100)[-1][1]


def test_faults_are_counted_one_by_one():
    """Any mixture of planted faults is found, each with its number."""
    chance = random.Random(7)
    for _ in range(50):
        items = hashed(200)
        places = sorted(chance.sample(range(5, 195, 5), 6), reverse=True)
        for place in places[:2]:
            del items[place]
        for place in places[2:4]:
            items.insert(place, items[place])
        for place in places[4:]:
            items[place], items[place + 1] = items[place + 1], items[place]
        assert seen_of(items, 200) == {"lost": 2, "doubled": 2, "reordered": 2}


def test_a_running_stream_shows_a_planted_fault():
    """A replacement that loses the state is seen at the sink; one that hands it over is not."""
    checks = Checks()
    with Platform() as platform:
        stream = Stream(platform, checks)
        stream.replace(second)
        assert str(checks) == "1 replacements, 0 lost, 0 doubled, 0 reordered, 0 differing"
        stream.replace(first, lose_state=True)
        ahead = threading.Event()
        begun = stream.seen.next
        while stream.seen.next < begun + 10:
            ahead.wait(0.001)
        stream.stop()
    assert str(checks) == "2 replacements, 0 lost, 0 doubled, 0 reordered, 1 differing"


def test_a_gap_counts_where_it_overlaps():
    """The longest gap that touches the time which is looked at; one that lasts still counts until its end."""
    gaps = Gaps(last=10_000_000)
    gaps.found.extend([(0, 1_000_000), (2_000_000, 5_000_000), (8_000_000, 9_000_000)])
    assert gaps.longest(4_000_000, 8_500_000) == 3.0
    assert gaps.longest(5_500_000, 10_500_000) == 1.0
    assert gaps.longest(5_500_000, 14_000_000) == 4.0
    assert gaps.slices(0, 10_000_000, 2_500_000) == [3.0, 3.0, 0.0, 1.0]


def test_the_pause_is_what_is_beyond_the_undisturbed_stream():
    """Quantiles with a replacement less those without; the noise is the same between two halves of the latter."""
    pairs = Pairs(
        [Watched([gap], 0.0, 1.0, 10, 0.5) for gap in (3.0, 4.0, 5.0, 9.0)],
        [Watched([gap], 0.0, 1.0, 30, 0.5) for gap in (1.0, 2.0, 1.0, 2.0)],
    )
    assert pairs.beyond(1.0) == 7.0
    assert pairs.noise(0.5) == 1.0
    assert pairs.rate() == 40.0


def test_the_restarted_process_goes_on(tmp_path):
    """The peer goes on with its state, complains of nothing, and tells how long nothing came."""
    state = tmp_path / "state"
    assert restarted._one_life(state) == 0.0
    assert restarted._one_life(state) > 0.0


def test_the_results_have_the_names_of_the_design(monkeypatch):
    """A small run gives each documented name once, and finds nothing wrong."""
    monkeypatch.setattr(streams, "rest", lambda seconds: time.sleep(min(max(seconds, 0.0), 0.01)))
    monkeypatch.setattr(replace, "restarts", lambda number: streams.Result("replace/restart/median", number, "ms"))
    found = [*replace.measure(replacements=3, others=2, megabytes=0.01, opening=0.0, restarted=1)]
    results = {result.name: result.value for result in found}
    assert len(results) == len(found)
    assert {"replace/pause/median", "replace/pause/p99", "replace/state/upgrade/median"} <= set(results)
    assert results["replace/replacements"] == 3 + 2 + 2 + 2 + 4
    for name in ("lost", "doubled", "reordered", "differing"):
        assert results[f"replace/{name}"] == 0, results
