"""The validator passes an output exactly when nothing is missing, extra, repeated, wrong or late."""

import gzip
import json
import lzma
from collections import Counter
from itertools import takewhile
from pathlib import Path

import pytest

from apps.linear_road.validate import command
from apps.linear_road.validation.reading import Tuples, UnreadableFile, read_history
from apps.linear_road.validation.reference import Reference
from apps.linear_road.validation.values import AccidentAlert, Balance, TollNotice

SAMPLE = Path(__file__).parents[4] / "shared" / "linear-road"
WHOLE = "every answer is there, once, right and in time"


def line_of(answer, delay=0.25):
    """An output line that says what the reference says."""
    time, emit = answer.time, answer.time + delay
    if isinstance(answer, TollNotice):
        return f"0,{answer.vid},{time},{emit},{int(answer.lav or 0)},{answer.toll}"
    if isinstance(answer, AccidentAlert):
        return f"1,{time},{emit},{answer.xway},{answer.number},{answer.direction},{answer.vid}"
    if isinstance(answer, Balance):
        return f"2,{time},{emit},{time},{answer.qid},{answer.amount}"
    return f"3,{time},{emit},{answer.qid},{answer.amount}"


def small_traffic():
    """Two crowded minutes, an accident, and a question of each kind, one of them without a row in the history."""
    rest = ",-1,-1,-1,-1,-1"
    for second in range(0, 300, 30):
        for vid in (1, 2):
            yield f"0,{second},{vid},0,0,2,0,40,211300,-1{rest}"
        if second < 60:
            for vid in range(100, 152):
                yield f"0,{second},{vid},{20 + vid % 2},0,1,0,10,{53000 + vid},-1{rest}"
        if second == 90:
            yield f"0,90,3,30,0,1,0,10,53500,-1{rest}"
        if second == 120:
            yield f"0,120,3,30,0,1,0,11,58500,-1{rest}"
            yield f"2,120,3,-1,-1,-1,-1,-1,-1,1{rest}"
            yield "3,120,3,-1,0,-1,-1,-1,-1,2,-1,-1,-1,-1,7"
            yield "3,120,3,-1,0,-1,-1,-1,-1,3,-1,-1,-1,-1,8"
        if second == 150:
            yield f"0,150,4,30,0,1,0,38,200700,-1{rest}"


class Case:
    """An input, a history, and the lines of a right output, in a directory of their own."""

    def __init__(self, directory):
        self.traffic, self.history, self.output = (directory / name for name in ("in.csv", "history.csv", "out.csv"))
        self.traffic.write_text("".join(f"{line}\n" for line in small_traffic()))
        self.history.write_text("3,7,0,20\n3,7,0,5\n3,6,0,99\n")
        reference = Reference(read_history(self.history))
        self.lines = [line_of(answer) for answer in reference.answers(Tuples(self.traffic))]

    def judge(self, capsys, *options, lines=None):
        """Validate *lines*; the exit code and what was found per type."""
        self.output.write_text("".join(f"{line}\n" for line in (self.lines if lines is None else lines)))
        code = command([str(self.traffic), str(self.history), str(self.output), "--json", *options])
        return code, json.loads(capsys.readouterr().out)

    def changed(self, old, new):
        """The right lines, one of them changed."""
        assert sum(line.startswith(old) for line in self.lines) == 1
        return [new + line[len(old) :] if line.startswith(old) else line for line in self.lines]


@pytest.fixture
def case(tmp_path):
    """Small traffic and its right output."""
    return Case(tmp_path)


def test_a_right_output_passes_in_any_order(case, capsys):
    """The order of the lines means nothing."""
    code, found = case.judge(capsys, lines=case.lines[::-1])
    assert (code, found["passed"]) == (0, True)
    assert {kind: verdict["right"] for kind, verdict in found["types"].items()} == {"0": 57, "1": 1, "2": 1, "3": 2}


def test_the_case_has_what_it_is_for(case):
    """A toll, a charge, an alert, a known and an unknown day: or the other tests would prove nothing."""
    assert {"0,3,90,90.25,20,8", "1,150,150.25,0,40,0,4", "2,120,120.25,120,1,8", "3,120,120.25,2,25"} <= set(
        case.lines
    )
    assert "3,120,120.25,3,0" in case.lines


@pytest.mark.parametrize("kind", [0, 1, 2, 3])
def test_a_missing_answer_is_found(case, capsys, kind):
    """One line less of any type fails, and the report says which."""
    gone = next(line for line in case.lines if line.startswith(f"{kind},"))
    code, found = case.judge(capsys, lines=[line for line in case.lines if line != gone])
    assert (code, found["types"][str(kind)]["missing"]) == (1, 1)
    assert found["types"][str(kind)]["examples"]["missing"]


