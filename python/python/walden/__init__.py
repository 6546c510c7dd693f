"""PostgreSQL's write-ahead log (WAL) as Arrow tables.

    import polars, walden

    table = walden.records("/archive/wal", names="names.json", columns=["table_name", "bytes"])
    table.to_polars().group_by("table_name").agg(polars.col("bytes").cast(polars.Int64).sum())

`records`, `blocks`, `framing`, `transactions`, `checkpoints`, `segments` and `relations` find the segments of a
source and return a `Table`. A table reads the WAL when a consumer requests its rows: pyarrow, polars, DuckDB,
pandas, or a loop over its batches. `row_changes` returns the changed rows of one table in the same way. `parts`
divides the WAL for several readers. `explain` and `whatif` return the documents of the commands with these names.
"""

from __future__ import annotations

import dataclasses
import datetime
import inspect
import json
import operator
import os
import sys
import types
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, SupportsIndex, Union

from . import _walden
from ._walden import DamagedError, WaldenError, WaldenWarning, __version__

if TYPE_CHECKING:
    import pandas
    import polars
    import pyarrow

__all__ = [
    "DamagedError",
    "Part",
    "Table",
    "TableFunction",
    "WaldenError",
    "WaldenWarning",
    "__version__",
    "blocks",
    "checkpoints",
    "explain",
    "framing",
    "parts",
    "records",
    "relations",
    "row_changes",
    "segments",
    "table",
    "transactions",
    "whatif",
]

Source = Union[str, "os.PathLike[str]", Sequence[Union[str, "os.PathLike[str]"]]]
"""Segments, folders of segments, tar files, archives of ``walden archive`` (a folder or ``s3://BUCKET/PREFIX``); or a
list of them."""

Position = Union[str, SupportsIndex, datetime.date]
"""An LSN as text or number (an ``int`` or numpy's), a time as text (``2026-11-20 22:00``, local unless it has
a zone), a ``datetime``, or a ``date``, which means its first moment in local time."""


@dataclasses.dataclass(frozen=True)
class Part:
    """Consecutive segments for one reader: see `parts`. Can be pickled.

    A part identifies its segments by LSN. A reader opens the same source again and finds them, even if the WAL has
    grown since.
    """

    system_identifier: int
    """System identifier of the cluster."""
    timeline: int
    """Timeline of the segments."""
    start_lsn: int
    """LSN of the first segment's first byte."""
    end_lsn: int
    """LSN after the last segment's last byte."""
    segments: int
    """Number of segments."""
    from_lsn: int | None
    """Start of the rows of all parts, if they are limited to a range."""
    to_lsn: int | None
    """End of the rows of all parts, if they are limited to a range."""
    followed: int | None
    """The requested timeline."""
    opened: tuple[int | datetime.datetime | None, int | datetime.datetime | None]
    """The range with which the source was opened."""


class Table:
    """A table of the WAL, with Arrow's PyCapsule interface.

    `pyarrow.table(t)`, `polars.DataFrame(t)`, `duckdb.sql("SELECT ... FROM t")` and others read it without copies.
    Each use reads the WAL again, so a table can be used several times. `to_arrow`, `to_polars`, `to_pandas` and a
    loop over its batches raise Walden's own exceptions and can be interrupted. Other consumers raise their own
    exceptions with the same text; `error` then has Walden's exception.
    """

    def __init__(self, native: _walden.Table) -> None:
        self._native = native

    @property
    def name(self) -> str:
        """The table's name."""
        return self._native.name

    @property
    def column_names(self) -> list[str]:
        """The names of the columns."""
        return self._native.column_names

    @property
    def error(self) -> Exception | None:
        """The exception that ended the last Arrow stream of this table early, or None."""
        return self._native.error

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        return self._native.__arrow_c_stream__(requested_schema)

    def __arrow_c_schema__(self) -> object:
        return self._native.__arrow_c_schema__()

    def __iter__(self) -> Iterator[_walden.Batch]:
        """Iterates over batches of rows, for `pyarrow.record_batch` and others."""
        return iter(self._native)

    def __repr__(self) -> str:
        return repr(self._native)

    @property
    def schema(self) -> pyarrow.Schema:
        """The schema; each column's metadata has its description. Requires pyarrow."""
        import pyarrow

        return pyarrow.schema(self)

    def to_arrow(self) -> pyarrow.Table:
        """Returns all rows as a pyarrow table."""
        import pyarrow

        return pyarrow.Table.from_batches([pyarrow.record_batch(batch) for batch in self], self.schema)

    def to_batches(self) -> Iterator[pyarrow.RecordBatch]:
        """Iterates over the rows as pyarrow record batches."""
        import pyarrow

        return (pyarrow.record_batch(batch) for batch in self)

    def to_polars(self) -> polars.DataFrame:
        """Returns all rows as a polars data frame."""
        import polars

        frames = [polars.DataFrame(batch) for batch in self]
        return polars.concat(frames) if frames else polars.DataFrame(self)

    def to_pandas(self) -> pandas.DataFrame:
        """Returns all rows as a pandas data frame, converted by pyarrow."""
        frame: pandas.DataFrame = self.to_arrow().to_pandas()
        return frame


def _texts(argument: str, value: Any, what: str) -> list[str]:
    """Returns one text or path, or several of them, as a list. `what` is the expected type, in the plural."""
    if value is None:
        return []
    is_one = isinstance(value, (str, os.PathLike)) or not isinstance(value, Iterable) or isinstance(value, bytes)
    texts: list[Any] = [value] if is_one else list(value)
    for index, one in enumerate(texts):
        text = os.fspath(one) if isinstance(one, (str, os.PathLike)) else one
        if not isinstance(text, str):
            raise TypeError(f"{argument}: expected {what}, found {type(text).__name__}")
        texts[index] = text
    return texts


def _path(argument: str, value: Any) -> str | os.PathLike[str] | None:
    if value is None or isinstance(value, (str, os.PathLike)):
        return value
    raise TypeError(f"{argument}: expected a path, found {type(value).__name__}")


def _number(argument: str, value: Any, least: int, most: int = (1 << 63) - 1) -> int:
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{argument}: expected a whole number, found {type(value).__name__}") from None
    if not least <= number <= most:
        limit = f"{least} or more" if number < least else f"{most} or less"
        raise ValueError(f"{argument}: expected {limit}, found {number}")
    return number


def _optional_number(argument: str, value: Any, least: int, most: int = (1 << 63) - 1) -> int | None:
    return None if value is None else _number(argument, value, least, most)


_MAX_U32 = (1 << 32) - 1
_MAX_U64 = (1 << 64) - 1
"""The largest transaction ID, and the largest timeline."""


def _open(
    source: Source,
    *,
    names: str | os.PathLike[str] | Sequence[str] | None = None,
    start: Position | None = None,
    end: Position | None = None,
    timeline: int | None = None,
    threads: int | None = None,
    store: Mapping[str, str] | None = None,
    identity: str | os.PathLike[str] | None = None,
    before: bool = False,
    behind: bool = False,
) -> _walden.Log:
    if store is not None and not isinstance(store, Mapping):
        raise TypeError(f"store: expected a dict of options, found {type(store).__name__}")
    log = _walden.Log(
        _texts("source", source, "paths or URLs"),
        store=[(str(key), str(value)) for key, value in (store or {}).items()],
        identity=_path("identity", identity if identity is not None else os.environ.get("WALDEN_IDENTITY")),
        timeline=_optional_number("timeline", timeline, 1, _MAX_U32),
        start=start,
        end=end,
        names=_texts("names", names, "connection strings or files"),
        threads=_optional_number("threads", threads, 1),
        before=before,
        behind=behind,
    )
    for text in log.warnings:
        warnings.warn(text, WaldenWarning, stacklevel=_callers())
    return log


def _callers() -> int:
    """Returns the number of this module's stack frames between a warning and the caller of the module."""
    level = 1
    frame: types.FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_globals.get("__name__") == __name__:
        level, frame = level + 1, frame.f_back
    return level


def _columns(names: Sequence[str] | None) -> list[str] | None:
    if isinstance(names, str):
        raise TypeError("columns: expected a list of names, found str")
    return None if names is None else _texts("columns", names, "names")


