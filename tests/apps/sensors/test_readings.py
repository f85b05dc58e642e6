"""The generator of readings."""

import csv

from apps.sensors.readings import DELAY, PARTITIONS, generate, main, partition_file
from exop.model.meshes.partitions import partition_of


def rows(path):
    """The rows of a file."""
    with path.open(newline="") as lines:
        return list(csv.DictReader(lines))


def contents(folder):
    """All files of a folder, by name."""
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_a_seed_determines_all_files(tmp_path):
    """The same seed makes the same files, another seed makes others."""
    for name, seed in (("one", 7), ("same", 7), ("other", 8)):
        generate(tmp_path / name, sensors=6, minutes=3, seed=seed)
    one, same, other = (contents(tmp_path / name) for name in ("one", "same", "other"))
    assert len(one) == PARTITIONS + 1
    assert one == same
    assert all(one[name] != other[name] for name in one)


def test_a_file_has_the_readings_of_a_partition(tmp_path):
    """A sensor is in the file of its partition, which is that of a Kafka channel."""
    number = generate(tmp_path, sensors=20, minutes=5)
    found = {index: rows(partition_file(tmp_path, index)) for index in range(PARTITIONS)}
    assert sum(map(len, found.values())) == number
    assert all(partition_of(int(row["sensor"]), PARTITIONS) == index for index, part in found.items() for row in part)


def test_values_are_exact_in_sums_of_any_order(tmp_path):
    """All values are multiples of 1/16."""
    generate(tmp_path, sensors=20, minutes=5)
    assert all(float(row["value"]) * 16 % 1 == 0 for row in rows(partition_file(tmp_path, 0)))


def test_readings_are_out_of_order_and_some_are_late(tmp_path):
    """Most readings are behind a later one by less than the delay of the watermark, and some by more."""
    generate(tmp_path, sensors=40, minutes=10)
    latest, behind = 0, []
    for row in rows(partition_file(tmp_path, 1)):
        behind.append(latest - int(row["time"]))
        latest = max(latest, int(row["time"]))
    late = sum(one > DELAY for one in behind)
    assert 0 < late < 0.02 * len(behind)
    assert sum(0 < one <= DELAY for one in behind) > 0.2 * len(behind)


def test_the_command_names_what_it_made(tmp_path, capsys):
    """The number of readings, and the folder."""
    main([str(tmp_path), "--sensors", "3", "--minutes", "1"])
    number = sum(len(rows(partition_file(tmp_path, index))) for index in range(PARTITIONS))
    assert capsys.readouterr().out == f"{number} readings of 3 sensors in {tmp_path}\n"
