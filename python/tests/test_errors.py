"""Damage, wrong arguments, and interrupts."""

import pathlib
import pickle
import signal
import subprocess
import sys
import textwrap
import threading
import time

import duckdb
import polars
import pyarrow
import pytest

import walden


def test_damage_has_its_place(damaged_log: pathlib.Path) -> None:
    rows = 0
    with pytest.raises(walden.DamagedError) as raised:
        for batch in walden.records(damaged_log):
            rows += batch.num_rows
    error = raised.value
    assert rows > 0
    assert isinstance(error, walden.WaldenError)
    assert error.path.startswith(str(damaged_log)) and error.path.endswith(error.segment)
    assert error.segment.endswith("A") and 0 < error.offset < 1 << 20
    assert error.lsn == (int(error.segment[16:], 16) << 20) + error.offset
    assert "expected" in str(error) and "take another copy" in str(error)
    assert error.code == "wal-damaged" and "take another copy" in error.hint
    again = pickle.loads(pickle.dumps(error))
    assert (again.lsn, again.segment, again.offset, again.path) == (error.lsn, error.segment, error.offset, error.path)


def test_errors_have_codes(tmp_path: pathlib.Path) -> None:
    with pytest.raises(walden.WaldenError) as raised:
        walden.records(tmp_path)
    assert raised.value.code == "source-without-wal" and "name a data directory" in raised.value.hint
    assert (walden.WaldenError.code, walden.WaldenError.hint) == (None, None)


def test_what_comes_before_damage_is_delivered(log: str, damaged_log: pathlib.Path) -> None:
    healthy = pyarrow.table(walden.records(log))
    before = []
    with pytest.raises(walden.DamagedError) as raised:
        for batch in walden.records(damaged_log):
            before.append(pyarrow.record_batch(batch))
    rows = pyarrow.Table.from_batches(before)
    assert rows.num_rows == sum(1 for end in healthy["end_lsn"].to_pylist() if end <= raised.value.lsn)
    document = walden.explain(damaged_log)
    assert document["damage"]["segment"] == raised.value.segment
    assert walden.explain(log)["damage"] is None


def sum_of_duckdb(records: walden.Table) -> None:
    duckdb.sql("SELECT sum(bytes) FROM records").fetchall()


@pytest.mark.parametrize("consume", [pyarrow.table, polars.DataFrame, sum_of_duckdb])
def test_consumers_raise_with_the_text(damaged_log: pathlib.Path, consume) -> None:
    table = walden.records(damaged_log)
    assert table.error is None
    with pytest.raises(Exception, match="take another copy"):
        consume(table)
    assert isinstance(table.error, walden.DamagedError)
    assert table.error.segment.endswith("A")


def test_sums_of_a_damaged_log_raise(damaged_log: pathlib.Path) -> None:
    for table in (walden.relations(damaged_log), walden.checkpoints(damaged_log), walden.transactions(damaged_log)):
        with pytest.raises(walden.DamagedError):
            table.to_arrow()


def test_missing_files() -> None:
    with pytest.raises(FileNotFoundError, match="/nowhere"):
        walden.records("/nowhere")
    with pytest.raises(FileNotFoundError, match="/nowhere"):
        walden.explain(["/nowhere"])


def test_missing_names(log: str) -> None:
    with pytest.raises(FileNotFoundError, match="nowhere.json"):
        walden.records(log, names="/nowhere.json")


def test_a_connection_that_fails_has_its_cause_once(log: str, tmp_path: pathlib.Path) -> None:
    with pytest.raises(walden.WaldenError, match="cannot connect") as raised:
        walden.records(log, names=f"host={tmp_path} port=1 dbname=x user=y")
    assert str(raised.value).count("No such file or directory") == 1
    assert str(raised.value).count("error connecting") == 1


def test_texts_name_arguments_and_no_options(log: str) -> None:
    with pytest.raises(ValueError, match="cannot find the table nowhere.*\\(names=.*\\(base=") as raised:
        walden.row_changes(log, "nowhere")
    assert "--" not in str(raised.value)


