"""Boolean matching: a message is delivered to every subscription whose condition it meets."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Boolean:
    """Yes or no: the message has the words, and its place touches the region. It has no options."""
