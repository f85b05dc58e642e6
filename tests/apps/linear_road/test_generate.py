"""The generator makes realistic, deterministic traffic with everything in it that the rules speak of."""

import csv
import gzip
import io
import json
import lzma
import os
import subprocess
import sys
from collections import Counter, defaultdict
from contextlib import redirect_stdout
from itertools import pairwise
from types import SimpleNamespace

import pytest

from apps.linear_road import table_files
from apps.linear_road.generate import command
from apps.linear_road.table_files import UnwritableFile, table_file
from apps.linear_road.terminal import Progress, run_command
from apps.linear_road.traffic_model.settings import BadSetting
from apps.linear_road.traffic_model.simulation import Simulation
from apps.linear_road.validation.reading import Tuples, read_history
from apps.linear_road.validation.reference import Reference
from apps.linear_road.validation.values import AccidentAlert, Balance, Expenditure, Report, TollNotice

FEET = 5280


def generated(directory, *options, name="traffic.csv"):
    """Generate into *directory*; the two files."""
    out, history = directory / name, directory / f"history-{name}"
    assert command(["--out", str(out), "--history", str(history), *options]) == 0
    return out, history


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Fourteen minutes of half a road, busy, with what the reference answers; made once, read only."""
    directory = tmp_path_factory.mktemp("traffic")
    options = ["--xways", "0.5", "--minutes", "14", "--accident-gap", "2", "--accident-length", "2", "--seed", "7"]
    with redirect_stdout(io.StringIO()) as told:
        out, history = generated(directory, *options, "--json")
    facts = json.loads(told.getvalue())
    past = read_history(history)
    rows = list(Tuples(out))
    by_vehicle = defaultdict(list)
    for row in rows:
        if row[0] == 0:
            by_vehicle[row[2]].append(Report.of(row))
    answers = list(Reference(past).answers(rows))
    return SimpleNamespace(out=out, rows=rows, past=past, trips=by_vehicle, answers=answers, facts=facts)


def steps(run):
    """Every two reports of one vehicle that follow each other."""
    return [step for reports in run.trips.values() for step in pairwise(reports)]


def test_the_same_seed_gives_the_same_bytes(tmp_path):
    """Traffic and history, in every packing; another seed gives other traffic."""
    for name in ("a.csv", "b.csv.gz", "c.csv.xz", "d.parquet"):
        (tmp_path / "1").mkdir(exist_ok=True)
        (tmp_path / "2").mkdir(exist_ok=True)
        options = ("--xways", "0.5", "--minutes", "2", "--seed")
        first = generated(tmp_path / "1", *options, "5", name=name)
        second = generated(tmp_path / "2", *options, "5", name=name)
        other = generated(tmp_path / "2", *options, "6", name=f"other-{name}")
        assert [file.read_bytes() for file in first] == [file.read_bytes() for file in second]
        assert first[0].read_bytes() != other[0].read_bytes()


def test_every_format_holds_the_same(tmp_path):
    """The suffix chooses the packing and nothing else."""
    import pyarrow.parquet as pq

    options = ("--minutes", "2", "--xways", "0.5")
    plain, zipped, packed, columns = (
        generated(tmp_path, *options, name=name)[0] for name in ("a.csv", "b.csv.gz", "c.csv.xz", "d.parquet")
    )
    text = plain.read_bytes()
    assert gzip.decompress(zipped.read_bytes()) == lzma.decompress(packed.read_bytes()) == text
    table = pq.read_table(columns)
    assert table.column_names[:3] == ["type", "time", "vid"]
    rows = [list(map(int, row)) for row in csv.reader(io.StringIO(text.decode()))]
    assert [list(row) for row in zip(*table.to_pydict().values(), strict=True)] == rows


def test_a_longer_run_begins_with_the_shorter_one(tmp_path):
    """What a seed gives does not depend on how long it is asked for."""
    (short, _), (long, _) = (generated(tmp_path, "--minutes", minutes, name=f"{minutes}.csv") for minutes in ("2", "3"))
    assert long.read_bytes().startswith(short.read_bytes())


def test_lines_are_in_order_and_well_formed(run):
    """15 integers, ordered by time, none of which a reader would refuse; unused fields are -1."""
    tuples = Tuples(run.out)
    assert sum(1 for _ in tuples) == len(run.rows)
    assert tuples.rejected == 0
    used = {0: {*range(9)}, 2: {0, 1, 2, 9}, 3: {0, 1, 2, 4, 9, 14}}
    unused = {kind: [place for place in range(15) if place not in places] for kind, places in used.items()}
    for row in run.rows:
        assert [place for place, value in enumerate(row) if value == -1] == unused[row[0]]


def test_places_and_speeds_are_possible(run):
    """Segment, position and lane belong together, and a speed is 0..100."""
    for reports in run.trips.values():
        for report in reports:
            assert report.number == report.position // FEET
            assert 0 <= report.position < 100 * FEET
            assert 0 <= report.speed <= 100


def test_a_trip_goes_from_the_entry_ramp_to_the_exit_lane(run):
    """It begins in lane 0, reports every 30 seconds, moves forwards, and only lane 4 ends it."""
    assert all(reports[0].lane == 0 for reports in run.trips.values())
    for before, after in steps(run):
        if before.lane == 4:
            assert after.lane == 0
            assert after.time > before.time + 30
        else:
            assert after.time == before.time + 30
            assert after.position >= before.position
            assert after.lane != 0 or before.lane == 0


def test_the_west_drives_down(tmp_path):
    """Positions shrink in direction 1, and both directions carry cars."""
    out, _ = generated(tmp_path, "--minutes", "3")
    last = {}
    directions = Counter()
    for row in Tuples(out):
        if row[0] == 0:
            report = Report.of(row)
            before = last.get(report.vid)
            if before is not None and before.lane != 4:
                assert (report.position - before.position) * (1 - 2 * report.direction) >= 0
            last[report.vid] = report
            directions[report.direction] += 1
    assert min(directions.values()) > 0.4 * max(directions.values())


@pytest.mark.parametrize(("xways", "ways"), [("0.5", {(0, 0)}), ("1.5", {(0, 0), (0, 1), (1, 0)})])
def test_half_a_road_is_its_east(tmp_path, xways, ways):
    """0.5 is one direction of one road."""
    out, _ = generated(tmp_path, "--minutes", "1", "--xways", xways)
    assert {(row[4], row[6]) for row in Tuples(out) if row[0] == 0} == ways


def test_vehicles_come_back(run):
    """On another trip with the same number, some into the very segment that they left in (rule 7)."""
    back = [(before, after) for before, after in steps(run) if before.lane == 4]
    assert len(back) > 50
    assert 0 < sum(before.number == after.number for before, after in back) < len(back)


def test_exits_are_of_both_kinds(run):
    """By the ramp of a segment that was driven in, and straight into that of the next one (rule 8)."""
    exits = Counter(before.number == after.number for before, after in steps(run) if after.lane == 4)
    assert min(exits[True], exits[False]) > 100


def test_accidents_come_twice_in_a_segment(run):
    """The reference finds them, the second one after the first is cleared (rule 6), and alerts those who come."""
    alerts = defaultdict(set)
    for answer in run.answers:
        if isinstance(answer, AccidentAlert):
            alerts[answer.number].add(answer.time // 60)
    minutes = sorted(next(iter(alerts.values())))
    assert minutes
    assert any(later - earlier > 1 for earlier, later in pairwise(minutes))


def test_only_the_accidents_that_were_made_are_found(run):
    """Cars alone, too short, in two lanes or swaying are none, though there are many of them."""
    made = {(made["xway"], made["direction"], made["segment"]) for made in run.facts["accidents"]}
    found = {(a.xway, a.direction, a.number) for a in run.answers if isinstance(a, AccidentAlert)}
    assert found
    assert found <= made
    assert run.facts["lookalikes"] >= 6


def test_cars_sway_where_they_stand(run):
    """Some change the lane and nothing else: that is movement, and a reader must see it."""
    same_spot = [(before, after) for before, after in steps(run) if before.position == after.position]
    assert any(before.lane != after.lane for before, after in same_spot)
    assert any(before.lane == after.lane for before, after in same_spot)


def test_congestion_makes_tolls(run):
    """Enough segments have more than 50 cars and a LAV below 40, and not all have."""
    tolls = Counter(answer.toll > 0 for answer in run.answers if isinstance(answer, TollNotice))
    assert 0.01 < tolls[True] / tolls.total() < 0.5


def test_questions_are_one_in_a_hundred(run):
    """Half of them for the balance, a tenth for a day; each in the second of a report of its vehicle."""
    kinds = Counter(row[0] for row in run.rows)
    assert kinds[2] == pytest.approx(0.005 * kinds[0], rel=0.15)
    assert kinds[3] == pytest.approx(0.001 * kinds[0], rel=0.35)
    assert set(kinds) == {0, 2, 3}
    numbers = [row[9] for row in run.rows if row[0] != 0]
    assert numbers == list(range(1, len(numbers) + 1))
    for before, row in pairwise(run.rows):
        assert row[0] == 0 or (before[0], *before[1:3]) == (0, *row[1:3])


def test_answers_are_not_all_zero(run):
    """Balances with charges, some of them within the last minute; days with and without a row."""
    balances = [answer for answer in run.answers if isinstance(answer, Balance)]
    assert any(answer.amount for answer in balances)
    assert any(len(answer.accepted) > 1 for answer in balances)
    known = Counter(answer.known for answer in run.answers if isinstance(answer, Expenditure))
    assert known[True] > known[False] > 0


def test_the_history_is_small_and_of_those_who_ask(run):
    """Days 1..69, existing roads, and only vehicles with a question; some days have two rows that add up."""
    asking = {row[2] for row in run.rows if row[0] == 3}
    assert {vid for vid, _, _ in run.past} <= asking
    assert all(1 <= day <= 69 and xway == 0 for _, day, xway in run.past)
    lines = (run.out.parent / "history-traffic.csv").read_text().splitlines()
    assert len(run.past) < len(lines) < 6 * len(asking)


def test_load_grows_like_that_of_the_public_generators(tmp_path, capsys):
    """One road: some 30 tuples a second in the first minute, several hundred after ten."""
    out, _ = generated(tmp_path, "--minutes", "10", "--json")
    facts = json.loads(capsys.readouterr().out)
    first = sum(1 for row in Tuples(out) if row[1] < 60)
    assert 20 < first / 60 < 50
    assert 250 < facts["rows_in_last_minute"] / 60 < 600


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--xways", "0.3"),
        ("--xways", "0"),
        ("--xways", "nan"),
        ("--xways", "inf"),
        ("--minutes", "0"),
        ("--seed", "-1"),
        ("--peak", "0.5"),
        ("--cars-per-minute", "0"),
        ("--accident-gap", "0"),
        ("--accident-length", "1"),
        ("--jams", "-1"),
    ],
)
def test_impossible_settings_are_refused(tmp_path, option, value):
    """The message names the option, the value and what is possible; no file is made."""
    with pytest.raises(BadSetting, match=f"{option} .* is not possible; give "):
        generated(tmp_path, option, value)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("name", "problem"), [("a.csv.zip", "no packing"), ("no/a.csv", "mkdir -p"), ("", "directory")]
)
def test_impossible_files_are_refused(tmp_path, name, problem):
    """An unknown packing, a missing directory, a directory: told before the work begins."""
    with pytest.raises(UnwritableFile, match=problem):
        command(["--out", str(tmp_path / name), "--history", str(tmp_path / "h.csv"), "--minutes", "1"])
    assert list(tmp_path.iterdir()) == []


def test_one_file_cannot_be_both(tmp_path):
    """Traffic and history under one name would overwrite each other."""
    with pytest.raises(UnwritableFile, match="same file"):
        command(["--out", str(tmp_path / "a.csv"), "--history", str(tmp_path / "a.csv"), "--minutes", "1"])


def test_an_interrupted_run_leaves_nothing_behind(tmp_path, monkeypatch):
    """Ctrl-C in the middle: no half file, and one that was there before stays as it was."""
    (tmp_path / "traffic.csv").write_text("from before")

    def interrupted(self):
        yield next(whole(self))
        raise KeyboardInterrupt

    whole = Simulation.minutes
    monkeypatch.setattr(Simulation, "minutes", interrupted)
    with pytest.raises(KeyboardInterrupt):
        generated(tmp_path, "--minutes", "3")
    assert [path.name for path in tmp_path.iterdir()] == ["traffic.csv"]
    assert (tmp_path / "traffic.csv").read_text() == "from before"


def test_a_device_is_written_to_and_not_replaced(tmp_path):
    """`--history /dev/null` must not turn the device into a file; a pipe stands for it here."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        import numpy as np

        with table_file(pipe, ("a", "b")) as writer:
            writer.write(np.array([[1, 2], [3, 4]], np.int32))
        assert os.read(reader, 100) == b"1,2\n3,4\n"
    finally:
        os.close(reader)
    assert pipe.is_fifo()


