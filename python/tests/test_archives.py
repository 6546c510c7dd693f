"""Archives of `walden archive` as sources, in a folder and in an object store."""

import os
import pathlib
import shutil
import subprocess

import pyarrow
import pytest

import walden


@pytest.fixture(scope="module")
def archive(log: str, program: str, tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    folder = tmp_path_factory.mktemp("archive")
    # The last segment is incomplete: the server was stopped in it.
    for path in sorted(pathlib.Path(log).iterdir())[:2]:
        plain = folder / path.name
        shutil.copy(path, plain)
        subprocess.run([program, "archive", "import", "--repo", folder / "wal", plain], check=True)
        plain.unlink()
    return folder / "wal"


def rows(source: object, **options: object) -> list[dict]:
    columns = ["start_lsn", "record_type", "bytes", "relation"]
    return pyarrow.table(walden.records(source, columns=columns, **options)).to_pylist()


def test_rows_of_an_archive_are_those_of_its_segments(log: str, archive: pathlib.Path) -> None:
    segments = sorted(pathlib.Path(log).iterdir())[:2]
    assert rows(archive) == rows(segments)
    parts = walden.parts(archive, 2)
    assert len(parts) == 2
    assert sum([rows(archive, part=part) for part in parts], []) == rows(segments)


def test_an_archive_in_an_object_store(log: str, archive: pathlib.Path) -> None:
    need = "needs moto: pip install 'moto[s3]' flask flask-cors"
    server = pytest.importorskip("moto.server", reason=need)
    boto3 = pytest.importorskip("boto3", reason=need)
    moto = server.ThreadedMotoServer(port=0)
    moto.start()
    try:
        host, port = moto.get_host_and_port()
        access = {"aws_access_key_id": "a", "aws_secret_access_key": "b"}
        client = boto3.client("s3", endpoint_url=f"http://{host}:{port}", region_name="us-east-1", **access)
        client.create_bucket(Bucket="backups")
        for path in archive.rglob("*"):
            if path.is_file():
                client.upload_file(str(path), "backups", f"main/{path.relative_to(archive)}")
        store = {"endpoint": f"http://{host}:{port}", "region": "us-east-1", **access}
        assert rows("s3://backups/main", store=store) == rows(archive)
        document = walden.explain("s3://backups/main", store=store)
        assert document["file_bytes"] == walden.explain(archive)["file_bytes"]
        with pytest.raises(walden.WaldenError, match="cannot find an archive"):
            walden.records("s3://backups/other", store=store)
    finally:
        moto.stop()


def test_no_archive_at_a_url() -> None:
    with pytest.raises(walden.WaldenError, match="ftp://"):
        walden.records("ftp://nowhere")
    with pytest.raises(walden.WaldenError, match="cannot read the archive"):
        walden.records("file:///nowhere")
