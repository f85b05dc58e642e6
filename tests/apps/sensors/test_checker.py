"""The checker, on readings that were worked out by hand."""

import sqlite3
from contextlib import closing

import pytest

from apps.sensors.checker import TABLES, compare, expected, main
from apps.sensors.readings import PARTITIONS, partition_file


@pytest.fixture
def folder(tmp_path):
    """Three minutes of sensor 1, which is too hot in the second and third; its limit is raised for the third."""
    readings = {0: ["3,1,20.0", "9,1,21.0", "64,1,40.0", "58,1,30.0", "59,1,22.0", "125,1,35.0"], 1: ["10,2,5.5"]}
    for number in range(PARTITIONS):
        partition_file(tmp_path, number).write_text("\n".join(["time,sensor,value", *readings.get(number, [])]))
    (tmp_path / "sensors.csv").write_text(
        "sensor,since,place,lowest,highest\n1,0,roof,10.0,30.0\n2,0,hall,0.0,9.0\n1,180,roof,10.0,34.0\n"
    )
    return tmp_path


def database(path, rows):
    """A database with these rows."""
    with closing(sqlite3.connect(path)) as base:
        for table, columns in TABLES.items():
            base.execute(f"CREATE TABLE {table} ({', '.join(columns)})")
            base.executemany(f"INSERT INTO {table} VALUES ({', '.join('?' * len(columns))})", rows[table])
        base.commit()
    return path


def test_the_expected_rows(folder):
    """A reading that is more than the delay behind is late; limits are those at the end of the minute."""
    assert expected(folder, after=2) == {
        "minutes": [
            (60, 1, "roof", 3, 21.0, 20.0, 22.0, 10.0, 30.0),
            (60, 2, "hall", 1, 5.5, 5.5, 5.5, 0.0, 9.0),
            (120, 1, "roof", 1, 40.0, 40.0, 40.0, 10.0, 30.0),
            (180, 1, "roof", 1, 35.0, 35.0, 35.0, 10.0, 34.0),
        ],
        "alarms": [(180, 1, "roof", "begins", 35.0)],
        "late": [(58, 1, 30.0)],
    }


def test_a_database_with_the_expected_rows_is_right(folder, capsys):
    """In any order."""
    rows = {table: found[::-1] for table, found in expected(folder).items()}
    assert main([str(folder), str(database(folder / "found.db", rows))]) == 0
    assert "4 rows expected, 0 missing, 0 wrong or doubled" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("wrong", "missing", "unexpected"),
    [
        (lambda rows: rows[1:], 1, 0),
        (lambda rows: [*rows, rows[0]], 0, 1),
        (lambda rows: [(*rows[0][:4], 21.000001, *rows[0][5:]), *rows[1:]], 1, 1),
    ],
    ids=["lost", "doubled", "inexact"],
)
def test_a_wrong_row_is_found(folder, wrong, missing, unexpected):
    """A lost, a doubled and an inexact row of the minutes; the other tables are right."""
    rows = expected(folder)
    found = compare(database(folder / "found.db", rows | {"minutes": wrong(rows["minutes"])}), rows)
    assert [(one.missing, one.unexpected) for one in found] == [(missing, unexpected), (0, 0), (0, 0)]
    assert [one.right for one in found] == [False, True, True]


def test_a_table_that_was_never_written_is_empty(folder):
    """All of its rows are missing."""
    sqlite3.connect(folder / "found.db").close()
    (folder / "found.db").touch()
    assert [one.missing for one in compare(folder / "found.db", expected(folder))] == [4, 0, 1]
