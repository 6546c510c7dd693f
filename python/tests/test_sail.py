"""The data source in Sail, which implements Spark's interface without a JVM."""

import os

import pytest

import walden

NEED = "needs sail: pip install pysail 'pyspark[connect]==4.0.*'"
pytest.importorskip("pysail", reason=NEED)
pytest.importorskip("grpc", reason=NEED)

from pysail.spark import SparkConnectServer  # noqa: E402
from pyspark.sql import SparkSession, functions  # noqa: E402

import walden.spark  # noqa: E402


@pytest.fixture(scope="module")
def sail():
    server = SparkConnectServer()
    server.start()
    _, port = server.listening_address
    session = SparkSession.builder.remote(f"sc://localhost:{port}").create()
    try:
        session.dataSource.register(walden.spark.WaldenDataSource)
    except Exception as error:
        if "unsupported PySpark version" not in str(error):
            raise
        pytest.skip(f"{NEED} ({error})")
    yield session
    session.stop()
    server.stop()
    # With this variable, a session of Spark itself, as in other tests, would connect to a server.
    os.environ.pop("SPARK_CONNECT_MODE_ENABLED", None)


@pytest.mark.parametrize("partitions", [1, 2, 3, 7])
def test_sums_over_partitions_are_those_of_explain(sail, log: str, partitions: int) -> None:
    total = 0
    for table in ("records", "framing"):
        frame = sail.read.format("walden").option("table", table).option("partitions", partitions).load(log)
        total += frame.agg(functions.sum("bytes")).collect()[0][0]
    assert total == walden.explain(log)["file_bytes"]
