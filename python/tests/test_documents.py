"""The documents of explain and whatif."""

import pathlib

import pytest

import walden


@pytest.mark.filterwarnings("ignore::walden.WaldenWarning")
def test_explain_is_the_document_of_the_program(any_log: str) -> None:
    document = walden.explain(any_log, by=["relation,record", "time"], every=1)
    assert document["format_version"] == 1
    assert [view["by"] for view in document["views"]] == [["relation", "record"], ["time"]]
    for view in document["views"]:
        rest = (view["rest"] or {"bytes": 0})["bytes"]
        assert sum(group["bytes"] for group in view["groups"]) + rest == document["file_bytes"]


def test_top_leaves_a_rest(log: str) -> None:
    document = walden.explain(log, by="relation", top=2)
    (view,) = document["views"]
    assert len(view["groups"]) == 2
    assert view["rest"]["bytes"] + sum(group["bytes"] for group in view["groups"]) == document["file_bytes"]


def test_cycles_come_with_a_view_by_checkpoint(log: str) -> None:
    assert walden.explain(log)["cycles"] == []
    assert walden.explain(log, by="checkpoint")["cycles"] != []


def test_whatif_predicts_each_set_of_settings(log: str) -> None:
    other = str(pathlib.Path(log).parent / "17.11")
    # Most of this WAL was written without images.
    traced = {"full_page_writes": "on"}
    document = walden.whatif(other, [{}, {"full_page_writes": False}, {"max_wal_size": "8GB"}], traced=traced)
    same, without_images, larger = document["predictions"]
    assert same["images"] > without_images["images"] == 0
    assert same["bytes"] > without_images["bytes"]
    assert larger["bytes"] <= same["bytes"]
    sets = [{}, {"full_page_writes": "off"}, {"max_wal_size": "8GB"}]
    assert document == walden.whatif(other, sets, traced=traced, threads=1)
    (one,) = walden.whatif(other, {"max_wal_size": "8GB"}, traced=traced)["predictions"]
    assert one == larger
