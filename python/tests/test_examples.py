"""The examples run, and their sums are right."""

import pathlib
import subprocess
import sys

import pyarrow.parquet

import walden

EXAMPLES = pathlib.Path(__file__).resolve().parents[1] / "examples"


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