def _table(
    name: str,
    source: Source,
    *,
    columns: Sequence[str] | None = None,
    lsn_text: bool = False,
    batch_rows: int | None = None,
    part: Part | None = None,
    start: Position | None = None,
    end: Position | None = None,
    timeline: int | None = None,
    **opening: Any,
) -> Table:
    wanted = _columns(columns)
    place = None
    if part is not None:
        if not isinstance(part, Part):
            raise TypeError(f"part: expected one that walden.parts made, found {type(part).__name__}")
        if start is not None or end is not None or timeline is not None:
            raise ValueError("part: has its own range; expected start, end and timeline in the call of walden.parts")
        timeline, (start, end) = part.followed, part.opened
        where = (part.system_identifier, part.timeline, part.start_lsn, part.end_lsn, part.segments)
        place = (where, part.from_lsn, part.to_lsn)
    log = _open(source, start=start, end=end, timeline=timeline, **opening)
    native = _walden.table(
        log,
        name,
        columns=wanted,
        lsn_text=lsn_text,
        batch_rows=_optional_number("batch_rows", batch_rows, 1),
        part=place,
    )
    return Table(native)


_DOC = """The table `{name}`: {row}.

    Finds the segments of `source`. The WAL is read when a consumer requests rows.

    source: segments, folders of segments, tar files, archives of ``walden archive``, ``s3://BUCKET/PREFIX``; or a
        list of them.
    names: source of the names of relations: a connection string, or a file of ``walden explain --save-names``; or
        a list of them.
    start, end: only records that start at or after `start` and before `end`; an LSN (text or number) or a time
        (text, ``datetime`` or ``date``).
    columns: the columns to return, in this order; others are not computed.
    timeline: the timeline on which the WAL ends.
    lsn_text: whether each LSN has a second column ``NAME_text`` in the form 16/B374D848.
    threads: number of decoding threads; by default, one per core.
    batch_rows: maximum number of rows per batch.
    part: a part returned by `parts`; only its segments are read.
    store: options of the object store, such as ``endpoint`` and ``region``; others come from the environment
        (``AWS_...``).
    identity: the file with a private key, for encrypted archives.

    Raises FileNotFoundError, ValueError and TypeError for wrong arguments, and WaldenError if the source cannot be
    read. At damaged WAL, reading raises DamagedError, after it has returned all rows before the damage.
    """

_ROWS = {
    "records": "a row per record",
    "blocks": "a row per reference to a block in a record",
    "framing": "a row per segment and kind of bytes outside of records",
    "transactions": "a row per transaction",
    "checkpoints": "a row per checkpoint",
    "segments": "a row per segment",
    "relations": "a row per fork of a relation and kind of record, the sums of `explain`",
}


def table(
    name: str,
    source: Source,
    *,
    names: str | os.PathLike[str] | Sequence[str] | None = None,
    start: Position | None = None,
    end: Position | None = None,
    columns: Sequence[str] | None = None,
    timeline: int | None = None,
    lsn_text: bool = False,
    threads: int | None = None,
    batch_rows: int | None = None,
    part: Part | None = None,
    store: Mapping[str, str] | None = None,
    identity: str | os.PathLike[str] | None = None,
) -> Table:
    """Returns the table with this name, like `records` and the other functions."""
    return _table(
        name,
        source,
        names=names,
        start=start,
        end=end,
        columns=columns,
        timeline=timeline,
        lsn_text=lsn_text,
        threads=threads,
        batch_rows=batch_rows,
        part=part,
        store=store,
        identity=identity,
    )


class TableFunction(Protocol):
    """The signature of `records` and the functions of the other tables."""

    def __call__(
        self,
        source: Source,
        *,
        names: str | os.PathLike[str] | Sequence[str] | None = None,
        start: Position | None = None,
        end: Position | None = None,
        columns: Sequence[str] | None = None,
        timeline: int | None = None,
        lsn_text: bool = False,
        threads: int | None = None,
        batch_rows: int | None = None,
        part: Part | None = None,
        store: Mapping[str, str] | None = None,
        identity: str | os.PathLike[str] | None = None,
    ) -> Table: ...


def _function(name: str) -> TableFunction:
    def read(source: Source, **options: Any) -> Table:
        return table(name, source, **options)

    signature = inspect.signature(table)
    parameters = [one for one in signature.parameters.values() if one.name != "name"]
    read.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    read.__name__ = read.__qualname__ = name
    read.__doc__ = _DOC.format(name=name, row=_ROWS[name])
    return read


