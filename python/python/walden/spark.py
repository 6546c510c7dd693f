"""The WAL as a data source of Spark 4, and of other programs that support its Python data sources.

    import walden.spark

    spark.dataSource.register(walden.spark.WaldenDataSource)
    records = spark.read.format("walden").option("table", "records").load("s3://backups/main")

A partition is a run of segments, and each row is in exactly one partition. The tables transactions, checkpoints and
relations are sums over the WAL and have one partition. row_changes has one partition, too, because it is replayed in
order.

Options:

- ``path``: the source; several with ``paths``, a JSON list, which ``load([...])`` sets.
- ``table``: ``records`` (the default), ``blocks``, ``framing``, ``transactions``, ``checkpoints``, ``segments``, ``relations``;
  or ``row_changes``, see below.
- ``columns``: the columns to return, with commas; others are not computed. Spark does not pass the columns that a query
  needs to a Python data source.
- ``names``, ``start``, ``end``, ``timeline``, ``lsn_text``, ``identity``: as in `walden.records`.
- ``partitions``: the approximate number of partitions. By default, one per 16 segments, but at least one per core of
  the driver.
- ``threads``: threads per partition, by default 1, because each of Spark's tasks has one core.
- ``store.NAME``: an option of the object store, such as ``store.endpoint``; others come from the workers' environment.

Options of the table ``row_changes``, as in `walden.row_changes`: ``relation`` (required), ``base``, ``aborted``,
``xid``, ``operations`` (with commas), ``memory``. It has the columns of the relation, for which the driver reads the
WAL once.

Types: Spark has no unsigned numbers and no dictionaries. 8 and 16 bits become ``int``, 32 and 64 bits ``bigint``, texts
of a dictionary plain ``string``. No server writes 2**63 bytes of WAL, so LSNs and sums of bytes fit. From 2038 on,
system identifiers exceed 2**63 because of the time in their upper bits, so ``system_identifier`` is a
``decimal(20,0)``. The types ``xid8`` and ``pg_lsn`` in a relation's rows may have any value, so they are, too. Times
without a date become ``string``.

With ``spark.sql.python.filterPushdown.enabled`` of Spark 4.1, comparisons of ``start_lsn`` and ``time`` of records and
blocks with constants exclude segments without such records. Spark evaluates these comparisons as well, so the rows are
the same without that setting.
"""

from __future__ import annotations

import dataclasses
import datetime
import json
import os
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

try:
    from pyspark.sql.datasource import EqualTo, Filter, GreaterThan, GreaterThanOrEqual, LessThan, LessThanOrEqual
except ImportError:  # Spark 4.0, which pushes no filters.
    Filter = object  # type: ignore[assignment,misc]

if TYPE_CHECKING:
    import pyarrow

    from . import Part, Table

__all__ = ["WaldenDataSource"]

SEGMENTS_OF_A_PARTITION = 16


class WaldenDataSource(DataSource):
    """The format ``walden``: see the module's documentation."""

    @classmethod
    def name(cls) -> str:
        return "walden"

    def schema(self) -> StructType:
        return _spark_schema(_schema(_Options.of(self.options)))

    def reader(self, schema: StructType) -> DataSourceReader:
        return _Reader(_Options.of(self.options))


