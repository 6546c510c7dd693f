#!/usr/bin/env python3
"""The bytes of a fleet's logs by cluster, relation and hour, as one Parquet table.

    python fleet.py --days 7 -o fleet.parquet sales=s3://backups/sales crm=/archive/crm ...
    python fleet.py --list clusters.txt -o fleet.parquet          # a line NAME=SOURCE or NAME=SOURCE=NAMES_FILE for each

A part of a log is a unit of work, so that large and small clusters keep all processes busy. A process holds one batch of records
and the sums of its part. The sums of a cluster, bytes outside of records included, are those of ``walden explain``.
"""

from __future__ import annotations

import argparse
import datetime
import multiprocessing
import os
import pathlib
import sys
from collections.abc import Iterator
from typing import NamedTuple

import pyarrow
import pyarrow.compute
import pyarrow.parquet
import walden

KEYS = ["cluster", "hour", "database", "table", "relation", "kind"]
SEGMENTS_OF_A_PART = 32


class Cluster(NamedTuple):
    name: str
    source: str
    names: str | None


class Work(NamedTuple):
    cluster: Cluster
    part: walden.Part


def main() -> int:
    options = arguments()
    start = None
    if options.days is not None:
        start = datetime.datetime.now(datetime.timezone.utc) - datetime.timedelta(days=options.days)
    clusters = [cluster(text) for text in options.clusters]
    if options.list is not None:
        clusters += [cluster(line) for line in options.list.read_text().splitlines() if line.strip()]
    failed = 0
    tables = []
    with multiprocessing.get_context("spawn").Pool(options.processes) as pool:
        divided = pool.imap_unordered(divide, [(one, start) for one in clusters])
        work = []
        for one, parts in divided:
            if isinstance(parts, str):
                print(f"error: {one.name}: {parts}", file=sys.stderr)
                failed += 1
            else:
                work += [Work(one, part) for part in parts]
        for one, result in pool.imap_unordered(sums_of_part, work):
            if isinstance(result, str):
                print(f"error: {one.cluster.name}: {result}", file=sys.stderr)
                failed += 1
            else:
                tables.append(result)
    if tables:
        pyarrow.parquet.write_table(combined(tables), options.output, compression="zstd")
        print(f"{options.output}: {sum(table.num_rows for table in tables)} sums of {len(work)} parts", file=sys.stderr)
    return 3 if failed else 0


def divide(work: tuple[Cluster, datetime.datetime | None]) -> tuple[Cluster, list[walden.Part] | str]:
    one, start = work
    try:
        whole = walden.parts(one.source, 1, start=start)
        segments = sum(part.segments for part in whole)
        return one, walden.parts(one.source, max(1, segments // SEGMENTS_OF_A_PART), start=start)
    except (walden.WaldenError, OSError, ValueError) as error:
        return one, str(error)


def sums_of_part(work: Work) -> tuple[Work, pyarrow.Table | str]:
    try:
        return work, combined(list(sums_of_batches(work)))
    except (walden.WaldenError, OSError) as error:
        return work, str(error)


def sums_of_batches(work: Work) -> Iterator[pyarrow.Table]:
    one, part = work
    records = walden.records(
        one.source,
        part=part,
        names=one.names,
        columns=["time", "database_name", "table_name", "relation", "record_type", "bytes", "fpi_length"],
        threads=1,
    )
    for batch in records.to_batches():
        yield sums(
            one.name,
            batch.num_rows,
            hour=pyarrow.compute.floor_temporal(batch["time"], unit="hour"),
            database=text(batch["database_name"]),
            table=text(batch["table_name"]),
            relation=text(batch["relation"]),
            kind=text(batch["record_type"]),
            bytes=batch["bytes"].cast("int64"),
            fpi_length=batch["fpi_length"].cast("int64"),
            records=pyarrow.repeat(pyarrow.scalar(1, "int64"), batch.num_rows),
        )
    for batch in walden.framing(one.source, part=part, threads=1).to_batches():
        # Page headers and padding: bytes outside of records.
        nothing = pyarrow.nulls(batch.num_rows, "string")
        zero = pyarrow.repeat(pyarrow.scalar(0, "int64"), batch.num_rows)
        yield sums(
            one.name,
            batch.num_rows,
            hour=pyarrow.nulls(batch.num_rows, pyarrow.timestamp("us", "UTC")),
            database=nothing,
            table=nothing,
            relation=nothing,
            kind=text(batch["bucket"]),
            bytes=batch["bytes"].cast("int64"),
            fpi_length=zero,
            records=zero,
        )


def sums(cluster: str, rows: int, **columns: pyarrow.Array) -> pyarrow.Table:
    named = {"cluster": pyarrow.repeat(pyarrow.scalar(cluster), rows), **columns}
    return combined([pyarrow.table(named)])


def combined(tables: list[pyarrow.Table]) -> pyarrow.Table:
    """The tables' rows with equal keys added up."""
    values = ["bytes", "fpi_length", "records"]
    table = pyarrow.concat_tables(tables).group_by(KEYS).aggregate([(value, "sum") for value in values])
    return table.rename_columns([name.removesuffix("_sum") for name in table.column_names]).select(KEYS + values)


def text(column: pyarrow.Array) -> pyarrow.Array:
    return column.cast("string")


def cluster(line: str) -> Cluster:
    name, _, rest = line.strip().partition("=")
    source, _, names = rest.partition("=")
    if not name or not source:
        sys.exit(f"error: expected NAME=SOURCE, found {line!r}")
    return Cluster(name, source, names or None)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("clusters", nargs="*", metavar="NAME=SOURCE[=NAMES_FILE]")
    parser.add_argument("--list", type=pathlib.Path, help="a file with such lines")
    parser.add_argument("--days", type=float, help="how far back to go [default: all that the sources have]")
    parser.add_argument("--processes", type=int, default=os.cpu_count(), help="[default: one per core]")
    parser.add_argument("-o", "--output", type=pathlib.Path, default=pathlib.Path("fleet.parquet"))
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
