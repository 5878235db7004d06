"""Index, checkpoint and sink belong to one writer each, and others are told so."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark import SparkContext
from pyspark.sql import SparkSession

from earshot import Moving
from earshot.errors import InUse, InvalidParameter
from earshot.spark import FileSink, Stream, build, leases, match_stream
from earshot.spark import build as build_function
from earshot.spark.folders import Folder
from earshot.spark.hadoop import create_file
from earshot.spark.leases import Lease
from earshot.spark.owners import MARK, Owner, claim_checkpoint, claim_sink
from earshot.spark.store import Base, IndexSettings, IndexStore, Version
from earshot.spark.stream import Pipeline

from .events import Feed, expected_updates, updates_in

OWNER = Owner("one", "/checkpoints/one")
OTHER = Owner("other", "/checkpoints/other")


@pytest.fixture
def store(tmp_path: Path) -> IndexStore:
    return new_store(tmp_path / "index")


def new_store(location: Path) -> IndexStore:
    store = IndexStore(location)
    store.begin(IndexSettings("string"))
    return store


# ---- leases -------------------------------------------------------------------------------------


def test_one_process_writes_at_a_time(tmp_path: Path) -> None:
    folder = Folder(tmp_path / "index")
    with Lease(folder, "a build") as lease:
        lease.check()
        with pytest.raises(InUse, match=f"in use by a build: process {os.getpid()} on "):
            Lease(folder, "another").acquire()
        assert lease.is_held, "being refused does no harm"
    assert not folder.exists("lease.json")
    with Lease(folder, "another"):
        pass


def test_the_lease_of_a_killed_process_is_over_at_once(tmp_path: Path) -> None:
    program = (
        "import os, sys; from earshot.spark.folders import Folder; "
        "from earshot.spark.leases import Lease; "
        "Lease(Folder(sys.argv[1]), 'a build').acquire(); os._exit(9)"
    )
    subprocess.run([sys.executable, "-c", program, str(tmp_path)], check=False)
    assert (tmp_path / "lease.json").exists()
    with Lease(Folder(tmp_path), "another") as lease:
        lease.check()


@pytest.mark.parametrize("is_local", [True, False])
def test_the_lease_of_another_machine_is_over_when_it_is_not_renewed(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_local: bool
) -> None:
    monkeypatch.setattr(leases, "PATIENCE_S", 0.4)
    monkeypatch.setattr(leases, "SETTLING_S", 0.01)
    monkeypatch.setattr(Folder, "is_local", property(lambda self: is_local))
    folder = Folder(tmp_path)
    far = {"holder": "far", "purpose": "a build", "machine": "far", "host": "far", "process": 1}
    folder.write_json("lease.json", {**far, "renewed": "0"})
    renewals = iter(range(1_000))
    is_over = threading.Event()

    def renew() -> None:
        while not is_over.wait(0.05):
            folder.write_json("lease.json", {**far, "renewed": str(next(renewals))})

    holder = threading.Thread(target=renew)
    holder.start()
    with pytest.raises(InUse, match="process 1 on far"):
        Lease(folder, "another").acquire()
    is_over.set()
    holder.join()
    with Lease(folder, "another") as lease:
        lease.check()
        folder.write_json("lease.json", {**far, "renewed": "again"})
        with pytest.raises(InUse, match="went to another process"):
            lease.check()
    assert folder.read_json("lease.json")["holder"] == "far", "not ours to remove"


def test_a_holder_renews(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leases, "RENEWAL_S", 0.02)
    folder = Folder(tmp_path)
    with Lease(folder, "a build"):
        first = folder.read_json("lease.json")
        for _ in range(200):
            if folder.read_json("lease.json") != first:
                break
            threading.Event().wait(0.02)
        else:
            pytest.fail("the lease is not renewed")


# ---- versions -----------------------------------------------------------------------------------


def test_of_many_writers_one_publishes(store: IndexStore) -> None:
    version = Version(1, Base("b", "replicated", (0,), (0,), ("0000",)))
    barrier, refused = threading.Barrier(8), []

    def publish(number: int) -> None:
        barrier.wait()
        try:
            store.publish(replace(version, n_subscriptions=number))
        except InUse as error:
            refused.append(str(error))

    threads = [threading.Thread(target=publish, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(refused) == 7
    assert "got version 1 from another process" in refused[0]
    assert store.version_numbers() == [1]
    assert not [path for path in (Path(store.folder.path) / "versions").iterdir()
                if path.name.startswith(".")], "drafts are removed"  # fmt: skip


def test_of_many_writers_to_a_remote_store_one_publishes(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Folder, "is_local", property(lambda self: False))
    folder = Folder(tmp_path)
    folder.create_json("a.json", {"number": 1})
    with pytest.raises(FileExistsError):
        folder.create_json("a.json", {"number": 2})
    assert folder.read_json("a.json") == {"number": 1}
    with pytest.raises(InvalidParameter, match="by Spark's Hadoop: No FileSystem for scheme"):
        create_file("s3x://bucket/a.json", b"1")
    monkeypatch.setattr(SparkContext, "_active_spark_context", None)
    with pytest.raises(InvalidParameter, match="only while Spark runs"):
        folder.create_json("b.json", 1)


def test_disks_without_links_do_as_well(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_links(*_: object) -> None:
        raise PermissionError(1, "no links here")

    monkeypatch.setattr(os, "link", no_links)
    folder = Folder(tmp_path)
    folder.create_json("a.json", 1)
    with pytest.raises(FileExistsError):
        folder.create_json("a.json", 2)
    assert folder.read_json("a.json") == 1


def test_two_first_starts_do_not_both_publish(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    feed = Feed(tmp_path / "feed", 50)
    rows, index = spark.createDataFrame(feed.subscriptions), tmp_path / "index"
    module: Any = sys.modules[build_function.__module__]
    build_base = module.build_base
    refused: list[str] = []

    def during(*arguments: Any, **options: Any) -> Any:
        """While the first one builds, a second one starts, and a version appears."""
        with pytest.raises(InUse) as caught:
            build(rows, index)
        refused.append(str(caught.value))
        made = build_base(*arguments, **options)
        IndexStore(index).publish(Version(1, made[0]))
        return made

    monkeypatch.setattr(module, "build_base", during)
    with pytest.raises(InUse, match="got version 1 from another process meanwhile"):
        build(rows, index)
    assert "in use by a build" in refused[0]
    assert IndexStore(index).version_numbers() == [1]


# ---- checkpoints and sinks ----------------------------------------------------------------------


def test_a_checkpoint_belongs_to_one_index(store: IndexStore, tmp_path: Path) -> None:
    checkpoint = Folder(tmp_path / "checkpoint")
    owner = claim_checkpoint(checkpoint, store)
    assert claim_checkpoint(checkpoint, store) == owner
    (tmp_path / "index").rename(tmp_path / "moved")
    assert claim_checkpoint(checkpoint, IndexStore(tmp_path / "moved")) == owner
    with pytest.raises(InUse, match=r"over the index .*/index, and .*/index is another one, or"):
        claim_checkpoint(checkpoint, new_store(tmp_path / "index"))


def test_a_checkpoint_of_something_else_is_refused(store: IndexStore, tmp_path: Path) -> None:
    (tmp_path / "checkpoint" / "offsets").mkdir(parents=True)
    with pytest.raises(InUse, match="holds offsets, which is not of a pipeline"):
        claim_checkpoint(Folder(tmp_path / "checkpoint"), store)


def test_a_sink_belongs_to_one_pipeline(tmp_path: Path) -> None:
    sink = Folder(tmp_path / "sink")
    claim_sink(sink, OWNER)
    claim_sink(sink, OWNER)
    with pytest.raises(InUse, match="belongs to the pipeline with checkpoint /checkpoints/one"):
        claim_sink(sink, OTHER)
    with pytest.raises(InUse, match="whose checkpoint was in /checkpoints/one and was removed"):
        claim_sink(sink, Owner("new", "/checkpoints/one"))
    with pytest.raises(InUse, match="is for updates of this pipeline already"):
        claim_sink(sink, OWNER._replace(purpose="rejected messages"))
    claim_sink(Folder(tmp_path / "lists"), OWNER._replace(form="lists parquet"))
    with pytest.raises(InUse, match="has lists parquet, and rows parquet beside them could not"):
        claim_sink(Folder(tmp_path / "lists"), OWNER._replace(form="rows parquet"))
    (tmp_path / "used" / "batch=00000000").mkdir(parents=True)
    with pytest.raises(InUse, match="holds batch=00000000 already, and no pipeline owns it"):
        claim_sink(Folder(tmp_path / "used"), OWNER)


def test_a_pipeline_keeps_what_it_owns(spark: SparkSession, tmp_path: Path) -> None:
    feed = Feed(tmp_path / "feed", 100)
    feed.add_messages(0)
    index, checkpoint = tmp_path / "index", tmp_path / "checkpoint"
    build(spark.createDataFrame(feed.subscriptions), index)

    def start(where: Path, over: Path = index, **options: Any) -> Pipeline:
        return match_stream(
            Stream.of_files(spark, feed.messages, ids="string"),
            over, FileSink(tmp_path / "out"), where,
            changes=Stream.of_files(spark, feed.changes), **options,
        )  # fmt: skip

    running = start(checkpoint)
    try:
        with pytest.raises(InUse, match=f"in use by the pipeline with checkpoint {checkpoint}"):
            start(checkpoint)
        with pytest.raises(InUse, match=f"in use by the pipeline with checkpoint {checkpoint}"):
            build(spark.createDataFrame(feed.subscriptions), index)
        running.await_idle()
    finally:
        running.stop()
    wanted = expected_updates(feed.subscriptions, checkpoint)
    with pytest.raises(InUse, match="belongs to the pipeline with checkpoint"):
        start(tmp_path / "second")
    shutil.copytree(checkpoint, tmp_path / "kept")
    shutil.rmtree(checkpoint)
    with pytest.raises(InUse, match="belongs to a pipeline whose checkpoint was in"):
        start(checkpoint)
    shutil.rmtree(checkpoint)
    (tmp_path / "kept").rename(checkpoint)
    build(spark.createDataFrame(feed.subscriptions), tmp_path / "another")
    with pytest.raises(InUse, match="belongs to a pipeline over the index"):
        start(checkpoint, tmp_path / "another")
    with pytest.raises(InUse, match="has rows parquet, and lists parquet beside them"):
        start(checkpoint, shape="lists")
    assert start(checkpoint, available_now=True).await_end(60), "itself goes on"
    assert updates_in(tmp_path / "out") == wanted
    assert (tmp_path / "out" / MARK).exists()


def test_a_pipeline_that_is_refused_holds_nothing(spark: SparkSession, tmp_path: Path) -> None:
    feed = Feed(tmp_path / "feed", 10)
    semantics = Moving(timedelta(days=1))
    build(spark.createDataFrame(feed.subscriptions), tmp_path / "index", semantics=semantics)
    (tmp_path / "results" / "mine").mkdir(parents=True)
    for _ in range(2):
        with pytest.raises(InUse, match="holds mine already, and no pipeline owns it"):
            match_stream(
                Stream.of_files(spark, feed.messages, ids="string"),
                tmp_path / "index",
                FileSink(tmp_path / "out"),
                tmp_path / "checkpoint",
                results=FileSink(tmp_path / "results"),
            )
    assert IndexStore(tmp_path / "index").readers() == {}


def test_what_comes_to_a_checkpoint_stays_the_same(spark: SparkSession, tmp_path: Path) -> None:
    feed = Feed(tmp_path / "feed", 10)
    feed.add_messages(0)
    semantics = Moving(timedelta(days=1))
    build(spark.createDataFrame(feed.subscriptions), tmp_path / "index", semantics=semantics)

    def start(sink: Any, **options: Any) -> Pipeline:
        return match_stream(
            Stream.of_files(spark, feed.messages, ids="string"), tmp_path / "index", sink,
            tmp_path / "checkpoint", available_now=True, **options,
        )  # fmt: skip

    sink = FileSink(tmp_path / "out")
    assert start(sink).await_end(60)
    with pytest.raises(InUse, match="has taken messages from the start, and now messages and chan"):
        start(sink, changes=Stream.of_files(spark, feed.changes))
    assert start(sink).await_end(60)
    for wrong in ({"sink": str(tmp_path)}, {"sink": sink, "change_rejects": tmp_path}):
        with pytest.raises(InvalidParameter, match=r"expected FileSink\(...\), KafkaSink"):
            start(**wrong)