def test_a_full_disk_is_told(tmp_path, monkeypatch):
    """An error of the system is one line with the path, and the partial file is gone."""

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(table_files._Writer, "write", full)
    with pytest.raises(UnwritableFile, match="No space left on device"):
        generated(tmp_path, "--minutes", "1")
    assert list(tmp_path.iterdir()) == []


def test_mistakes_end_with_code_2_and_one_line(tmp_path):
    """From the shell: no traceback; the same for both commands."""
    for module, options in (
        ("generate", ["--xways", "0.3", "--out", "a.csv", "--history", "b.csv"]),
        ("validate", ["missing.csv", "missing.csv", "missing.csv"]),
    ):
        ended = subprocess.run(
            [sys.executable, "-m", f"apps.linear_road.{module}", *options],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": os.getcwd()},
            capture_output=True,
            text=True,
            check=False,
        )
        assert (ended.returncode, ended.stdout, ended.stderr.count("\n")) == (2, "", 1)
        assert ended.stderr.startswith(f"{module}: ")


def test_an_interrupted_command_says_so(capsys):
    """Ctrl-C ends the process with 130 and one line, without a traceback."""

    def interrupted(_):
        raise KeyboardInterrupt

    with pytest.raises(SystemExit) as ended:
        run_command("generate", interrupted, [])
    assert ended.value.code == 130
    assert capsys.readouterr().err == "generate: stopped\n"


class Terminal(io.StringIO):
    """A stream that a person looks at."""

    def isatty(self):
        """Yes."""
        return True


def test_progress_is_shown_on_a_terminal_only():
    """One line that is written over; nothing at all in a log."""
    seen, log = Terminal(), io.StringIO()
    for stream in (seen, log):
        progress = Progress(stream)
        progress.show("minute 10")
        progress.show("done")
        progress.clear()
    assert seen.getvalue() == "\rminute 10\rdone     \r    \r"
    assert log.getvalue() == ""
