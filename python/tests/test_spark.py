"""The data source in a real Spark: sums over partitions, independent of how the WAL is divided."""

import datetime
import os
import pathlib
import shutil
import sys

import pyarrow
import pytest

import walden

# Other programs have the package, too, but not Spark itself.
pytest.importorskip("pyspark.core", reason="needs spark: pip install pyspark")
if shutil.which("java") is None and "JAVA_HOME" not in os.environ:
    pytest.skip("needs spark: no Java", allow_module_level=True)

from pyspark.sql import SparkSession, functions  # noqa: E402

import walden.spark  # noqa: E402


@pytest.fixture(scope="module")
def spark():
    os.environ["PYSPARK_PYTHON"] = sys.executable
    session = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "UTC")
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("ERROR")
    session.dataSource.register(walden.spark.WaldenDataSource)
    yield session
    session.stop()


@pytest.fixture
def filters_are_pushed(spark):
    name = "spark.sql.python.filterPushdown.enabled"
    spark.conf.set(name, "true")
    yield
    spark.conf.unset(name)


def load(spark, table, log, **options):
    return spark.read.format("walden").option("table", table).options(**options).load(log)


def test_the_block_of_the_documentation_runs_with_default_settings(spark, log: str, capsys) -> None:
    page = pathlib.Path(__file__).resolve().parents[1] / "README.md"
    block = page.read_text().split("\n## Spark\n")[1].split("```python\n")[1].split("```")[0]
    assert block.count("s3://backups/main") == 1
    exec(block.replace("s3://backups/main", log), {"spark": spark})
    assert "sum(bytes)" in capsys.readouterr().out


@pytest.mark.parametrize("partitions", [1, 2, 3, 7])
def test_sums_over_partitions_are_those_of_explain(spark, log: str, partitions: int) -> None:
    records = load(spark, "records", log, partitions=partitions)
    framing = load(spark, "framing", log, partitions=partitions)
    assert records.rdd.getNumPartitions() == min(partitions, 3)
    both = records.select("bytes").union(framing.select("bytes"))
    assert both.agg(functions.sum("bytes")).first()[0] == walden.explain(log)["file_bytes"]


@pytest.mark.parametrize(
    "table", ["records", "blocks", "framing", "transactions", "checkpoints", "segments", "relations"]
)
def test_rows_are_those_of_the_module(spark, log: str, table: str) -> None:
    rows = [row.asDict() for row in load(spark, table, log, lsn_text="true").collect()]
    wanted = pyarrow.table(walden.table(table, log, lsn_text=True)).to_pylist()
    for row in wanted:
        for name, value in row.items():
            # Spark returns local times.
            if isinstance(value, datetime.datetime):
                row[name] = value.astimezone().replace(tzinfo=None)
    # Spark may return partitions in any order.
    assert sorted(rows, key=repr) == sorted(wanted, key=repr)


def test_only_wanted_columns(spark, log: str) -> None:
    frame = load(spark, "records", log, columns="table_name, bytes")
    assert frame.columns == ["table_name", "bytes"]
    assert frame.agg(functions.sum("bytes")).first()[0] == sum(
        pyarrow.table(walden.records(log, columns=["bytes"]))["bytes"].to_pylist()
    )


def test_filters_leave_out_segments_and_no_row(spark, filters_are_pushed, log: str) -> None:
    everything = pyarrow.table(walden.records(log, columns=["start_lsn", "time"]))
    starts, times = everything["start_lsn"].to_pylist(), everything["time"].to_pylist()
    records = load(spark, "records", log, partitions=3)
    low = starts[-20]
    narrowed = records.where(functions.col("start_lsn") >= low)
    assert narrowed.count() == sum(lsn >= low for lsn in starts)
    # Spark 4.0 does not push filters to Python data sources.
    assert narrowed.rdd.getNumPartitions() == (1 if hasattr(walden.spark.DataSourceReader, "pushFilters") else 3)
    exact = records.where(functions.col("start_lsn") == starts[7])
    assert exact.count() == 1
    when = [time for time in times if time][-20]
    by_time = records.where(functions.col("time") > functions.lit(when))
    assert by_time.count() == sum(time is not None and time > when for time in times)


