"""Reading files of integer rows."""

import gzip
import lzma

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from apps.linear_road import lines
from apps.linear_road.lines import UnreadableInput, read_rows

PAIR = pa.schema([("a", pa.int32()), ("b", pa.int32())])


def read(path, skip=0):
    """The good rows with their line numbers, and the bad ones."""
    good, bad = [], []
    for piece in read_rows(path, PAIR, skip):
        good += zip(piece.lines.tolist(), *(column.to_pylist() for column in piece.batch.columns), strict=True)
        bad += [(reject.line, reject.reason, reject.text) for reject in piece.rejects]
    return good, bad


@pytest.mark.parametrize("packed", [bytes, lzma.compress, gzip.compress])
def test_packed_or_not_is_seen_from_the_first_bytes(tmp_path, packed):
    """Plain, .xz and .gz files are read alike, whatever they are called."""
    path = tmp_path / "numbers"
    path.write_bytes(packed(b"1,2\n3,4\n"))
    assert read(path) == ([(1, 1, 2), (2, 3, 4)], [])


def test_parquet_by_name_or_place(tmp_path):
    """Columns are taken by name, and by place when the names are others; what is no int32 is refused."""
    path = tmp_path / "numbers.parquet"
    pq.write_table(pa.table({"b": [2, 4, None], "a": [1, 1 << 40, 5]}), path)
    good, bad = read(path)
    assert good == [(1, 1, 2)]
    assert [line for line, *_ in bad] == [2, 3]
    pq.write_table(pa.table({"x": [1], "y": [2]}), path)
    assert read(path)[0] == [(1, 1, 2)]


BAD = {
    "1": "2 fields expected, 1 found",
    "1,2,3": "2 fields expected, 3 found",
    "": "2 fields expected, 1 found",
    "1,": "b is no integer",
    "one,2": "a is no integer",
    "0x1,2": "a is no integer",
    "1.0,2": "a is no integer",
    "+1,2": "a is no integer",
    "1,4294967296": "b is out of range",
    "1,-2147483649": "b is out of range",
    "1," + "7" * 5000: "b is out of range",
    '"1",2': "a is no integer",
    "1,2\r3,4": "2 fields expected, 3 found",
}


@pytest.mark.parametrize("text", BAD, ids=[text[:20] for text in BAD])
def test_a_bad_line_is_handed_out_and_the_others_are_read(tmp_path, text):
    """A bad line has its number, the reason and its text; it takes no other line with it."""
    path = tmp_path / "numbers.csv"
    path.write_bytes(f"1,2\n{text}\n3,4\n".encode())
    assert read(path) == ([(1, 1, 2), (3, 3, 4)], [(2, BAD[text], text.encode())])


@pytest.mark.parametrize("text", ["5,6", " 5 , 6", "5,06", "5,6\r"])
@pytest.mark.parametrize("beside", ["7,8", "bad"])
def test_what_is_an_integer_does_not_depend_on_the_lines_beside(tmp_path, text, beside):
    """Blanks, leading zeros and a carriage return at the end are taken on the fast and on the careful way."""
    path = tmp_path / "numbers.csv"
    path.write_bytes(f"{text}\n{beside}\n".encode())
    assert read(path)[0][0] == (1, 5, 6)


def test_the_last_line_needs_no_end(tmp_path):
    """A file may end without a line end."""
    path = tmp_path / "numbers.csv"
    path.write_text("1,2\n3,4")
    assert read(path)[0] == [(1, 1, 2), (2, 3, 4)]


@pytest.mark.parametrize("skip", range(7))
def test_reading_goes_on_after_a_line(tmp_path, monkeypatch, skip):
    """What is skipped is neither read nor refused again; line numbers stay those of the file."""
    monkeypatch.setattr(lines, "BLOCK", 8)
    path = tmp_path / "numbers.csv"
    path.write_text("1,1\nbad\n3,3\n4,4\nbad\n6,6\n")
    good, bad = read(path, skip)
    assert [row[0] for row in good] == [line for line in (1, 3, 4, 6) if line > skip]
    assert [line for line, *_ in bad] == [line for line in (2, 5) if line > skip]


