"""Build, match and a pipeline on ``s3a:``, against a server that speaks S3: ``s3_server.py ROOT``.

The server runs on loopback: moto's, in an environment of its own below ROOT, or with ``--minio
PROGRAM`` a MinIO (``go install github.com/minio/minio@latest`` makes one). The connector comes from
Maven (600 MB the first time). Everything lies in a bucket: subscriptions, incoming messages, index,
checkpoint and sink. Its updates must be those of the engine in this process; of many processes that
publish a version at once, one must succeed.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.fs
from pyspark.sql import SparkSession

from earshot import Engine
from earshot.errors import InUse
from earshot.files import write_table
from earshot.spark import FileSink, Stream, build, local_session, match, match_stream
from earshot.spark.folders import Folder
from earshot.spark.java import cache_directory
from earshot.spark.kafka import fetch_jars
from earshot.spark.store import IndexStore
from earshot.workloads.datasets import bundled_messages, draw_subscriptions

sys.path.insert(0, str(Path(__file__).parents[1]))
from spark.events import pairs_of
from spark.standalone import free_port, wait_for_port

MOTO = "moto[server]==5.2.5"
SERVER = """
import sys, threading
from moto.server import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import run_simple

# Moto looks for an object and then writes it; S3 does both in one step, so requests take turns.
turn, moto = threading.Lock(), DomainDispatcherApplication(create_backend_app)

def serve(request, start):
    if request["REQUEST_METHOD"] == "PUT" and "HTTP_IF_NONE_MATCH" in request:
        print("conditional", request["PATH_INFO"], file=sys.stderr, flush=True)
    with turn:
        return list(moto(request, start))

run_simple("127.0.0.1", int(sys.argv[1]), serve, threaded=True)
"""
CONNECTOR = """
org.apache.hadoop:hadoop-aws:3.5.0
    66bd9eefb938b1a1657487324b63c13df2d8b17164a1dd24e0ef37b905bc5baa
software.amazon.awssdk:bundle:2.35.4
    db4b55f24ad1b4e70f17eb1717a4de76a8dadc5a27d764be7c44ff67b2c1c677
software.amazon.s3.analyticsaccelerator:analyticsaccelerator-s3:1.3.1
    4959a9747cbb479c73c3ffbcd479bee5b014f8b2880994585a8693fb9d24675e
"""
"""Hadoop's connector to S3, of the version of the Hadoop in PySpark."""
BUCKET = "s3a://earshot"
USER, SECRET, REGION = "earshot", "earshot-secret", "us-east-1"
N_SUBSCRIPTIONS, N_MESSAGES, N_WRITERS, N_RACES = 5_000, 1_000, 8, 10


def moto_command(root: Path, port: int) -> list[str]:
    """Return how to start moto, which is installed if need be."""
    home = root / "moto"
    if not home.exists():
        subprocess.run([sys.executable, "-m", "venv", str(home)], check=True)
        subprocess.run([home / "bin" / "pip", "install", "-q", MOTO], check=True)
    return [str(home / "bin" / "python"), "-c", SERVER, str(port)]


@contextmanager
def running_server(root: Path, minio: Path | None) -> Iterator[str]:
    """Start a server with one bucket, and end it."""
    port = free_port()
    if minio is None:
        command = moto_command(root, port)
    else:
        command = [str(minio), "server", str(root / "minio"), "--address", f"127.0.0.1:{port}"]
    secrets = {"MINIO_ROOT_USER": USER, "MINIO_ROOT_PASSWORD": SECRET, "MINIO_BROWSER": "off"}
    with (root / "server.log").open("wb") as log:
        server = subprocess.Popen(command, stdout=log, stderr=log, env=os.environ | secrets)
    try:
        wait_for_port(port)
        address = f"http://127.0.0.1:{port}"
        files = pyarrow.fs.S3FileSystem(
            access_key=USER, secret_key=SECRET, region=REGION, endpoint_override=address,
            allow_bucket_creation=True,
        )  # fmt: skip
        files.create_dir(BUCKET.rpartition("/")[2])
        yield address
    finally:
        server.kill()
        server.wait()


