"""Every schedule that ever failed, and what it found. Their numbers mean another schedule once the simulator draws
differently; what they found is noted so that it is not forgotten, and most has a test of its own by now."""

from __future__ import annotations

FOUND: dict[int, str] = {
    342: "an update on top of a creation that was just counted is counted twice, and the master covered the double",
    1265: "a limit was lowered; what was deleted afterwards was admitted again on two seeds before it was recalled",
}
