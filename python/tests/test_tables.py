"""Tables in real pyarrow, polars, DuckDB and pandas, compared with the sums of `walden.explain`."""

import datetime
import pathlib

import duckdb
import numpy
import polars
import pyarrow
import pyarrow.compute as pc
import pytest

import walden

TABLES = ["records", "blocks", "framing", "transactions", "checkpoints", "segments", "relations"]


def total(table: pyarrow.Table, column: str = "bytes") -> int:
    return pc.sum(table[column]).as_py() or 0


@pytest.mark.filterwarnings("ignore::walden.WaldenWarning")
def test_records_and_framing_add_up_to_the_files(any_log: str) -> None:
    document = walden.explain(any_log)
    records = pyarrow.table(walden.records(any_log, columns=["bytes"]))
    framing = pyarrow.table(walden.framing(any_log))
    assert total(records) + total(framing) == document["file_bytes"] > 0
    assert records.num_rows == document["records"]


@pytest.mark.filterwarnings("ignore::walden.WaldenWarning")
@pytest.mark.parametrize("name", ["segments", "relations"])
def test_sums_add_up_to_the_files(any_log: str, name: str) -> None:
    assert total(pyarrow.table(walden.table(name, any_log))) == walden.explain(any_log)["file_bytes"]


@pytest.mark.parametrize("name", TABLES)
def test_each_consumer_gets_the_same_rows(log: str, name: str) -> None:
    table = walden.table(name, log)
    arrow = pyarrow.table(table)
    assert arrow.schema == table.schema
    assert arrow.num_rows > 0
    # Read the same object again, and in every other way.
    assert pyarrow.table(table) == arrow
    assert table.to_arrow() == arrow
    assert polars.DataFrame(table).height == arrow.num_rows
    assert table.to_polars().equals(polars.from_arrow(arrow))
    frame = table.to_pandas()
    assert list(frame.columns) == table.column_names and len(frame) == arrow.num_rows
    log_table = table
    assert duckdb.sql("SELECT count(*) FROM log_table").fetchall() == [(arrow.num_rows,)]


def test_duckdb_sees_a_local_variable(log: str) -> None:
    records = walden.records(log)
    answer = duckdb.sql(
        "SELECT resource_manager, sum(bytes)::UBIGINT AS bytes FROM records GROUP BY 1 ORDER BY 2 DESC"
    ).fetchall()
    of_polars = (
        polars.DataFrame(records)
        .group_by(polars.col("resource_manager").cast(polars.String))
        .agg(polars.col("bytes").cast(polars.UInt64).sum())
    )
    assert dict(answer) == dict(of_polars.iter_rows())
    assert len(answer) > 3


def test_columns_are_in_the_wanted_order(log: str) -> None:
    table = walden.records(log, columns=["bytes", "start_lsn"], lsn_text=True)
    assert table.column_names == ["bytes", "start_lsn", "start_lsn_text"]
    first = pyarrow.table(table).slice(0, 1).to_pylist()[0]
    high, low = first["start_lsn_text"].split("/")
    assert (int(high, 16) << 32) + int(low, 16) == first["start_lsn"]


def test_batches_have_as_many_rows_as_wanted(log: str) -> None:
    table = walden.records(log, batch_rows=500, columns=["start_lsn"])
    batches = list(table)
    assert max(batch.num_rows for batch in batches) == 500
    assert sum(len(batch) for batch in batches) == pyarrow.table(walden.records(log)).num_rows
    assert repr(batches[0]).startswith("walden.Batch of 500 rows")