def test_a_folder_without_wal(tmp_path: pathlib.Path) -> None:
    with pytest.raises(walden.WaldenError, match="no WAL segments"):
        walden.records(tmp_path)


@pytest.mark.parametrize(
    "read",
    [
        walden.records,
        walden.blocks,
        walden.framing,
        walden.transactions,
        walden.checkpoints,
        walden.segments,
        walden.relations,
        walden.explain,
        lambda source: walden.whatif(source, [{}]),
        lambda source: walden.parts(source, 2),
        lambda source: walden.row_changes(source, "orders"),
    ],
)
def test_segments_of_two_clusters_are_refused(log: str, read) -> None:
    of_two_clusters = pathlib.Path(log).parent / "15.18-lz4"
    with pytest.raises(walden.WaldenError, match="segments of two clusters together, with the system identifiers [0-9]+ and [0-9]+"):
        read(of_two_clusters)


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ({"columns": ["byte"]}, ValueError, "has no column byte; it has timeline"),
        ({"columns": ["bytes", "bytes"]}, ValueError, "twice"),
        ({"columns": "bytes"}, TypeError, "list of names"),
        ({"threads": 0}, ValueError, "threads"),
        ({"batch_rows": 0}, ValueError, "batch_rows"),
        ({"timeline": 0}, ValueError, "timeline"),
        ({"timeline": 2**32}, ValueError, "timeline: expected 4294967295 or less"),
        ({"threads": -1}, ValueError, "threads: expected 1 or more, found -1"),
        ({"threads": 1.5}, TypeError, "threads: expected a whole number, found float"),
        ({"batch_rows": "many"}, TypeError, "batch_rows: expected a whole number, found str"),
        ({"columns": 5}, TypeError, "columns: expected names, found int"),
        ({"columns": ["bytes", 5]}, TypeError, "columns: expected names, found int"),
        ({"names": 5}, TypeError, "names: expected connection strings or files, found int"),
        ({"store": "endpoint"}, TypeError, "store: expected a dict of options, found str"),
        ({"identity": 5}, TypeError, "identity: expected a path, found int"),
        ({"start": "yesterday"}, ValueError, "start: .*neither an LSN"),
        ({"start": -1}, ValueError, "start"),
        ({"end": 2**64}, ValueError, "end"),
        ({"end": 1.5}, TypeError, "end: .*float"),
        ({"start": True}, TypeError, "start: .*bool"),
        ({"part": 3}, TypeError, "part"),
        ({"start": "2999-01-01"}, ValueError, "no transaction"),
    ],
)
def test_wrong_arguments(log: str, arguments: dict, error: type, text: str) -> None:
    with pytest.raises(error, match=text):
        walden.records(log, **arguments)