def race(store: IndexStore) -> None:
    """Let many publish the next version at once; one must succeed, and its version must stay."""
    version = store.latest()
    barrier, done = threading.Barrier(N_WRITERS), []

    def publish(number: int) -> None:
        mine = replace(version, number=version.number + 1, n_subscriptions=number)
        barrier.wait()
        with suppress(InUse):
            IndexStore(store.folder.uri).publish(mine)
            done.append(number)

    threads = [threading.Thread(target=publish, args=(n,)) for n in range(N_WRITERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(done) == 1, f"{len(done)} writers published version {version.number + 1}"
    assert store.latest().n_subscriptions == done[0]


def put(name: str, rows: pa.Table) -> None:
    """Put a file of rows into the bucket."""
    folder = Folder(f"{BUCKET}/{name.rpartition('/')[0]}")
    with folder.draft() as draft:
        source = draft / name.rpartition("/")[2]
        write_table(source, rows)
        folder.put_file(source.name, source)


def updates_in(location: str) -> list[tuple[Any, Any]]:
    """Return the updates in a folder of the bucket, as Arrow reads them."""
    folder = Folder(location)
    return pairs_of(
        ds.dataset(
            folder._path, filesystem=folder._files, format="parquet", partitioning="hive"
        ).to_table()
    )


def run(session: SparkSession) -> None:
    reports = bundled_messages().slice(0, N_MESSAGES)
    subscriptions = draw_subscriptions(reports, N_SUBSCRIPTIONS)
    put("subscriptions/all.parquet", subscriptions)
    engine = Engine()
    engine.subscribe_batch(subscriptions)
    wanted = pairs_of(engine.publish_batch(reports).table())

    rows = session.read.parquet(f"{BUCKET}/subscriptions")
    build(rows, f"{BUCKET}/index", placement="sharded", n_shards=2)
    messages = session.createDataFrame(reports)
    found = messages.transform(match, f"{BUCKET}/index").toArrow()
    assert pairs_of(found) == wanted, "batch"
    print(f"build and match: {len(wanted):,} updates, as the engine has them", flush=True)

    ended, parts = subscriptions["id"][0].as_py(), (0, 400, N_MESSAGES)
    engine.unsubscribe(ended)
    put("changes/0.ndjson", pa.table({"op": ["unsubscribe"], "id": [ended]}))
    wanted = pairs_of(engine.publish_batch(reports).table())
    for number, (first, last) in enumerate(pairwise(parts)):
        put(f"incoming/{number}.ndjson", reports.slice(first, last - first))
        # Each start goes on where the one before was.
        pipeline = match_stream(
            Stream.of_files(session, f"{BUCKET}/incoming", ids="string"),
            f"{BUCKET}/index",
            FileSink(f"{BUCKET}/updates"),
            f"{BUCKET}/checkpoint",
            changes=Stream.of_files(session, f"{BUCKET}/changes"),
            merge_least=1,
            merge_share=1e-9,
            available_now=True,
        )
        pipeline.await_end()
        told = pipeline.status()
        assert (told.merges, told.merge_error) == (number == 0, None), "the change was not merged"
    assert updates_in(f"{BUCKET}/updates") == wanted, "pipeline"
    print(f"pipeline in two starts: {len(wanted):,} updates, as the engine has them", flush=True)

    store = IndexStore(f"{BUCKET}/index")
    merged = store.latest().base
    assert (merged.n_merged, sum(merged.n_subscriptions)) == (1, N_SUBSCRIPTIONS - 1)
    found = messages.transform(match, f"{BUCKET}/index").toArrow()
    assert pairs_of(found) == wanted, "after the merge"
    print("the change was merged, and shards were renewed", flush=True)
    with store.lease("one"):
        try:
            IndexStore(f"{BUCKET}/index").lease("another").acquire()
        except InUse as refusal:
            print(refusal)
        else:
            raise AssertionError("two hold the lease")
    for _ in range(N_RACES):
        race(store)
    print(f"{N_RACES} races of {N_WRITERS} writers: one published each time", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("root", type=Path)
    parser.add_argument("--minio", type=Path, metavar="PROGRAM")
    given = parser.parse_args()
    root = given.root.absolute()
    root.mkdir(parents=True, exist_ok=True)
    jars = fetch_jars(cache_directory() / "s3", "connector", CONNECTOR)
    with running_server(root, given.minio) as address:
        # Earshot's processes take these from the environment, Spark's Hadoop from its settings.
        os.environ |= {
            "AWS_ACCESS_KEY_ID": USER,
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_REGION": REGION,
            "AWS_ENDPOINT_URL": address,
        }
        settings = {
            "spark.jars": ",".join(map(str, jars)),
            "spark.hadoop.fs.s3a.endpoint": address,
            "spark.hadoop.fs.s3a.path.style.access": "true",
        }
        session = local_session("local[2,4]", extra=settings)
        run(session)
        session.stop()