records = _function("records")
blocks = _function("blocks")
framing = _function("framing")
transactions = _function("transactions")
checkpoints = _function("checkpoints")
segments = _function("segments")
relations = _function("relations")


def row_changes(
    source: Source,
    relation: str,
    *,
    base: str | os.PathLike[str] | None = None,
    names: str | os.PathLike[str] | Sequence[str] | None = None,
    start: Position | None = None,
    end: Position | None = None,
    aborted: bool = False,
    xid: int | None = None,
    operations: str | Sequence[str] = (),
    columns: Sequence[str] | None = None,
    timeline: int | None = None,
    lsn_text: bool = False,
    threads: int | None = None,
    batch_rows: int | None = None,
    memory: int = 1 << 30,
    store: Mapping[str, str] | None = None,
    identity: str | os.PathLike[str] | None = None,
) -> Table:
    """Returns the changed rows of a table: a row per change, with the columns before and after in structs.

    Reads the WAL once for the table's columns, and again each time rows are requested.

    relation: the table: ``NAME``, ``SCHEMA.NAME`` or ``DATABASE.SCHEMA.NAME``; a partitioned table includes its
        partitions.
    base: a base backup, or a copy of a stopped data directory, from which the WAL continues. It has the columns,
        and the rows that are not in the WAL.
    names: source of the columns if there is no base: a connection string, or a file of
        ``walden explain --save-names``.
    aborted: whether to include changes that were rolled back: see the column ``state``.
    xid: only changes of this transaction or subtransaction; also as ``pg_current_xact_id()`` returns it, with an epoch.
    operations: only some of ``insert``, ``update``, ``delete``; events (``truncate``, ``rewrite``, ``drop``) are
        always included.
    memory: bytes of memory for pages; further pages go to a temporary file.

    The other arguments are those of `records`. Unknown parts of a row are NULL. The columns ``before_unknown`` and
    ``after_unknown`` and the maps ``before_unknown_columns`` and ``after_unknown_columns`` have the reasons.
    """
    if not isinstance(relation, str):
        raise TypeError(f"relation: expected a name, found {type(relation).__name__}")
    wanted = _columns(columns)
    log = _open(
        source,
        names=names,
        start=start,
        end=end,
        timeline=timeline,
        threads=threads,
        store=store,
        identity=identity,
        before=True,
    )
    native, notes = _walden.row_changes(
        log,
        relation,
        base=_path("base", base),
        aborted=aborted,
        xid=_optional_number("xid", xid, 0, _MAX_U64),
        operations=_texts("operations", operations, "names of operations"),
        columns=wanted,
        lsn_text=lsn_text,
        batch_rows=_optional_number("batch_rows", batch_rows, 1),
        memory=_number("memory", memory, 0),
    )
    for text in notes:
        warnings.warn(text, WaldenWarning, stacklevel=_callers())
    return Table(native)


def parts(
    source: Source,
    count: int,
    *,
    start: Position | None = None,
    end: Position | None = None,
    timeline: int | None = None,
    threads: int | None = None,
    store: Mapping[str, str] | None = None,
    identity: str | os.PathLike[str] | None = None,
) -> list[Part]:
    """Divides the WAL into about `count` parts, for readers in other threads, processes or machines.

    ``walden.records(source, part=part)`` for all parts returns the rows of ``walden.records(source)``, each once and
    in the same order. There are never more parts than segments. The tables records, blocks, framing and segments can
    be read in parts.
    """
    opening = {"threads": threads, "store": store, "identity": identity}
    return _parts(source, count, start=start, end=end, timeline=timeline, opening=opening)


def _parts(
    source: Source,
    count: int,
    *,
    start: Position | None,
    end: Position | None,
    timeline: int | None,
    opening: Mapping[str, Any],
    each: int | None = None,
    wanted: tuple[int | None, int | None, int | None, int | None] | None = None,
) -> list[Part]:
    log = _open(source, start=start, end=end, timeline=timeline, **opening)
    places, from_lsn, to_lsn = _walden.parts(log, _number("count", count, 1), each=each, wanted=wanted)
    opened = (_position(log.start), _position(log.end))
    return [Part(*place, from_lsn, to_lsn, timeline, opened) for place in places]


