"""How soon a seed hears of a mere change of the global use. Pure; seconds everywhere."""

from __future__ import annotations

ROUND = 1.0  # between two such messages to one seed ...
ROUND_PER_SEED = 0.25  # ... and this much longer for every seed
PROMPT = 0.2  # where somebody was refused lately
LATELY = 30.0
WAITING = 1200.0
"""For so long a controller may wait there that was refused: its own pause grows to a quarter of an hour, and the seed
wakes it within two seconds after there is room."""


def publish_delay(fell_since_refusal: float | None, since_written: float, seeds: int) -> float:
    """`fell_since_refusal`: use has fallen, and somebody was refused there so long ago; None: nobody waits for this."""
    if fell_since_refusal is not None and fell_since_refusal < LATELY:
        return PROMPT
    waited_for = fell_since_refusal is not None and fell_since_refusal < WAITING
    every = ROUND if waited_for else max(ROUND, ROUND_PER_SEED * seeds)
    return max(every - since_written, every / 2)