def test_filters_are_right_where_spark_does_not_push_them(spark, log: str) -> None:
    starts = pyarrow.table(walden.records(log, columns=["start_lsn"]))["start_lsn"].to_pylist()
    narrowed = load(spark, "records", log, partitions=3).where(functions.col("start_lsn") >= starts[-20])
    assert narrowed.count() == 20
    assert narrowed.rdd.getNumPartitions() == 3


def test_large_numbers_of_rows_are_decimals() -> None:
    largest = 2**64 - 1
    row = pyarrow.struct([("x8", pyarrow.uint64()), ("system_identifier", pyarrow.string())])
    schema = pyarrow.schema([("lsn", pyarrow.uint64()), ("after", row)])
    rows = [
        {"lsn": 7, "after": {"x8": largest, "system_identifier": "of the relation"}},
        {"lsn": 8, "after": {"x8": None, "system_identifier": None}},
        {"lsn": 9, "after": None},
    ]
    batch = pyarrow.RecordBatch.from_pylist(rows, schema=schema)
    found = walden.spark._cast(batch, walden.spark._arrow_schema(schema))
    assert found.to_pylist() == rows
    types = walden.spark._spark_schema(schema)
    assert types["lsn"].dataType.simpleString() == "bigint"
    assert types["after"].dataType.simpleString() == "struct<x8:decimal(20,0),system_identifier:string>"


def test_options_and_errors(spark, log: str) -> None:
    assert load(spark, "records", [log, log][:1]).count() > 0
    with pytest.raises(Exception, match="records has no column nothing; its columns are timeline, "):
        load(spark, "records", log, columns="start_lsn, nothing")
    with pytest.raises(Exception, match="partitions: expected 1 or more, found 0"):
        load(spark, "records", log, partitions=0)
    with pytest.raises(Exception, match="unknown options"):
        load(spark, "records", log, colour="red").count()
    with pytest.raises(Exception, match="expected one of records"):
        load(spark, "rows", log).count()
    with pytest.raises(Exception, match="/nowhere"):
        load(spark, "records", "/nowhere").count()


def test_damage_ends_a_query_with_its_place(spark, damaged_log) -> None:
    with pytest.raises(Exception, match="take another copy"):
        load(spark, "records", str(damaged_log)).count()


@pytest.mark.parametrize("relation", ["customer", "order_item"])
def test_changes_of_rows_are_those_of_the_module(spark, work, relation: str) -> None:
    changes = load(spark, "row_changes", str(work / "wal"), relation=relation, base=str(work / "base"))
    assert changes.rdd.getNumPartitions() == 1
    module = walden.row_changes(work / "wal", relation, base=work / "base").to_arrow()
    names = ("lsn", "operation", "before", "after", "after_unknown_columns")
    found = [row.asDict(recursive=True) for row in changes.select(*names).collect()]
    wanted = [{name: row[name] for name in names} for row in module.to_pylist()]
    for row in wanted:
        for image in (row["before"] or {}, row["after"] or {}):
            for name, value in image.items():
                if isinstance(value, datetime.datetime) and value.tzinfo:
                    image[name] = value.astimezone().replace(tzinfo=None)
    assert found == wanted and len(found) > 20
    deletes = load(
        spark, "row_changes", str(work / "wal"), relation=relation, base=str(work / "base"), operations="delete", columns="operation"
    )
    assert all(row.operation == "delete" for row in deletes.collect())
    with pytest.raises(Exception, match="row_changes needs a table"):
        load(spark, "row_changes", str(work / "wal")).count()
    with pytest.raises(Exception, match="unknown options relation"):
        load(spark, "records", str(work / "wal"), relation=relation).count()