@dataclasses.dataclass(frozen=True)
class _Options:
    """The options of a load; Spark's own options have names in lower case."""

    table: str
    sources: list[str]
    columns: list[str] | None
    partitions: int | None
    lsn_text: bool
    opening: dict[str, Any]
    start: str | int | None
    end: str | int | None
    timeline: int | None
    rows: dict[str, Any]
    """The options of `walden.row_changes`."""

    @staticmethod
    def of(options: Any) -> _Options:
        known = {key.lower(): value for key, value in dict(options).items()}
        store = {key[6:]: known.pop(key) for key in list(known) if key.startswith("store.")}
        sources = json.loads(known.pop("paths", "[]"))
        path = known.pop("path", None)
        if path is not None:
            sources.append(path)
        if not sources:
            raise ValueError("walden: expected a path, as in load('/archive/wal')")
        columns = known.pop("columns", None)
        partitions, timeline = known.pop("partitions", None), known.pop("timeline", None)
        if partitions is not None and int(partitions) < 1:
            raise ValueError(f"walden: partitions: expected 1 or more, found {partitions}")
        table = known.pop("table", "records")
        parsed = _Options(
            table=table,
            sources=sources,
            columns=None if columns is None else [name.strip() for name in columns.split(",")],
            partitions=None if partitions is None else int(partitions),
            lsn_text=known.pop("lsn_text", "false").lower() == "true",
            start=known.pop("start", None),
            end=known.pop("end", None),
            timeline=None if timeline is None else int(timeline),
            opening={
                "names": known.pop("names", None),
                "identity": known.pop("identity", None),
                "threads": int(known.pop("threads", "1")),
                "store": store,
            },
            rows=_Options._of_rows(known) if table == "row_changes" else {},
        )
        if known:
            raise ValueError(f"walden: unknown options {', '.join(sorted(known))}")
        return parsed

    @staticmethod
    def _of_rows(known: dict[str, str]) -> dict[str, Any]:
        if "relation" not in known:
            raise ValueError('walden: row_changes needs a table, as in option("relation", "public.orders")')
        rows: dict[str, Any] = {
            "relation": known.pop("relation"),
            "base": known.pop("base", None),
            "aborted": known.pop("aborted", "false").lower() == "true",
            "operations": [name.strip() for name in known.pop("operations", "").split(",") if name.strip()],
        }
        for name in ("xid", "memory"):
            if name in known:
                rows[name] = int(known.pop(name))
        return rows

    def range(self) -> dict[str, Any]:
        return {"start": self.start, "end": self.end, "timeline": self.timeline}

    def open(self, part: Part | None) -> Table:
        """Opens the table, or a part of it."""
        # The worker that reads imports the module.
        import walden

        wanted = {"columns": self.columns, "lsn_text": self.lsn_text, **self.opening}
        if self.rows:
            return walden.row_changes(self.sources, **self.rows, **self.range(), **wanted)
        range_ = self.range() if part is None else {"part": part}
        return walden.table(self.table, self.sources, **range_, **wanted)


@dataclasses.dataclass(frozen=True)
class _Wanted:
    """The range that filters select: LSNs, and microseconds since 1970-01-01 UTC; bounds are inclusive."""

    low: int | None = None
    high: int | None = None
    first: int | None = None
    last: int | None = None

    def narrowed(self, one: Filter) -> _Wanted:
        """Returns the range narrowed by one more filter; unchanged if the filter cannot be used."""
        column, value = getattr(one, "attribute", None), getattr(one, "value", None)
        if isinstance(one, EqualTo):
            lower = upper = True
        else:
            lower, upper = isinstance(one, (GreaterThan, GreaterThanOrEqual)), isinstance(one, (LessThan, LessThanOrEqual))
        if column == ("start_lsn",) and isinstance(value, int):
            names, number = ("low", "high"), min(max(value, 0), 2**64 - 2)
        elif column == ("time",) and isinstance(value, datetime.datetime):
            names, number = ("first", "last"), _microseconds(value)
        else:
            return self
        changed = self
        for name, is_bound, stricter in ((names[0], lower, max), (names[1], upper, min)):
            if is_bound:
                known = getattr(changed, name)
                changed = dataclasses.replace(changed, **{name: number if known is None else stricter(known, number)})
        return changed


def _microseconds(time: datetime.datetime) -> int:
    aware = time if time.tzinfo is not None else time.astimezone()
    return (aware - datetime.datetime(1970, 1, 1, tzinfo=datetime.timezone.utc)) // datetime.timedelta(microseconds=1)


class _Partition(InputPartition):
    """The input of one task: a part, or the whole of a table that cannot be divided."""

    def __init__(self, part: Part | None) -> None:
        super().__init__(part)


class _PushFilters:
    """The method ``pushFilters`` of a reader.

    Spark rejects a reader that has a method of this name while ``spark.sql.python.filterPushdown.enabled`` is off,
    because filters that only the reader evaluates would be ignored (pyspark/sql/worker/plan_data_source_read.py, which
    compares ``__func__``). This reader leaves all filters to Spark as well, and cannot read the setting. So this object
    imitates the method of Spark's own class.
    """

    __func__ = staticmethod(getattr(DataSourceReader, "pushFilters", lambda self, filters: filters))

    def __init__(self, reader: _Reader) -> None:
        self.reader = reader

    def __call__(self, filters: list[Filter]) -> Iterable[Filter]:
        """Excludes segments by ``start_lsn`` and ``time``. Spark evaluates all filters as well."""
        reader = self.reader
        if reader.options.table in ("records", "blocks"):
            for one in filters:
                reader.wanted = reader.wanted.narrowed(one)
        return filters


