"""A deliberate breakage of a rule: see tests/sim/mutants.py."""

from __future__ import annotations

from typing import Any

import msgspec

from tests.sim.scenes import Scene


class Mutant(msgspec.Struct, frozen=True):
    name: str
    patches: tuple[tuple[Any, str, Any], ...]
    focus: tuple[str, ...] = ()
    budget: int = 2000
    scene: Scene | None = None