def _position(bound: tuple[bool, int] | None) -> int | datetime.datetime | None:
    if bound is None:
        return None
    is_time, number = bound
    if not is_time:
        return number
    # Not via a float of seconds, which cannot represent all microseconds.
    return datetime.datetime(1970, 1, 1, tzinfo=datetime.timezone.utc) + datetime.timedelta(microseconds=number)


def explain(
    source: Source,
    *,
    by: str | Sequence[str] = (),
    names: str | os.PathLike[str] | Sequence[str] | None = None,
    start: Position | None = None,
    end: Position | None = None,
    timeline: int | None = None,
    every: int | None = None,
    top: int | None = None,
    threads: int | None = None,
    store: Mapping[str, str] | None = None,
    identity: str | os.PathLike[str] | None = None,
) -> dict[str, Any]:
    """Returns the origin of the WAL's bytes: the document of ``walden explain --format json``.

    by: views, each the name of a dimension, or several with commas: ``"relation,record"``, ``"time"``,
        ``"checkpoint"``.
    every: length in seconds of the intervals of a view by time.
    top: maximum number of rows per list; all by default.

    Damage does not raise an exception: ``document["damage"]`` locates it, and the sums end before it.
    """
    views = _texts("by", by, "names of dimensions")
    # The record of a checkpoint after the range has the start of a cycle within it.
    whole = any("checkpoint" in view.split(",") for view in views)
    log = _open(
        source,
        names=names,
        start=start,
        end=end,
        timeline=timeline,
        threads=threads,
        store=store,
        identity=identity,
        before=whole,
        behind=whole,
    )
    top, every = _optional_number("top", top, 0), _optional_number("every", every, 1)
    document: dict[str, Any] = json.loads(_walden.explain(log, by=views, top=top, every=every))
    return document


def whatif(
    source: Source,
    settings: Mapping[str, object] | Sequence[Mapping[str, object]],
    *,
    traced: Mapping[str, object] | None = None,
    names: str | os.PathLike[str] | Sequence[str] | None = None,
    start: Position | None = None,
    end: Position | None = None,
    timeline: int | None = None,
    all_images: bool = False,
    memory: int = 1 << 30,
    threads: int | None = None,
    store: Mapping[str, str] | None = None,
    identity: str | os.PathLike[str] | None = None,
) -> dict[str, Any]:
    """Predicts the WAL of the same work under other settings: the result of ``walden whatif --format json``.

    settings: settings as in postgresql.conf (``{"max_wal_size": "8GB"}``), or a list of such sets, each of which is
        predicted.
    traced: settings under which the WAL was written, if the WAL does not contain them.
    all_images: whether to compress every full-page image instead of a sample per table.
    memory: bytes of memory for pages; further pages go to a temporary file.
    """
    if isinstance(settings, str) or not isinstance(settings, Iterable):
        raise TypeError(f"settings: expected a dict or a list of them, found {type(settings).__name__}")
    sets = [settings] if isinstance(settings, Mapping) else list(settings)
    changes = [_settings("settings", one) for one in sets]
    written_under = _settings("traced", {} if traced is None else traced)
    log = _open(
        source,
        names=names,
        start=start,
        end=end,
        timeline=timeline,
        threads=threads,
        store=store,
        identity=identity,
        before=True,
    )
    text = _walden.whatif(
        log,
        changes=changes,
        traced=written_under,
        all_images=all_images,
        memory=_number("memory", memory, 0),
    )
    document: dict[str, Any] = json.loads(text)
    return document


def _settings(argument: str, settings: Mapping[str, object]) -> list[tuple[str, str]]:
    if not isinstance(settings, Mapping):
        one_or_more = "a dict or a list of them" if argument == "settings" else "a dict"
        raise TypeError(f"{argument}: expected {one_or_more}, found {type(settings).__name__}")
    for name in settings:
        if not isinstance(name, str):
            raise TypeError(f"{argument}: expected names of settings, found {type(name).__name__}")
    text = {True: "on", False: "off"}
    return [(name, text[value] if isinstance(value, bool) else str(value)) for name, value in settings.items()]