@pytest.mark.parametrize("kind", [0, 1, 2, 3])
def test_a_doubled_answer_is_found(case, capsys, kind):
    """The same line twice is one too many, in every type."""
    again = next(line for line in case.lines if line.startswith(f"{kind},"))
    code, found = case.judge(capsys, lines=[*case.lines, again])
    assert (code, found["types"][str(kind)]["repeated"]) == (1, 1)


@pytest.mark.parametrize("extra", ["0,3,91,91.1,20,8", "1,90,90.1,0,40,0,3", "2,5,5.1,5,99,0", "3,5,5.1,98,0"])
def test_an_answer_that_nobody_asked_for_is_found(case, capsys, extra):
    """An extra line of any type fails."""
    code, found = case.judge(capsys, lines=[*case.lines, extra])
    assert (code, found["types"][extra[0]]["extra"]) == (1, 1)


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("0,3,90,90.25,20,8", "0,3,90,90.25,20,18"),  # the toll
        ("0,3,90,90.25,20,8", "0,3,90,90.25,20,0"),
        ("0,3,90,90.25,20,8", "0,3,90,90.25,22.5,8"),  # the LAV
        ("0,1,0,0.25,0,0", "0,1,0,0.25,3,0"),  # a LAV where there is none yet
        ("2,120,120.25,120,1,8", "2,120,120.25,120,1,9"),
        ("2,120,120.25,120,1,8", "2,121,121.25,120,1,8"),  # the second of the question
        ("3,120,120.25,2,25", "3,120,120.25,2,20"),
        ("3,120,120.25,3,0", "3,120,120.25,3,1"),  # optional, but then 0
    ],
)
def test_a_wrong_value_is_found(case, capsys, right, wrong):
    """Toll, LAV beyond the tolerance, balance, expenditure: the report shows what was expected."""
    code, found = case.judge(capsys, lines=case.changed(right, wrong))
    verdict = found["types"][right[0]]
    assert (code, verdict["wrong"], len(verdict["examples"]["wrong"])) == (1, 1, 1)


def test_a_wrong_accident_is_missing_and_extra(case, capsys):
    """An alert of another segment answers another question."""
    code, found = case.judge(capsys, lines=case.changed("1,150,150.25,0,40,0,4", "1,150,150.25,0,41,0,4"))
    assert (code, found["types"]["1"]["missing"], found["types"]["1"]["extra"]) == (1, 1, 1)


@pytest.mark.parametrize(
    ("right", "emit", "code"),
    [
        ("0,3,90,", "95", 0),
        ("0,3,90,", "95.001", 1),
        ("1,150,", "155.5", 1),
        ("2,120,", "126", 1),
        ("3,120,120.25,2", "129.9,2", 0),
        ("3,120,120.25,2", "130.1,2", 1),
    ],
)
def test_a_late_answer_is_found(case, capsys, right, emit, code):
    """Five seconds for every answer, ten for an expenditure."""
    old = right if right.startswith("3") else right + ("90.25" if right[0] == "0" else right.split(",")[1] + ".25")
    new = f"3,120,{emit}" if right.startswith("3") else right + emit
    found = case.judge(capsys, lines=case.changed(old, new))
    assert found[0] == code
    assert found[1]["types"][right[0]].get("late", 0) == code


@pytest.mark.parametrize("emit", ["89.9", "-1", ""])
def test_an_answer_before_its_question_is_found(case, capsys, emit):
    """Emit < Time is wrong, and so is no time of emission: neither shows that the answer was in time."""
    code, found = case.judge(capsys, lines=case.changed("0,3,90,90.25,", f"0,3,90,{emit},"))
    assert (code, found["types"]["0"]["before its question"]) == (1, 1)


@pytest.mark.parametrize(("lav", "options", "code"), [("20.9", [], 0), ("21.1", ["--lav-tolerance", "1/10"], 1)])
def test_a_lav_may_be_shown_as_one_likes(case, capsys, lav, options, code):
    """Truncated, rounded or exact: anything nearer than the tolerance to the exact LAV of 20.5."""
    assert case.judge(capsys, *options, lines=case.changed("0,3,90,90.25,20,", f"0,3,90,90.25,{lav},"))[0] == code


@pytest.mark.parametrize(("options", "code"), [([], 0), (["--strict-balance"], 1)])
def test_an_older_balance_is_accepted_unless_strict(case, capsys, options, code):
    """The balance of before the charge in the same second is one of the last minute (rule 11)."""
    got, found = case.judge(capsys, *options, lines=case.changed("2,120,120.25,120,1,8", "2,120,120.25,119,1,0"))
    assert got == code
    assert found["types"]["2"].get("right, but an older balance", 0) == 1 - code


