import gzip
import lzma
import os
import pathlib
import shutil
import subprocess
from collections.abc import Generator

import pytest

TARGET = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", pathlib.Path(__file__).resolve().parents[2] / "target"))
GOLDEN = pathlib.Path(__file__).resolve().parents[2] / "testdata" / "golden"

# Requirements of tests. Tests that lack one are skipped, with a reason that starts with "needs NAME: ".
NEEDS = ("walden", "moto", "sail", "spark")
Report = pytest.TestReport | pytest.CollectReport
REQUIRED = {name.strip() for name in os.environ.get("WALDEN_REQUIRE", "").split(",")} - {""}


def pytest_configure() -> None:
    """Rejects unknown requirements: a misspelt one would require nothing."""
    if unknown := REQUIRED - {"all", *NEEDS}:
        raise pytest.UsageError(f"WALDEN_REQUIRE names {', '.join(sorted(unknown))}, expected one of: all, {', '.join(NEEDS)}")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, Report, Report]:
    return fail_if_required((yield))


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, Report, Report]:
    return fail_if_required((yield))


def fail_if_required(report: Report) -> Report:
    """Changes the report of a skipped test or file to a failure if WALDEN_REQUIRE names the requirement."""
    if report.skipped and not hasattr(report, "wasxfail"):
        reason = report.longrepr[2].removeprefix("Skipped: ")
        if "all" in REQUIRED or any(reason.startswith(f"needs {name}: ") for name in REQUIRED):
            report.outcome = "failed"
            report.longrepr = f"WALDEN_REQUIRE={os.environ['WALDEN_REQUIRE']}: {reason}"
    return report


@pytest.fixture(scope="session")
def log() -> str:
    """Three segments of PostgreSQL 18."""
    return str(GOLDEN / "18.6")


# Segments of 15.18-lz4 are from two clusters.
LOGS = sorted(path.name for path in GOLDEN.iterdir() if path.is_dir() and path.name != "15.18-lz4")


@pytest.fixture(scope="session", params=LOGS)
def any_log(request: pytest.FixtureRequest) -> str:
    return str(GOLDEN / request.param)


@pytest.fixture(scope="session")
def damaged_log(log: str, tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """The same WAL with a byte changed among the records of its first segment."""
    folder = tmp_path_factory.mktemp("damaged")
    for index, path in enumerate(sorted(pathlib.Path(log).iterdir())):
        content = bytearray(lzma.decompress(path.read_bytes()))
        if index == 0:
            content[20 * 8192 + 4000] ^= 0x55
        (folder / path.stem).write_bytes(content)
    return folder


@pytest.fixture(scope="session")
def endless_log(log: str, tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """WAL that takes seconds to read: one segment on hundreds of timelines, set only in page headers."""
    folder = tmp_path_factory.mktemp("endless")
    path = sorted(pathlib.Path(log).iterdir())[0]
    content = bytearray(lzma.decompress(path.read_bytes()))
    headers = [at for at in range(0, len(content), 8192) if content[at] or content[at + 1]]
    for timeline in range(1, 1001):
        for at in headers:
            content[at + 4 : at + 8] = timeline.to_bytes(4, "little")
        (folder / f"{timeline:08X}{path.stem[8:]}").write_bytes(gzip.compress(content, 1))
    return folder


@pytest.fixture(scope="session")
def program() -> str:
    """The program `walden`."""
    found = shutil.which("walden") or shutil.which("walden", path=TARGET / "debug")
    if found is None:
        pytest.skip("needs walden: the program has not been built")
    return found


@pytest.fixture(scope="session")
def work(program: str, tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """A run of a real server: wal/, and base/, the data directory from which the WAL continues."""
    folder = tmp_path_factory.mktemp("work") / "mixed"
    command = [program, "lab", "run", "mixed", "--size", "1000", "--keep-data", "-o", folder]
    run = subprocess.run(command, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    return folder
