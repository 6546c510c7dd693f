# The native half of the package. Programs use the functions of `walden` instead.

from collections.abc import Iterator, Sequence
from os import PathLike

__version__: str

class WaldenError(Exception):
    code: str | None
    hint: str | None

class DamagedError(WaldenError):
    lsn: int
    segment: str
    offset: int
    path: str

class WaldenWarning(UserWarning): ...

class Log:
    def __init__(
        self,
        sources: Sequence[str],
        *,
        store: Sequence[tuple[str, str]],
        identity: str | PathLike[str] | None,
        timeline: int | None,
        start: object | None,
        end: object | None,
        names: Sequence[str],
        threads: int | None,
        before: bool = False,
        behind: bool = False,
    ) -> None: ...
    @property
    def warnings(self) -> list[str]: ...
    @property
    def notes(self) -> list[str]: ...
    @property
    def start(self) -> tuple[bool, int] | None: ...
    @property
    def end(self) -> tuple[bool, int] | None: ...

class Batch:
    @property
    def num_rows(self) -> int: ...
    def __len__(self) -> int: ...
    def __arrow_c_array__(self, requested_schema: object | None = None) -> tuple[object, object]: ...
    def __arrow_c_schema__(self) -> object: ...

class BatchIterator(Iterator[Batch]):
    def __next__(self) -> Batch: ...

class Schema:
    def __arrow_c_schema__(self) -> object: ...

class Table:
    @property
    def name(self) -> str: ...
    @property
    def column_names(self) -> list[str]: ...
    @property
    def error(self) -> Exception | None: ...
    def __iter__(self) -> BatchIterator: ...
    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object: ...
    def __arrow_c_schema__(self) -> object: ...

_Place = tuple[int, int, int, int, int]

def table(
    log: Log,
    name: str,
    *,
    columns: Sequence[str] | None,
    lsn_text: bool,
    batch_rows: int | None,
    part: tuple[_Place, int | None, int | None] | None,
) -> Table: ...
def row_changes(
    log: Log,
    relation: str,
    *,
    base: str | PathLike[str] | None,
    aborted: bool,
    xid: int | None,
    operations: Sequence[str],
    columns: Sequence[str] | None,
    lsn_text: bool,
    batch_rows: int | None,
    memory: int,
) -> tuple[Table, list[str]]: ...
def table_names() -> list[str]: ...
def can_be_divided(name: str) -> bool: ...
def schema(name: str) -> Schema: ...
def parts(
    log: Log,
    count: int,
    *,
    each: int | None = None,
    wanted: tuple[int | None, int | None, int | None, int | None] | None = None,
) -> tuple[list[_Place], int | None, int | None]: ...
def explain(log: Log, *, by: Sequence[str], top: int | None, every: int | None) -> str: ...
def whatif(
    log: Log,
    *,
    changes: Sequence[Sequence[tuple[str, str]]],
    traced: Sequence[tuple[str, str]],
    all_images: bool,
    memory: int,
) -> str: ...
