"""Batches of messages in chunks that are matched together, and working memory that grows."""

from __future__ import annotations

from typing import Any

import numpy as np

from earshot.kernels.steady import is_plain
from earshot.model.arrays import MessageArrays


def is_steady_batch(messages: MessageArrays) -> bool:
    """Whether messages are arrays of the types that nearly all have."""
    return (
        is_plain(messages.token_offsets, np.int64, 1)
        and is_plain(messages.token_ids, np.int32, 1)
        and is_plain(messages.boxes, np.float64, 2)
    )


def rows_of_chunk(
    messages: MessageArrays, start: int, stop: int, most_rows: int, most_tokens: int
) -> int:
    """Return how many messages from ``start`` on are matched together: one at the least."""
    most = min(stop, start + most_rows)
    token = messages.token_offsets[start] + most_tokens
    end = int(np.searchsorted(messages.token_offsets[start : most + 1], token, side="right"))
    return max(min(end - 1, most - start), 1)


def n_answers_expected(n: int, n_done: int, n_rows: int) -> int:
    """Return how many answers to make room for, where the first ``n_done`` rows have ``n``.

    What they say of the others, and a tenth more; so few chunks ask for more room.
    """
    return n if n_done == n_rows else int(1.1 * n * n_rows / n_done)


def with_room(scratch: Any, names: tuple[str, ...]) -> Any:
    """Return working memory whose arrays of these names are four times as long, and empty."""
    larger = {
        name: np.empty(4 * len(getattr(scratch, name)), getattr(scratch, name).dtype)
        for name in names
    }
    return scratch._replace(**larger)
