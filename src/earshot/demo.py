"""The demo: real reports from New South Wales against subscriptions drawn from them.

They come as a stream of files into a pipeline on Spark, while subscriptions come, go and move; in
the end the engine gets the same events in this process, and has to say the same. Or the engine
alone matches them, without Spark.
"""

from __future__ import annotations

import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from earshot.engine.changes import apply_changes
from earshot.engine.engine import Engine
from earshot.errors import EarshotError
from earshot.files import write_table
from earshot.model.arrays import Int64s
from earshot.model.schemas import BOX_FIELDS, changes_schema
from earshot.workloads.datasets import bundled_messages, draw_subscriptions

if TYPE_CHECKING:
    from earshot.spark.stream import Status
    from earshot.spark.view import View

Facts = dict[str, Any]

MESSAGES_EVERY_S, MESSAGES_PER_FILE = 0.5, 500
CHANGES_EVERY_S, CHANGES_PER_FILE = 1.5, 300
"""A third of the changes subscribe, a third unsubscribe, a third move."""
DRAWN: dict[str, Any] = {
    "keywords_min": 2, "region_area_min": 1e-5, "region_area_max": 1e-3,
}  # fmt: skip
"""How subscriptions of the stream differ from the papers': more choosy, so easier to look at."""

_SHOWN = 3
_SHOWN_CHARACTERS = 90