def test_ranges_by_position_and_by_time(log: str) -> None:
    everything = pyarrow.table(walden.records(log))
    starts = everything["start_lsn"].to_pylist()
    middle, later = starts[len(starts) // 3], starts[len(starts) // 2]
    text = f"{middle >> 32:X}/{middle & 0xFFFFFFFF:08X}"
    wanted = [lsn for lsn in starts if middle <= lsn < later]
    for start in (middle, text):
        assert pyarrow.table(walden.records(log, start=start, end=later))["start_lsn"].to_pylist() == wanted
    times = [time for time in pyarrow.table(walden.transactions(log))["end_time"].to_pylist() if time]
    half = times[len(times) // 2].replace(microsecond=0)
    by_datetime = walden.records(log, start=half, columns=["start_lsn"])
    by_text = walden.records(log, start=half.isoformat(), columns=["start_lsn"])
    rows = pyarrow.table(by_datetime)["start_lsn"].to_pylist()
    assert rows == pyarrow.table(by_text)["start_lsn"].to_pylist()
    assert 0 < len(rows) <= len(starts)
    document = walden.explain(log, start=half, end=later)
    records = total(pyarrow.table(walden.records(log, start=half, end=later)))
    framing = total(pyarrow.table(walden.framing(log, start=half, end=later)))
    assert records + framing == document["file_bytes"]


def test_positions_may_be_integers_of_numpy_and_dates(log: str) -> None:
    everything = pyarrow.table(walden.records(log, columns=["start_lsn", "time"]))
    middle = everything["start_lsn"].to_pylist()[len(everything) // 2]
    expected = pyarrow.table(walden.records(log, start=middle, columns=["start_lsn"]))
    for integer in (numpy.uint64, numpy.int64):
        assert pyarrow.table(walden.records(log, start=integer(middle), columns=["start_lsn"])) == expected
    day = max(time for time in everything["time"].to_pylist() if time).astimezone().date()
    for date, start in ((day, day.isoformat()), (day + datetime.timedelta(days=1), None)):
        found = pyarrow.table(walden.records(log, end=date, columns=["start_lsn"]))
        midnight = datetime.datetime(date.year, date.month, date.day)
        assert found == pyarrow.table(walden.records(log, end=midnight, columns=["start_lsn"]))
        assert (len(found) == len(everything)) == (start is None)
    for wrong in (True, numpy.float64(1.0), datetime.time()):
        with pytest.raises(TypeError, match="start: expected an LSN, a time, a datetime or a date, found"):
            walden.records(log, start=wrong)
    with pytest.raises(ValueError, match="expected an LSN from 0 to"):
        walden.records(log, start=numpy.int64(-1))


def test_several_sources_are_one_log(log: str) -> None:
    files = sorted(pathlib.Path(log).iterdir())
    one_by_one = pyarrow.table(walden.records(files))
    assert one_by_one == pyarrow.table(walden.records(log))


def test_columns_are_described(log: str) -> None:
    table = walden.records(log)
    assert b"alignment" in table.schema.field("bytes").metadata[b"description"]
    assert repr(table).startswith("walden.Table records of 3 segments\n  timeline: uint32")


def test_names_of_catalogs(log: str) -> None:
    relations = pyarrow.table(walden.records(log))["relation"].to_pylist()
    assert any(name and "pg_class" in name for name in relations)


def test_names_from_a_file(log: str, tmp_path: pathlib.Path) -> None:
    rows = pyarrow.table(walden.relations(log)).to_pylist()
    row = next(row for row in rows if row["relfilenumber"] and row["relation"].count("/") == 2)
    names = tmp_path / "names.json"
    names.write_text(NAMES % {**row, "system": pyarrow.table(walden.segments(log))["system_identifier"][0]})
    table = pyarrow.table(walden.relations(log, names=names)).to_pylist()
    named = {(row["relation"], row["table_name"], row["database_name"], row["relation_kind"]) for row in table}
    assert ("orders", "orders", "sales", "table") in named


NAMES = """{
  "walden_names": 1, "server_version": "18", "server_version_num": 180000, "system_identifier": "%(system)s",
  "read_at": null, "lsn": null, "settings": {},
  "databases": [{"oid": %(database)d, "name": "sales", "tablespace": %(tablespace)d}],
  "tablespaces": [{"oid": %(tablespace)d, "name": "pg_default"}],
  "relations": [{"database": %(database)d, "oid": %(relfilenumber)d, "schema": "public", "name": "orders", "kind": "r",
    "persistence": "p", "access_method": "heap", "table": null, "partition_of": null, "scans": null,
    "files": [[%(tablespace)d, %(database)d, %(relfilenumber)d]]}]
}"""


def test_times_have_microseconds(log: str) -> None:
    ends = [time for time in pyarrow.table(walden.transactions(log))["end_time"].to_pylist() if time]
    # Other transactions ended before and after it in the same second.
    middle = max(ends[: 2 * len(ends) // 3])

    def first(start: datetime.datetime | str) -> int:
        return pyarrow.table(walden.records(log, start=start, columns=["start_lsn"]))["start_lsn"][0].as_py()

    exact = first(middle)
    assert first(middle.replace(microsecond=0)) < exact < first(middle + datetime.timedelta(microseconds=1))
    assert first(middle.isoformat()) == exact
    assert first(middle.strftime("%Y-%m-%d %H:%M:%S.%f UTC")) == exact
    assert first(middle.astimezone().replace(tzinfo=None)) == exact
    part = walden.parts(log, 1, start=middle)[0]
    assert part.opened[0] == middle


def test_times_in_a_range_are_those_in_the_whole(log: str) -> None:
    everything = pyarrow.table(walden.records(log, columns=["start_lsn", "time"])).to_pylist()
    start = everything[len(everything) // 2]["start_lsn"]
    found = pyarrow.table(walden.records(log, start=start, columns=["start_lsn", "time"])).to_pylist()
    assert found[0]["time"] is not None
    assert found == [row for row in everything if row["start_lsn"] >= start]


def test_a_naive_datetime_is_local_time(log: str) -> None:
    aware = datetime.datetime(2000, 1, 1, tzinfo=datetime.timezone.utc)
    naive = aware.astimezone().replace(tzinfo=None)
    rows = [pyarrow.table(walden.records(log, start=start)).num_rows for start in (aware, naive)]
    assert rows[0] == rows[1] > 0
