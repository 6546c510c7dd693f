"""The examples run, and their sums are correct."""

import importlib.util
import os
import pathlib
import subprocess
import sys
from typing import Any

import pyarrow.compute
import pyarrow.parquet
import pytest

import walden

PACKAGE = pathlib.Path(__file__).resolve().parents[1]
EXAMPLES = PACKAGE / "examples"


def test_fleet_adds_up_to_the_files_of_each_cluster(log: str, damaged_log: pathlib.Path, tmp_path: pathlib.Path) -> None:
    other = str(pathlib.Path(log).parent / "17.11")
    output = tmp_path / "fleet.parquet"
    command = [sys.executable, EXAMPLES / "fleet.py", "--processes", "2", "-o", output]
    run = subprocess.run([*command, f"a={log}", f"b={other}"], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    rows = pyarrow.parquet.read_table(output).to_pylist()
    for name, source in (("a", log), ("b", other)):
        of_cluster = [row for row in rows if row["cluster"] == name]
        assert sum(row["bytes"] for row in of_cluster) == walden.explain(source)["file_bytes"]
        assert sum(row["records"] for row in of_cluster) == walden.explain(source)["records"]
    run = subprocess.run([*command, f"a={log}", f"c={damaged_log}"], capture_output=True, text=True, check=False)
    assert run.returncode == 3
    assert "error: c: " in run.stderr and "take another copy" in run.stderr
    assert {row["cluster"] for row in pyarrow.parquet.read_table(output).to_pylist()} == {"a"}


def test_the_example_of_the_module_runs(log: str) -> None:
    lines = [line.strip() for line in (walden.__doc__ or "").splitlines() if line.startswith("    ")]
    lines[-1] = f"found = {lines[-1]}"
    code = "\n".join(lines)
    assert "import polars, walden" in code and code.count('"/archive/wal", names="names.json"') == 1
    variables: dict[str, Any] = {}
    exec(code.replace('"/archive/wal", names="names.json"', repr(log)), variables)
    assert variables["found"]["bytes"].sum() == pyarrow.compute.sum(pyarrow.table(walden.records(log))["bytes"]).as_py()


def test_types_are_strict() -> None:
    if importlib.util.find_spec("mypy") is None:
        pytest.skip("mypy is not installed")
    command = [sys.executable, "-m", "mypy", "--strict", "--cache-dir", os.devnull, "--config-file", "pyproject.toml"]
    run = subprocess.run([*command, "python/walden"], cwd=PACKAGE, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout
