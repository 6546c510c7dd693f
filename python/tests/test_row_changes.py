"""Changed rows, compared with the output of `walden rows`, which other tests compare with real servers."""

import datetime
import decimal
import json
import pathlib
import subprocess

import duckdb
import polars
import pyarrow
import pytest

import walden

RELATION = "public.customer"


def printed(program: str, work: pathlib.Path, relation: str) -> list[dict]:
    command = [program, "rows", work / "wal", "--base", work / "base", "--relation", relation, "--format", "json"]
    run = subprocess.run(command, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    return [json.loads(line) for line in run.stdout.splitlines()]


def same(value: object, wanted: object) -> bool:
    """Returns whether a value equals the text that PostgreSQL printed."""
    if isinstance(value, datetime.datetime):
        return value == datetime.datetime.fromisoformat(wanted)
    if isinstance(value, bytes):
        return "\\x" + value.hex() == wanted
    return value == wanted or str(value) == wanted


# Together they have numbers, decimals, texts, JSON, arrays, UUIDs, times, an enum, values in TOAST tables, a
# column that was added and partitions.
@pytest.mark.parametrize("relation", [RELATION, "product", "orders", "document"])
def test_rows_are_those_of_the_program(program: str, work: pathlib.Path, relation: str) -> None:
    table = walden.row_changes(work / "wal", relation, base=work / "base")
    rows, lines = table.to_arrow().to_pylist(), printed(program, work, relation)
    assert len(rows) == len(lines) > 20
    seen = set()
    for row, line in zip(rows, lines):
        for name in ("operation", "state", "xid", "top_xid", "relation", "old_tid", "new_tid"):
            assert row[name] == line.get(name)
        seen.add(row["operation"])
        for image in ("before", "after"):
            if image not in line:
                assert row[image] is None
                continue
            for name, value in row[image].items():
                wanted = line[image].get(name)
                assert (value is None) == (wanted is None) and (value is None or same(value, wanted)), (name, value, wanted)
    assert relation == "document" or "update" in seen


def test_each_consumer_reads_the_structs(work: pathlib.Path) -> None:
    changes = walden.row_changes(work / "wal", RELATION, base=work / "base")
    arrow = pyarrow.table(changes)
    assert changes.name == "row_changes" and arrow.schema == changes.schema
    wanted = sum(row["after"]["id"] for row in arrow.to_pylist() if row["after"])
    assert duckdb.sql("SELECT sum(after.id)::BIGINT FROM changes").fetchall() == [(wanted,)]
    assert polars.DataFrame(changes)["after"].struct.field("id").sum() == wanted
    assert len(changes.to_pandas()) == arrow.num_rows
    before = walden.row_changes(work / "wal", RELATION, base=work / "base", columns=["before"], operations="update").to_arrow()
    balance = before["before"].to_pylist()[0]["balance"]
    assert before.column_names == ["before"] and isinstance(balance, decimal.Decimal)


def test_arguments_narrow_what_is_read(work: pathlib.Path) -> None:
    def rows(**options: object) -> list[dict]:
        columns = ["lsn", "xid", "top_xid", "operation"]
        return walden.row_changes(work / "wal", RELATION, base=work / "base", columns=columns, **options).to_arrow().to_pylist()

    everything = rows()
    middle = everything[len(everything) // 2]
    assert rows(start=middle["lsn"]) == [row for row in everything if row["lsn"] >= middle["lsn"]]
    # A record after the end may contain the parent of a subtransaction.
    cut = [{name: row[name] for name in row if name != "top_xid"} for row in rows(end=middle["lsn"])]
    assert cut == [{name: row[name] for name in row if name != "top_xid"} for row in everything if row["lsn"] < middle["lsn"]]
    of_transaction = [row for row in everything if middle["xid"] in (row["xid"], row["top_xid"])]
    assert rows(xid=middle["xid"]) == of_transaction
    # With an epoch, as pg_current_xact_id() returns it.
    assert rows(xid=middle["xid"] + 5 * 2**32) == of_transaction
    assert rows(operations="update") == [row for row in everything if row["operation"] == "update"]
    wanted = [row for row in of_transaction if row["operation"] == "update"]
    assert rows(operations=["update", "delete"], xid=middle["xid"]) == wanted
    assert rows(batch_rows=7) == everything
    texts = walden.row_changes(work / "wal", RELATION, base=work / "base", columns=["lsn", "lsn_text"], lsn_text=True)
    first = next(texts.to_batches()).to_pylist()[0]
    high, low = first["lsn_text"].split("/")
    assert (int(high, 16) << 32) + int(low, 16) == first["lsn"]


@pytest.mark.parametrize(
    ("relation", "options", "exception", "problem"),
    [
        ("nowhere", {}, ValueError, "relation: cannot find the table nowhere"),
        (RELATION, {"operations": "merge"}, ValueError, "operations: expected some of insert, update, delete, found merge"),
        (RELATION, {"columns": ["price"]}, ValueError, "columns: row_changes has no column price; it has lsn"),
        (RELATION, {"columns": "lsn"}, TypeError, "columns: expected a list"),
        (RELATION, {"batch_rows": 0}, ValueError, "batch_rows"),
        (RELATION, {"base": "/nowhere"}, (OSError, ValueError), "/nowhere"),
    ],
)
def test_wrong_arguments(work: pathlib.Path, relation: str, options: dict, exception: type, problem: str) -> None:
    with pytest.raises(exception, match=problem):
        walden.row_changes(work / "wal", relation, **{"base": work / "base", **options})


def test_damage_ends_the_rows_with_its_place(work: pathlib.Path, tmp_path: pathlib.Path) -> None:
    segments = sorted(path for path in (work / "wal").iterdir() if len(path.name) == 24)
    wal = tmp_path / "wal"
    wal.mkdir()
    for path in segments:
        content = bytearray(path.read_bytes())
        if path == segments[-1]:
            content[8 * 8192 + 4000] ^= 0x55
        (wal / path.name).write_bytes(content)
    # Transactions that were rolled back or not finished at the damage are unknown, so there may be fewer rows
    # than with undamaged WAL.
    changes = walden.row_changes(wal, RELATION, base=work / "base")
    with pytest.raises(walden.DamagedError, match="take another copy"):
        for _ in changes:
            pass
