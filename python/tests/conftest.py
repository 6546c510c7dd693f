import gzip
import lzma
import pathlib

import pytest

GOLDEN = pathlib.Path(__file__).resolve().parents[2] / "testdata" / "golden"


@pytest.fixture(scope="session")
def log() -> str:
    """Three segments of PostgreSQL 18."""
    return str(GOLDEN / "18.6")


# Segments of 15.18-lz4 are of two clusters.
LOGS = sorted(path.name for path in GOLDEN.iterdir() if path.is_dir() and path.name != "15.18-lz4")


@pytest.fixture(scope="session", params=LOGS)
def any_log(request: pytest.FixtureRequest) -> str:
    return str(GOLDEN / request.param)


@pytest.fixture(scope="session")
def damaged_log(log: str, tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """The same log with a byte changed among the records of its first segment."""
    folder = tmp_path_factory.mktemp("damaged")
    for index, path in enumerate(sorted(pathlib.Path(log).iterdir())):
        content = bytearray(lzma.decompress(path.read_bytes()))
        if index == 0:
            content[20 * 8192 + 4000] ^= 0x55
        (folder / path.stem).write_bytes(content)
    return folder


@pytest.fixture(scope="session")
def endless_log(log: str, tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """A log that takes seconds: one segment on hundreds of timelines. Only pages' headers say on which."""
    folder = tmp_path_factory.mktemp("endless")
    path = sorted(pathlib.Path(log).iterdir())[0]
    content = bytearray(lzma.decompress(path.read_bytes()))
    headers = [at for at in range(0, len(content), 8192) if content[at] or content[at + 1]]
    for timeline in range(1, 1001):
        for at in headers:
            content[at + 4 : at + 8] = timeline.to_bytes(4, "little")
        (folder / f"{timeline:08X}{path.stem[8:]}").write_bytes(gzip.compress(content, 1))
    return folder
