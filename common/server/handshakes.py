"""Whose TLS handshake is next: one takes 0.9 ms of the event loop, and anybody who reaches the port can begin it.

So many a second are made, and a few more after a quiet time. Beyond that the addresses take turns.
"""

from __future__ import annotations

from common.server.fair_queue import FairRate

PER_SECOND = 200
BURST = 256  # at once: the API servers of many clusters, after a restart of the agent


class Handshakes(FairRate):
    def __init__(self) -> None:
        super().__init__(PER_SECOND, BURST)