def run_demo(n_subscriptions: int) -> tuple[Facts, list[str]]:
    """Match the bundled messages in this process; return facts, and lines for a person."""
    messages = bundled_messages()
    subscriptions = draw_subscriptions(messages, n_subscriptions)
    engine = Engine()
    started = time.perf_counter()
    engine.subscribe_batch(subscriptions)
    engine.warm_up()
    built = time.perf_counter()
    deliveries = engine.publish_batch(messages)
    build_s, match_s = built - started, time.perf_counter() - built
    n_messages, n_matches = messages.num_rows, len(deliveries.subscription_ids)
    lines = [
        f"{n_messages:,} reports by Transport for NSW (Live Traffic, CC BY 4.0) against "
        f"{n_subscriptions:,} subscriptions",
        f"ready in {build_s:.1f} s, matched in {match_s * 1000:,.0f} ms: {n_matches:,} deliveries, "
        f"{n_messages / match_s:,.0f} messages/s on one core",
        "",
    ]
    texts = messages["text"]
    for row in range(0, n_messages, max(1, n_messages // _SHOWN))[:_SHOWN]:
        first, last = int(deliveries.offsets[row]), int(deliveries.offsets[row + 1])
        lines.append(_quoted(texts[row].as_py()))
        lines.append(f"    reached {last - first:,} subscribers")
        for subscription_id in deliveries.subscription_ids.slice(first, min(2, last - first)):
            found = pc.index(subscriptions["id"], subscription_id).as_py()
            words = ", ".join(subscriptions["keywords"][found].as_py())
            lines.append(f"    such as {subscription_id.as_py()}: {words}")
    facts = {
        "n_subscriptions": n_subscriptions,
        "n_messages": n_messages,
        "n_matches": n_matches,
        "build_s": round(build_s, 3),
        "match_s": round(match_s, 4),
    }
    return facts, lines


def stream_demo(
    n_subscriptions: int, seconds: float, *, is_quiet: bool, say: Callable[[str], None]
) -> tuple[Facts, list[str], int | None]:
    """Stream the bundled messages through a pipeline on Spark, which has to be installed.

    Args:
        n_subscriptions: How many there are at the beginning.
        seconds: How long messages keep coming.
        is_quiet: Show nothing while it runs.
        say: Told what is going on.

    Returns:
        Facts, lines for a person, and the signal that stopped it, if one did.
    """
    from earshot.spark.view import view_for  # noqa: PLC0415 - the package is optional

    view = view_for(is_quiet=is_quiet)
    with tempfile.TemporaryDirectory(prefix="earshot-demo-", ignore_cleanup_errors=True) as root:
        return _stream(_Feed(Path(root), n_subscriptions), seconds, view, say)


def _stream(
    feed: _Feed, seconds: float, view: View, say: Callable[[str], None]
) -> tuple[Facts, list[str], int | None]:
    # The package is optional.
    from earshot.spark import FileSink, Stream, build, match_stream  # noqa: PLC0415
    from earshot.spark.commands import course_of, watch  # noqa: PLC0415
    from earshot.spark.session import spark_session  # noqa: PLC0415

    index, out, checkpoint = (feed.root / name for name in ("index", "out", "checkpoint"))
    say("starting Spark …")
    with spark_session() as session:
        say(f"building an index of {feed.n_subscriptions:,} subscriptions …")
        build(session.createDataFrame(feed.subscriptions), index, unique_ids=True)
        replay = _Replay(feed, index, out, checkpoint)

        def on_batch(status: Status) -> None:
            replay.note(status)
            view.note(replay.samples)
            feed.is_warm.set()  # workers have started and opened the index

        started = time.monotonic()
        pipeline = match_stream(
            Stream.of_files(session, feed.messages, ids="integer"),
            index, FileSink(out), checkpoint,
            changes=Stream.of_files(session, feed.changes),
            shape="lists", keep_unmatched=True, on_batch=on_batch,
        )  # fmt: skip
        feeding = threading.Thread(target=feed.run, args=(seconds,), daemon=True)
        feeding.start()

        def is_enough() -> bool:
            status = pipeline.status()
            return (
                not feeding.is_alive()
                and status.messages >= feed.n_messages
                and status.changes >= len(feed.all_changes)
            )

        number = watch(pipeline, view, is_enough=is_enough)
        feed.is_over.set()
        facts = course_of(pipeline, time.monotonic() - started)
    lines = [
        f"{facts['messages']:,} reports by Transport for NSW (Live Traffic, CC BY 4.0) in "
        f"{facts['batches']:,} batches: {facts['updates']:,} deliveries to "
        f"{feed.n_subscriptions:,} subscriptions and more",
        f"{facts['changes']:,} subscriptions came, went and moved meanwhile: "
        f"{len(replay.versions):,} versions of the index were used",
        f"{facts['messages_per_s']:,.0f} messages/s, {facts['updates_per_s']:,.0f} deliveries/s "
        f"while busy; a batch took {(facts['batch_s'] or 0) * 1000:,.0f} ms (median)",
    ]
    if number is None:
        say("giving the engine the same events …")
        match_s = replay.compare()
        facts |= {"equals_engine": True, "engine_s": round(match_s, 3)}
        lines.append(
            f"the engine in this process says the same, delivery by delivery (in {match_s:.1f} s)"
        )
    return facts, [*lines, "", *replay.samples], number


class _Feed:
    """Directories into which messages and changes are put, each file whole.

    Ids are integers in the order of events: a subscription's is its row in :attr:`drawn`, a
    message's is how many came before it.
    """

    def __init__(self, root: Path, n_subscriptions: int) -> None:
        self.root = root
        self.messages, self.changes = root / "messages", root / "changes"
        for folder in (self.messages, self.changes):
            folder.mkdir()
        self.reports = bundled_messages().drop_columns(["kind"])
        self.n_subscriptions = n_subscriptions
        self._random = np.random.default_rng(1)
        self.drawn = self.subscriptions = self._draw(n_subscriptions, 0)
        self.n_messages = 0
        self._live = np.arange(n_subscriptions)
        self.all_changes = changes_schema(pa.int64()).empty_table()
        self.is_warm, self.is_over = threading.Event(), threading.Event()

    def message_rows(self, ids: Int64s) -> pa.Table:
        """Return messages by their ids."""
        rows = self.reports.take(pa.array(ids % self.reports.num_rows))
        return rows.set_column(0, "id", pa.array(ids))

    def run(self, seconds: float) -> None:
        """Feed some messages to begin with, more for some seconds, then all reports at once."""
        self._add_messages(MESSAGES_PER_FILE)
        while not (self.is_warm.wait(0.1) or self.is_over.is_set()):
            pass
        started = time.monotonic()
        messages_at = changes_at = 0.0
        while (now := time.monotonic() - started) < seconds and not self.is_over.is_set():
            if now >= messages_at:
                self._add_messages(MESSAGES_PER_FILE)
                messages_at += MESSAGES_EVERY_S
            if now >= changes_at:
                self._add_changes()
                changes_at += CHANGES_EVERY_S
            time.sleep(0.02)
        self._add_messages(self.reports.num_rows)

    def _add_messages(self, n: int) -> None:
        rows = self.message_rows(np.arange(self.n_messages, self.n_messages + n))
        self.n_messages += n
        write_table(self.messages / f"{self.n_messages:08d}.ndjson", rows)

    def _add_changes(self) -> None:
        n = CHANGES_PER_FILE // 3
        new = self._draw(n, self.drawn.num_rows)
        self.drawn = pa.concat_tables([self.drawn, new])
        live = self._random.permutation(self._live)
        gone, moved = live[:n], live[n : 2 * n]
        self._live = np.concatenate([live[n:], new["id"].to_numpy()])
        regions = self._draw(len(moved), 0).select(BOX_FIELDS)
        changes = {
            "subscribe": new,
            "unsubscribe": pa.table({"id": gone}),
            "move": regions.append_column("id", pa.array(moved)),
        }
        tables = [
            rows.append_column("op", pa.repeat(op, len(rows))) for op, rows in changes.items()
        ]
        schema = self.all_changes.schema
        rows = pa.concat_tables([schema.empty_table(), *tables], promote_options="permissive")
        rows = rows.select(schema.names).cast(schema)
        self.all_changes = pa.concat_tables([self.all_changes, rows])
        write_table(self.changes / f"{len(self.all_changes):08d}.ndjson", rows)

    def _draw(self, n: int, first_id: int) -> pa.Table:
        seed = int(self._random.integers(1 << 32))
        drawn = draw_subscriptions(self.reports, n, seed=seed, **DRAWN)
        return drawn.set_column(0, "id", pa.array(np.arange(first_id, first_id + n)))


class _Replay:
    """What each batch saw and delivered, to be compared with what the engine says."""

    def __init__(self, feed: _Feed, index: Path, out: Path, checkpoint: Path) -> None:
        from earshot.spark.store import IndexStore  # noqa: PLC0415
        from earshot.spark.stream import BatchLog  # noqa: PLC0415 - the package is optional

        self._feed, self._out = feed, out
        self._store, self._log = IndexStore(index), BatchLog(checkpoint)
        self._batches: dict[int, int] = {}
        self.versions: set[int] = set()
        self.samples: list[str] = []

    def note(self, status: Status) -> None:
        """Note how many changes a batch saw, by its record; and show a delivery of it."""
        record = self._log.record(status.batch)
        assert record is not None
        # All changes so far are on top of the base: there are too few for a merge.
        self._batches[record.batch] = self._store.version(record.version).n_changes
        self.versions.add(record.version)
        self.samples = [*self.samples, *self._sample(record.batch)][-2 * _SHOWN :]

    def compare(self) -> float:
        """Give the engine the same events; return how many seconds matching took it.

        Raises:
            EarshotError: It says something else.
        """
        feed, changes = self._feed, self._feed.all_changes
        engine = Engine(rebuild_in_background=False)
        engine.subscribe_batch(feed.subscriptions)
        n_applied = n_messages = 0
        match_s = 0.0
        for batch, n_changes in sorted(self._batches.items()):
            apply_changes(engine, changes.slice(n_applied, n_changes - n_applied))
            n_applied = n_changes
            lists = self._lists(batch)
            ids = np.sort(lists.column("message_id").to_numpy())
            messages = feed.message_rows(ids)
            started = time.perf_counter()
            found = engine.match_batch(messages)
            match_s += time.perf_counter() - started
            expected = _pairs(np.repeat(ids, np.diff(found.offsets)), found.subscription_ids)
            subscribers = lists.column("subscription_ids").combine_chunks()
            parents = pc.list_parent_indices(subscribers).to_numpy()
            got = _pairs(lists.column("message_id").to_numpy()[parents], subscribers.flatten())
            if not np.array_equal(expected, got):
                raise EarshotError(
                    f"batch {batch} has {len(got):,} deliveries, and the engine says "
                    f"{len(expected):,}, or others; please report it"
                )
            n_messages += len(ids)
        if n_messages != feed.n_messages:
            raise EarshotError(
                f"{n_messages:,} of {feed.n_messages:,} messages came out; please report it"
            )
        return match_s

    def _lists(self, batch: int) -> pa.Table:
        # The name of its directory is no column.
        return pq.read_table(self._out / f"batch={batch:08d}", partitioning=None)

    def _sample(self, batch: int) -> list[str]:
        lists = self._lists(batch)
        counts = pc.list_value_length(lists.column("subscription_ids")).to_numpy()
        if not len(counts):
            return []
        # Neither one that reaches nearly nobody nor one that reaches nearly all.
        row = int(np.argsort(counts)[int(0.6 * len(counts))])
        if not counts[row]:
            return []
        subscribers = lists.column("subscription_ids")[row].values
        message = self._feed.message_rows(lists.column("message_id")[row : row + 1].to_numpy())
        keywords = self._feed.drawn["keywords"][subscribers[0].as_py()].as_py()
        return [
            _quoted(message["text"][0].as_py()),
            f"    reached {len(subscribers):,} subscribers, such as: {', '.join(keywords)}",
        ]


def _pairs(messages: Int64s, subscribers: pa.Array) -> Int64s:
    """Return pairs of message and subscription, sorted, as one number each."""
    return np.sort((messages << 32) + subscribers.to_numpy())


def _quoted(text: str) -> str:
    # Reports begin with a headline that the next part repeats.
    shown = " ".join((text.partition(" | ")[2] or text).split())
    return f"“{shown[:_SHOWN_CHARACTERS]}{'…' if len(shown) > _SHOWN_CHARACTERS else ''}”"