def test_an_optional_answer_may_be_left_out(case, capsys):
    """Rule 12: no row in the history, no answer needed."""
    code, found = case.judge(capsys, lines=[line for line in case.lines if line != "3,120,120.25,3,0"])
    assert (code, found["types"]["3"]["optional, not answered"]) == (0, 1)


def test_until_leaves_later_questions_out(case, capsys):
    """Neither what is missing nor what is extra after that second matters."""
    kept = [line for line in case.lines if line.split(",")[2 if line[0] == "0" else 1] != "150"]
    assert case.judge(capsys, "--until", "149", lines=[*kept, "0,8,200,200.1,0,0"])[0] == 0
    assert case.judge(capsys, "--until", "150", lines=kept)[0] == 1


def test_response_times_are_summed_up(case, capsys):
    """Median, 99th percentile and maximum of Emit - Time per type."""
    response = case.judge(capsys, lines=case.changed("0,3,90,90.25", "0,3,90,93"))[1]["types"]["0"]["response"]
    assert response == {"median": 0.25, "p99": 3.0, "max": 3.0}


MALFORMED = [
    "",
    "hello",
    "0,90,3",
    "0,90,3,30,0,1,0,10,53500,-1,-1,-1,-1,-1,-1,-1",
    "0,90,3,3.5,0,1,0,10,53500,-1,-1,-1,-1,-1,-1",
    "0,90,3,+30,0,1,0,10,53500,-1,-1,-1,-1,-1,-1",
    "0,90,3,3_0,0,1,0,10,53500,-1,-1,-1,-1,-1,-1",
    "0,90,99999999999,30,0,1,0,10,53500,-1,-1,-1,-1,-1,-1",
    "7,90,3,30,0,1,0,10,53500,-1,-1,-1,-1,-1,-1",
    "0,90,-3,30,0,1,0,10,53500,-1,-1,-1,-1,-1,-1",
    "0,90,3,30,0,5,0,10,53500,-1,-1,-1,-1,-1,-1",
    "0,90,3,30,0,1,2,10,53500,-1,-1,-1,-1,-1,-1",
    "0,90,3,30,0,1,0,100,53500,-1,-1,-1,-1,-1,-1",
    "0,90,3,30,10000,1,0,10,53500,-1,-1,-1,-1,-1,-1",
    "0,59,3,30,0,1,0,10,53500,-1,-1,-1,-1,-1,-1",
    "0,9000,3,30,0,1,0,10,53500,-1,-1,-1,-1,-1,-1",
    "0,90,3,30,0,1,0,10,53500,-1,-1,-1,-1,-1,\ufffd",
]


@pytest.mark.parametrize("line", MALFORMED)
def test_a_malformed_line_is_ignored_counted_and_named(case, capsys, line):
    """It answers nothing, moves no clock and stops nothing."""
    lines = case.traffic.read_text().splitlines()
    place = next(number for number, text in enumerate(lines) if text.startswith("0,90,"))
    case.traffic.write_text("\n".join([*lines[:place], line, *lines[place:]]) + "\n")
    code, found = case.judge(capsys)
    assert (code, found["input"]["rejected"]) == (0, 1)
    assert found["input"]["examples"][0].startswith(f"line {place + 1}: ")


@pytest.mark.parametrize(("second", "accepted"), [(60, 1), (60 + 3600, 1), (60 + 3601, 0), (59, 0)])
def test_time_may_pause_for_an_hour(case, second, accepted):
    """A longer leap is a broken number: taking it for real would lose all that follows."""
    tuples = [f"0,{time},1,30,0,1,0,10,53500,-1,-1,-1,-1,-1,-1\n" for time in (60, second)]
    case.traffic.write_text("".join(tuples))
    assert len(list(Tuples(case.traffic))) == 1 + accepted


def test_spaces_and_foreign_line_ends_are_no_mistake(case, capsys):
    """` 5 ` is five, and a carriage return before the line end belongs to it."""
    text = case.traffic.read_text().replace(",", " , ").replace("\n", "\r\n")
    case.traffic.write_bytes(text.encode())
    assert case.judge(capsys)[1]["input"]["rejected"] == 0


def test_any_speed_is_taken(case):
    """Real traffic files hold a speed of -3: it is a report like any other."""
    case.traffic.write_text("0,5,1,-3,0,1,0,10,53500,-1,-1,-1,-1,-1,-1\n")
    assert [row[3] for row in Tuples(case.traffic)] == [-3]


