"""The demo: real reports from New South Wales against subscriptions drawn from them."""

from __future__ import annotations

import time
from typing import Any

import pyarrow.compute as pc

from earshot.engine import Engine
from earshot.workloads.datasets import bundled_messages, draw_subscriptions

_SHOWN = 3


def run_demo(n_subscriptions: int) -> tuple[dict[str, Any], list[str]]:
    """Match the bundled messages; return facts, and lines for a person."""
    messages = bundled_messages()
    subscriptions = draw_subscriptions(messages, n_subscriptions)
    engine = Engine()
    started = time.perf_counter()
    engine.subscribe_batch(subscriptions)
    engine.warm_up()
    build_s = time.perf_counter() - started
    started = time.perf_counter()
    deliveries = engine.publish_batch(messages)
    match_s = time.perf_counter() - started
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
        text = texts[row].as_py()
        lines.append(f"“{text[:90]}{'…' if len(text) > 90 else ''}”")
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