def test_other_wrong_arguments(log: str) -> None:
    with pytest.raises(ValueError, match="table: expected one of records"):
        walden.table("rows", log)
    with pytest.raises(TypeError, match="source: expected paths or URLs, found int"):
        walden.records(3)
    with pytest.raises(TypeError, match="source: expected paths or URLs, found bytes"):
        walden.records([log, b"/archive"])
    with pytest.raises(ValueError, match="count: expected 1 or more, found -1"):
        walden.parts(log, -1)
    with pytest.raises(ValueError, match="xid: expected 18446744073709551615 or less"):
        walden.row_changes(log, "orders", xid=2**64)
    with pytest.raises(ValueError, match="xid: expected a transaction ID from 3 on, found 0"):
        walden.row_changes(log, "orders", xid=0)
    with pytest.raises(ValueError, match="xid: .* in the lower 32 bits, found 2 there in 4294967298"):
        walden.row_changes(log, "orders", xid=2**32 + 2)
    with pytest.raises(TypeError, match="relation: expected a name, found int"):
        walden.row_changes(log, 5)
    with pytest.raises(TypeError, match="base: expected a path, found int"):
        walden.row_changes(log, "orders", base=5)
    with pytest.raises(TypeError, match="operations: expected names of operations, found int"):
        walden.row_changes(log, "orders", operations=5)
    with pytest.raises(ValueError, match="at least one"):
        walden.records([])
    with pytest.raises(ValueError, match="by: .*none of relation"):
        walden.explain(log, by="colour")
    with pytest.raises(TypeError, match="by: expected names of dimensions, found int"):
        walden.explain(log, by=[5])
    with pytest.raises(ValueError, match="top: expected 0 or more, found -1"):
        walden.explain(log, top=-1)
    with pytest.raises(ValueError, match="settings"):
        walden.whatif(log, {"max_wal_sighs": "1GB"})
    with pytest.raises(ValueError, match="settings: cannot set wal_level: expected replica or logical with archive_mode=on"):
        walden.whatif(log, {"wal_level": "minimal", "archive_mode": "on"})
    with pytest.raises(ValueError, match="traced: cannot set max_wal_size"):
        walden.whatif(log, {}, traced={"max_wal_size": "much"})
    with pytest.raises(ValueError, match="memory: expected 0 or more"):
        walden.whatif(log, {}, memory=-1)
    for wrong in (["max_wal_size"], "max_wal_size", 5):
        with pytest.raises(TypeError, match="settings: expected a dict or a list of them, found (str|int)"):
            walden.whatif(log, wrong)
    with pytest.raises(TypeError, match="traced: expected a dict, found str"):
        walden.whatif(log, {}, traced="max_wal_size=1GB")


def test_gaps_are_warned_of(log: str) -> None:
    first, _, last = sorted(pathlib.Path(log).iterdir())
    with pytest.warns(walden.WaldenWarning, match="segment [0-9A-F]{24} is missing") as warned:
        walden.records([first, last])
    assert warned[0].filename == __file__


def interrupted(code: str, log: pathlib.Path) -> tuple[str, float]:
    """Runs code in another Python process and sends SIGINT when it prints its first line.

    Returns the remaining output, and the seconds until the process ended.
    """
    program = textwrap.dedent(code)
    child = subprocess.Popen(
        [sys.executable, "-c", program, str(log)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    assert child.stdout is not None
    assert child.stdout.readline() == "begins\n"
    time.sleep(0.3)
    begun = time.monotonic()
    child.send_signal(signal.SIGINT)
    out, _ = child.communicate(timeout=60)
    return out, time.monotonic() - begun


@pytest.mark.parametrize(
    "call",
    [
        "walden.explain(sources, threads=1)",
        "walden.whatif(sources, [{'max_wal_size': f'{size}MB'} for size in range(100, 6100)], threads=1)",
        "for batch in walden.records(sources, threads=1): pass",
        "walden.relations(sources, threads=1).to_arrow()",
        "pyarrow.table(walden.records(sources, threads=1))",
        "pyarrow.table(walden.relations(sources, threads=1))",
    ],
)
def test_ctrl_c_ends_long_calls(endless_log: pathlib.Path, call: str) -> None:
    code = f"""
        import sys, walden, pyarrow
        sources = sys.argv[1]
        print("begins", flush=True)
        try:
            try:
                {call}
                print("finished")
            except (OSError, pyarrow.ArrowInvalid) as error:
                # pyarrow's own error for what its stream gave, of either kind by its version; the interrupt is raised next.
                for _ in range(100):
                    pass
                print("not interrupted", error)
        except KeyboardInterrupt:
            print("interrupted")
        """
    out, seconds = interrupted(code, endless_log)
    assert out == "interrupted\n"
    assert seconds < 5


def test_other_threads_run_while_the_log_is_read(log: str) -> None:
    turns, is_done = 0, threading.Event()

    def count() -> None:
        nonlocal turns
        while not is_done.is_set():
            turns += 1
            time.sleep(0.001)

    counter = threading.Thread(target=count)
    counter.start()
    begun = time.monotonic()
    try:
        for _ in range(3):
            walden.explain(log, threads=1)
    finally:
        is_done.set()
        counter.join()
    assert turns > (time.monotonic() - begun) * 20