class _Reader(DataSourceReader):
    def __init__(self, options: _Options) -> None:
        self.options = options
        self.wanted = _Wanted()

    # Spark's own class has a method with this name since 4.1.
    pushFilters: Any = property(_PushFilters)

    def partitions(self) -> list[InputPartition]:
        import walden
        from walden import _walden

        options = self.options
        if options.rows or not _walden.can_be_divided(options.table):
            return [_Partition(None)]
        opening = {key: value for key, value in options.opening.items() if key != "names"}
        parts = walden._parts(
            options.sources,
            options.partitions or os.cpu_count() or 1,
            each=None if options.partitions else SEGMENTS_OF_A_PARTITION,
            wanted=dataclasses.astuple(self.wanted),
            opening=opening,
            **options.range(),
        )
        return [_Partition(part) for part in parts]

    def read(self, partition: InputPartition) -> Iterator[pyarrow.RecordBatch]:
        table = self.options.open(partition.value)
        schema = _arrow_schema(table.schema)
        for batch in table.to_batches():
            yield _cast(batch, schema)


def _schema(options: _Options) -> pyarrow.Schema:
    """Returns the table's schema. Only for row_changes does this read the source."""
    import pyarrow

    from walden import _walden

    if options.rows:
        return options.open(None).schema
    schema = pyarrow.schema(_walden.schema(options.table))
    if options.columns is not None:
        unknown = [name for name in options.columns if name not in schema.names]
        if unknown:
            raise ValueError(
                f"walden: {options.table} has no column {', '.join(unknown)}; its columns are {', '.join(schema.names)}"
            )
        schema = pyarrow.schema([schema.field(name) for name in options.columns])
    if options.lsn_text:
        # Columns with LSNs are identified by their names.
        positions = [field for field in schema if field.name == "lsn" or field.name.endswith("_lsn")]
        for field in positions:
            schema = schema.append(pyarrow.field(f"{field.name}_text", pyarrow.string(), field.nullable))
    return schema


def _arrow_schema(schema: pyarrow.Schema) -> pyarrow.Schema:
    """Returns the same columns with types that Spark supports."""
    import pyarrow

    signed = {
        pyarrow.uint8(): pyarrow.int32(),
        pyarrow.uint16(): pyarrow.int32(),
        pyarrow.uint32(): pyarrow.int64(),
        pyarrow.uint64(): pyarrow.int64(),
    }

    def type_of(field: pyarrow.Field, is_of_row: bool = False) -> pyarrow.DataType:
        # In the relation's rows, any number may occur, and column names have no meaning.
        if pyarrow.types.is_uint64(field.type) and (is_of_row or field.name == "system_identifier"):
            return pyarrow.decimal128(20, 0)
        if pyarrow.types.is_dictionary(field.type):
            return field.type.value_type
        if pyarrow.types.is_struct(field.type):
            return pyarrow.struct([pyarrow.field(one.name, type_of(one, True), one.nullable) for one in field.type])
        if pyarrow.types.is_time(field.type):
            return pyarrow.string()
        return signed.get(field.type, field.type)

    return pyarrow.schema([pyarrow.field(field.name, type_of(field), field.nullable) for field in schema])


def _cast(batch: pyarrow.RecordBatch, schema: pyarrow.Schema) -> pyarrow.RecordBatch:
    import pyarrow

    columns = [column.cast(field.type) for column, field in zip(batch.columns, schema)]
    return pyarrow.RecordBatch.from_arrays(columns, schema=schema)


def _spark_schema(schema: pyarrow.Schema) -> StructType:
    import pyarrow

    types: dict[pyarrow.DataType, DataType] = {
        pyarrow.bool_(): BooleanType(),
        pyarrow.int16(): ShortType(),
        pyarrow.int32(): IntegerType(),
        pyarrow.int64(): LongType(),
        pyarrow.float32(): FloatType(),
        pyarrow.float64(): DoubleType(),
        pyarrow.string(): StringType(),
        pyarrow.binary(): BinaryType(),
        pyarrow.date32(): DateType(),
        pyarrow.timestamp("us", "UTC"): TimestampType(),
        pyarrow.timestamp("us"): TimestampNTZType(),
    }

    def type_of(arrow: pyarrow.DataType) -> DataType:
        if pyarrow.types.is_decimal128(arrow):
            return DecimalType(arrow.precision, arrow.scale)
        if pyarrow.types.is_struct(arrow):
            return StructType([StructField(one.name, type_of(one.type), one.nullable) for one in arrow])
        if pyarrow.types.is_map(arrow):
            return MapType(type_of(arrow.key_type), type_of(arrow.item_type))
        return types[arrow]

    described = {field.name: (field.metadata or {}).get(b"description", b"").decode() for field in schema}
    fields = [
        StructField(field.name, type_of(field.type), field.nullable, {"comment": described[field.name]})
        for field in _arrow_schema(schema)
    ]
    return StructType(fields)
