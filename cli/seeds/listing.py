"""Shows every Seed: its state, whether it is ready, the number of its quotas, and what it holds of them."""

from __future__ import annotations

import argparse
import json

from cli.seeds import on_master
from cli.seeds.on_master import Held
from cli.terminal import columns
from common.api.types import Seed
from common.quota import resources

_HEAD = ("NAME", "STATE", "READY", "CLUSTERS", "QUOTAS", "HOLDS", "LAST-SEEN")


async def run(options: argparse.Namespace) -> str:
    async with on_master.master_of(options) as master:
        seeds = await on_master.all_seeds(master)
        held = await on_master.held(master, options.namespace)
    rows = [_row(seed, held.get(seed.metadata.name, {})) for seed in seeds]
    known = {seed.metadata.name for seed in seeds}
    rows += [(name, "Gone", "", "", str(len(held[name])), _sum(held[name]), "") for name in held if name not in known]
    rows.sort()
    if options.output == "json":
        names = [name.lower().replace("-", "_") for name in _HEAD]
        return json.dumps({"items": [dict(zip(names, row, strict=True)) for row in rows]}, indent=2)
    return columns(_HEAD, rows) if rows else "there is no Seed; `seedquota seed add` makes one"


def _row(seed: Seed, held: dict[str, Held]) -> tuple[str, ...]:
    ready = next((found.status for found in seed.status.conditions if found.type == "Ready"), "Unknown")
    return (
        seed.metadata.name,
        seed.spec.state,
        ready,
        str(on_master.clusters_of(seed)),
        str(len(held)),
        _sum(held),
        seed.status.last_seen_time or "never",
    )


def _sum(held: dict[str, Held]) -> str:
    if not all(each.known for each in held.values()):
        return "not known"
    return resources.text(resources.total(each.amounts for each in held.values())) or "nothing"
