"""Whether a server answers, before Spark waits for it in vain."""

from __future__ import annotations

import socket

WAIT_S = 5.0
"""How long a server may take to answer."""


def unanswered(servers: str) -> str | None:
    """Return why none of some servers answers, or None where one does.

    Args:
        servers: ``host:port`` of each, with commas between; ``scheme://`` may stand before it.
    """
    problems = []
    for place in servers.split(","):
        host, _, port = place.strip().rpartition("://")[2].rpartition(":")
        try:
            socket.create_connection((host.strip("[]"), int(port)), WAIT_S).close()
        except (OSError, ValueError, OverflowError) as error:
            problems.append(f"{place.strip()} ({error})")
        else:
            return None
    return "; ".join(problems)
