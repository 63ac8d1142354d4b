"""`seedquota seed drain` and `seedquota seed lost`."""

from __future__ import annotations

import argparse

from cli.outcome import Denied
from cli.seeds import on_master
from cli.terminal import ask, say
from common.api.types import SEEDS, Seed
from common.kube.client.api_client import Cluster

CONFIRMED = "its machines are gone"
"""As the CRD demands it."""


async def drain(options: argparse.Namespace) -> str:
    """Drains a seed. The seed gets no more capacity, and returns the capacity that it does not use. Its Machines keep
    running."""
    async with on_master.master_of(options) as master:
        seed = await on_master.the_seed(master, options.name)
        if seed.spec.state == "Lost":
            raise Denied(f"seed {options.name} is Lost, which has no way back")
        await set_state(master, seed, state="Draining")
        held = (await on_master.held(master, options.namespace)).get(options.name, {})
    head = f"seed {options.name} drains; it still holds:" if held else f"seed {options.name} drains; it holds nothing"
    return "\n".join([head, *on_master.lines(held)])


async def lost(options: argparse.Namespace) -> str:
    """Declares a seed lost. The master then gives what the seed holds to other seeds. This cannot be undone. Use it
    only if the machines of the seed are gone. If they still run, limits can be exceeded by the amounts that are
    printed. The command asks you to type a confirmation, which the API requires."""
    name = options.name
    async with on_master.master_of(options) as master:
        seed = await on_master.the_seed(master, name)
        if seed.spec.state == "Lost":
            return f"seed {name} is Lost already"
        held = (await on_master.held(master, options.namespace)).get(name, {})
        said = "\n".join(_risk(seed, held))
        if options.dry_run:
            return f"{said}\nnothing was changed (--dry-run)"
        say(said)
        if ask(f'There is no way back. To declare {name} lost, type "{CONFIRMED}": ').strip('"') != CONFIRMED:
            raise Denied(f"seed {name} was not declared lost: these were not the words")
        await set_state(master, seed, state="Lost", confirmLost=CONFIRMED)
    return f"seed {name} is Lost; remove it with `seedquota seed remove {name}`"


def _risk(seed: Seed, held: dict[str, on_master.Held]) -> list[str]:
    clusters = on_master.clusters_of(seed)
    facts = [f"seed {seed.metadata.name}: last seen {seed.status.last_seen_time or 'never'}, user clusters: {clusters}"]
    if not held:
        return [*facts, "It holds nothing: no limit can be exceeded."]
    risk = "If its machines still run, each of these limits can be exceeded by what the seed holds of it:"
    return [*facts, risk, *on_master.lines(held)]


async def set_state(master: Cluster, seed: Seed, **spec: str) -> None:
    await master.merge_patch(SEEDS, seed.metadata.name, {"metadata": {"uid": seed.metadata.uid}, "spec": spec})