def test_lines_longer_than_a_block_are_read(tmp_path, monkeypatch):
    """A block without a line end is joined with the next."""
    monkeypatch.setattr(lines, "BLOCK", 2)
    path = tmp_path / "numbers.csv"
    path.write_text("123,456\n78,9\n")
    assert read(path)[0] == [(1, 123, 456), (2, 78, 9)]


def test_a_file_without_line_ends_does_not_fill_the_memory(tmp_path, monkeypatch):
    """Of an endless line only the beginning is kept, as one bad line."""
    monkeypatch.setattr(lines, "BLOCK", 64)
    monkeypatch.setattr(lines, "_LONGEST", 128)
    path = tmp_path / "numbers.csv"
    path.write_bytes(b"9" * 5_000 + b"\n1,2\n")
    good, bad = read(path)
    assert good == [(2, 1, 2)]
    assert [(line, len(text) < 256) for line, _, text in bad] == [(1, True)]


def test_a_broken_archive_is_one_clear_error(tmp_path):
    """A file that breaks off as a whole is no bad line: the error names it."""
    path = tmp_path / "numbers"
    plain = b"".join(b"%d,2\n" % number for number in range(1_000))
    gz = bytearray(gzip.compress(plain))
    gz[20:40] = bytes(20)
    for packed in (lzma.compress(plain)[:-20], gzip.compress(plain)[:-20], bytes(gz)):
        path.write_bytes(packed)
        with pytest.raises(UnreadableInput, match="numbers cannot be read"):
            read(path)


def test_a_file_with_other_columns_is_one_clear_error(tmp_path):
    """A Parquet file with too many columns is another file."""
    path = tmp_path / "numbers.parquet"
    pq.write_table(pa.table({"a": [1], "b": [2], "c": [3]}), path)
    with pytest.raises(UnreadableInput, match="2 columns expected, 3 found"):
        read(path)
    pq.write_table(pa.table({"a": [[1]], "b": [2]}), path)
    with pytest.raises(UnreadableInput, match="Unsupported cast"):
        read(path)


@pytest.mark.parametrize(
    ("values", "bad"),
    [
        (["1", "two", " 3 "], "two"),
        ([1.0, 2.5, 3.0], "2.5"),
        (pa.array([1, (1 << 64) - 1, 3], pa.uint64()), "18446744073709551615"),
        ([1.0, float("nan"), 3.0], "nan"),
    ],
    ids=["text", "fractions", "too large", "no number"],
)
def test_a_bad_value_of_a_parquet_file_is_one_bad_row(tmp_path, values, bad):
    """It is refused with its row as it stands there, and the rows beside it are good."""
    path = tmp_path / "numbers.parquet"
    pq.write_table(pa.table({"a": values, "b": [4, 5, 6]}), path)
    good, rejects = read(path)
    assert good == [(1, 1, 4), (3, 3, 6)]
    assert rejects == [(2, "a value is missing or no 32-bit integer", f"{bad},5".encode())]


@pytest.mark.parametrize("pack", [gzip.compress, lzma.compress])
@pytest.mark.parametrize("block", [512, 1 << 20])
def test_what_stands_before_the_break_of_an_archive_is_read(tmp_path, monkeypatch, pack, block):
    """All whole lines up to there come out, none that is cut, and then the error."""
    monkeypatch.setattr(lines, "BLOCK", block)
    path = tmp_path / "numbers"
    state, text = 1, []
    for _ in range(60_000):  # nothing that packs well: several blocks of the packer
        state = state * 1103515245 % (1 << 31)
        text.append(b"%d,2\n" % state)
    path.write_bytes(pack(b"".join(text))[:-20_000])
    good = []

    def read_all():
        for piece in read_rows(path, PAIR):
            good.extend(piece.batch.column(0).to_pylist())

    with pytest.raises(UnreadableInput, match="numbers cannot be read"):
        read_all()
    assert len(good) > 30_000
    assert good == [int(line.split(b",")[0]) for line in text[: len(good)]]
