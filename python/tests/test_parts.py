"""Parts: any number of parts has the rows of the WAL, each once."""

import multiprocessing
import pathlib
import pickle

import pyarrow
import pytest

import walden


@pytest.mark.parametrize("count", [1, 2, 3, 7])
@pytest.mark.parametrize("name", ["records", "blocks", "framing", "segments"])
def test_rows_of_parts_are_those_of_the_log(log: str, count: int, name: str) -> None:
    parts = walden.parts(log, count)
    assert len(parts) == min(count, 3)
    assert sum(part.segments for part in parts) == 3
    tables = [pyarrow.table(walden.table(name, log, part=part)) for part in parts]
    assert pyarrow.concat_tables(tables).to_pylist() == pyarrow.table(walden.table(name, log)).to_pylist()


@pytest.mark.filterwarnings("ignore::walden.WaldenWarning")
def test_bytes_of_parts_are_those_of_the_files(any_log: str) -> None:
    of_parts = 0
    for part in walden.parts(any_log, 100):
        for name in ("records", "framing"):
            table = pyarrow.table(walden.table(name, any_log, part=part, columns=["bytes"]))
            of_parts += sum(table["bytes"].to_pylist())
    assert of_parts == walden.explain(any_log)["file_bytes"]


@pytest.mark.parametrize("by_time", [False, True])
def test_parts_of_a_range(log: str, by_time: bool) -> None:
    everything = pyarrow.table(walden.records(log))
    starts = everything["start_lsn"].to_pylist()
    start, end = starts[len(starts) // 5], starts[-len(starts) // 5]
    if by_time:
        times = [time for time in pyarrow.table(walden.transactions(log))["end_time"].to_pylist() if time]
        start = times[len(times) // 2].replace(microsecond=0)
    wanted = pyarrow.table(walden.records(log, start=start, end=end))
    assert wanted.num_rows < len(starts) or by_time
    parts = walden.parts(log, 3, start=start, end=end)
    tables = [pyarrow.table(walden.records(log, part=part)) for part in parts]
    assert pyarrow.concat_tables(tables).to_pylist() == wanted.to_pylist()
    framing = [pyarrow.table(walden.framing(log, part=part)) for part in parts]
    assert pyarrow.concat_tables(framing) .to_pylist() == pyarrow.table(walden.framing(log, start=start, end=end)).to_pylist()


def read(work: tuple[str, walden.Part]) -> list[int]:
    log, part = work
    return pyarrow.table(walden.records(log, part=part, columns=["start_lsn"]))["start_lsn"].to_pylist()


def test_parts_can_be_pickled_and_read_by_other_processes(log: str) -> None:
    parts = walden.parts(log, 3, start=pyarrow.table(walden.records(log))["time"].to_pylist()[-1])
    assert pickle.loads(pickle.dumps(parts)) == parts
    assert len(set(parts)) == len(parts)
    parts = walden.parts(log, 3)
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        rows = pool.map(read, [(log, part) for part in parts])
    assert sum(rows, []) == pyarrow.table(walden.records(log))["start_lsn"].to_pylist()


def test_parts_are_found_in_a_log_that_has_grown(log: str) -> None:
    files = sorted(pathlib.Path(log).iterdir())
    part, other = walden.parts(files[1:2], 1)[0], walden.parts(files[2:], 1)[0]
    rows = pyarrow.table(walden.records(files, part=part))
    everything = pyarrow.table(walden.records(files))
    assert rows.to_pylist() == [row for row in everything.to_pylist() if row["segment"] in files[1].name]
    with pytest.raises(walden.WaldenError, match="divide the source again"):
        walden.records(files[:2], part=other)


def test_sums_cannot_be_read_in_parts(log: str) -> None:
    part = walden.parts(log, 2)[0]
    for name in ("transactions", "checkpoints", "relations"):
        with pytest.raises(ValueError, match="can be read in parts"):
            walden.table(name, log, part=part)
    with pytest.raises(ValueError, match="count"):
        walden.parts(log, 0)
    with pytest.raises(ValueError, match="own range"):
        walden.records(log, part=part, start=0)