@pytest.mark.parametrize("line", ["nonsense", "9,1,2,3", "0,1,2,3", "2,1,2,3,4,5,6", "0,1,2,nan,3,4", "1,1,2,a,b,c,d"])
def test_an_unreadable_output_line_is_named(case, capsys, line):
    """Exit code 2: the output could not be judged as a whole; the number of the line is told."""
    code, found = case.judge(capsys, lines=[*case.lines, line])
    assert code == 2
    assert found["unreadable"] == {"count": 1, "examples": [f"line {len(case.lines) + 1}: {line!r}"]}


@pytest.mark.parametrize("missing", [0, 1, 2])
def test_a_missing_file_is_named(case, missing):
    """Each of the three files: one error with its path and what to do."""
    case.output.write_text("")
    paths = [case.traffic, case.history, case.output]
    paths[missing].unlink()
    with pytest.raises(UnreadableFile, match=f"{paths[missing].name}: there is no such file"):
        command([str(path) for path in paths])


def test_an_unreadable_history_line_is_named(case):
    """A hole in the history would make right answers wrong: it is not passed over."""
    case.history.write_text("3,7,0,20\n3,7,0\n")
    with pytest.raises(UnreadableFile, match="line 2: 3 fields, not 4"):
        read_history(case.history)


def test_a_broken_archive_is_told(case):
    """A file that ends in the middle is an error of one line, not a traceback."""
    packed = lzma.compress(case.traffic.read_bytes())
    case.traffic.write_bytes(packed[: len(packed) // 2])
    with pytest.raises(UnreadableFile, match="cannot be read"):
        list(Tuples(case.traffic))


def test_files_are_told_by_their_first_bytes(case, capsys):
    """gzip, xz and Parquet are read whatever their names are."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = list(Tuples(case.traffic))
    case.history.write_bytes(gzip.compress(case.history.read_bytes()))
    plain = case.traffic.read_bytes()
    for content in (lzma.compress(plain), gzip.compress(plain)):
        case.traffic.write_bytes(content)
        assert list(Tuples(case.traffic)) == rows
    columns = list(zip(*rows, strict=True))
    pq.write_table(pa.table({f"c{index}": column for index, column in enumerate(columns)}), case.traffic)
    assert list(Tuples(case.traffic)) == rows
    assert case.judge(capsys)[0] == 0


def test_missing_values_in_parquet_are_malformed(case):
    """A null is no integer, and 2^40 none of 32 bits."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = [(0, 5, 1, 3, 0, 1, 0, 10, 53500, -1, -1, -1, -1, -1, value) for value in (-1, None, 2**40)]
    columns = list(zip(*rows, strict=True))
    pq.write_table(pa.table({f"c{index}": column for index, column in enumerate(columns)}), case.traffic)
    tuples = Tuples(case.traffic)
    assert (len(list(tuples)), tuples.rejected) == (1, 2)


def test_the_verdict_for_a_person_says_it_in_one_line(case, capsys):
    """The last line is the verdict."""
    case.output.write_text("\n".join(case.lines))
    assert command([str(case.traffic), str(case.history), str(case.output)]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == f"VERDICT: {WHOLE}"


@pytest.mark.skipif(not SAMPLE.is_dir(), reason="the sample traffic is not beside the repository")
def test_the_reference_agrees_with_an_independent_implementation(tmp_path, capsys):
    """The first ten minutes of a public traffic sample: the answers of others pass, every one of them."""
    until = 599
    traffic, output = tmp_path / "in.csv", tmp_path / "out.csv"
    with lzma.open(SAMPLE / "l1-45min.csv.xz", "rt") as whole, traffic.open("w") as part:
        part.writelines(takewhile(lambda line: int(line.split(",", 2)[1]) <= until, whole))
    with output.open("w") as lines:
        for kind in range(4):
            lines.writelines(expected_lines(kind, until))
    code = command([str(traffic), str(SAMPLE / "l1-45min.tolls.csv.xz"), str(output), "--strict-balance", "--json"])
    found = json.loads(capsys.readouterr().out)
    assert code == 0
    given = Counter(line[0] for line in output.read_text().splitlines())
    assert {kind: verdict["right"] for kind, verdict in found["types"].items()} == given
    assert set(given) == set("0123")


def expected_lines(kind, until):
    """The expected answers of one type as output lines."""
    forms = (
        "0,{vid},{time},{time},{lav},{toll}\n",
        "1,{time},{time},{xway},{seg},{dir},{vid}\n",
        "2,{time},{time},{time},{qid},{bal}\n",
        "3,{time},{time},{qid},{bal}\n",
    )
    with lzma.open(SAMPLE / "expected" / f"type{kind}.csv.xz", "rt") as rows:
        names = next(rows).strip().split(",")
        for row in rows:
            values = dict(zip(names, row.strip().split(","), strict=True))
            if int(values["time"]) <= until:
                yield forms[kind].format(**values)
