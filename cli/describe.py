"""`seedquota describe`: one quota, with what each seed and namespace has of it, and what is wrong."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import msgspec

from cli import figures, quotas, reading, terminal
from cli.clusters import add_master_context, add_namespace, connected
from cli.doctor import cures, findings
from cli.figures import Figures
from cli.outcome import DONE, STALE, Failed, Printed
from cli.seeds import on_master
from cli.seeds.on_master import Held
from cli.terminal import Column, add_output
from common.api.types import SEEDS, Seed
from common.kube.client.api_client import Cluster
from common.kube.client.errors import ApiError
from common.quota import resources
from common.quota.names import in_order
from common.quota.quantity import UNIT, QuantityError
from common.quota.resources import ResourceList
from master.cache.objects import MasterQuota, SeedUsage
from master.quotas import staleness

_EXAMPLES = """\
examples:
  seedquota describe project-alpha
  seedquota describe seedquota/project-alpha   # as messages name it
  seedquota describe project/alpha             # by its subject

What seeds hold is read from the ledgers if you may list them, else from the quota's status.
Exit status: 0 done, 1 failed, 3 a figure may be out of date.
"""


def declare(commands: Any) -> None:
    parser = commands.add_parser(
        "describe",
        help="one quota: used, free, its seeds and what is wrong",
        description=__doc__,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("name", metavar="NAME", help=quotas.NAMED)
    add_master_context(parser)
    add_namespace(parser)
    add_output(parser, "text", "json", "yaml")
    parser.set_defaults(run=run)


async def run(options: argparse.Namespace) -> Printed:
    now = datetime.now(UTC)
    async with connected(None, options.context, "master") as master:
        quota = await quotas.the_one(master, options.name)
        name = quota.metadata.name
        held = await _held(master, options.namespace, name)
        seeds = await _seeds(master)
    try:
        found = figures.of_quota(quota, staleness.silence_of_master(seeds, now))
        if options.output == "text":
            said = text(quota, found, held, {seed.metadata.name: seed for seed in seeds}, now, terminal.width())
        else:
            said = reading.written(plain(quota, found, held), options.output)
    except QuantityError as error:
        raise Failed(f"seedquota/{name} cannot be read: {error}") from None
    return Printed(said, STALE if found.stale else DONE)


async def _held(master: Cluster, namespace: str, quota: str) -> dict[str, Held] | None:
    """By seed. None: no ledger says it. So also where the ledgers are in another namespace."""
    try:
        by_seed = await on_master.held(master, namespace)
    except (ApiError, Failed):
        return None
    return {seed: by_quota[quota] for seed, by_quota in by_seed.items() if quota in by_quota} or None


async def _seeds(master: Cluster) -> list[Seed]:
    try:
        return (await master.list(SEEDS)).items
    except ApiError:
        return []


def text(
    quota: MasterQuota,
    found: Figures,
    held: Mapping[str, Held] | None,
    seeds: Mapping[str, Seed],
    now: datetime,
    most: int | None,
) -> str:
    """`held`: by seed, from the ledgers; None: the status has to do. `seeds` may lack some. Raises QuantityError."""
    parts = [_amounts(found, most), _about(quota, found, now, most)]
    if quota.status.seeds:
        parts.append(_seeds_table(quota, held, seeds, now, most))
    if quota.status.namespaces:
        parts.append(_namespaces_table(quota, most))
    parts += _conditions(quota, most)
    return "\n\n".join(parts)


def plain(quota: MasterQuota, found: Figures, held: Mapping[str, Held] | None) -> dict[str, object]:
    """For programs: the figures of `top`, and who has them. `granted` is missing where it is not known."""
    lines = []
    for line in quota.status.seeds:
        shown = msgspec.to_builtins(line)
        ledger = held.get(line.name, Held({}, known=True)) if held is not None else None
        if ledger is not None:
            shown.pop("granted", None)
            shown |= {"granted": resources.render(ledger.amounts)} if ledger.known else {}
        lines.append(shown)
    return {
        **msgspec.to_builtins(found),
        "bySeed": lines,
        "byNamespace": quota.status.namespaces,
        "omitted": {"seeds": quota.status.seeds_omitted, "namespaces": quota.status.namespaces_omitted},
        "conditions": quota.status.conditions,
    }


def _amounts(found: Figures, most: int | None) -> str:
    """As kubectl describes core quotas."""
    names = list(found.resources)
    heads = ("Resource", "Used", "Hard", "Free", "Reserved")
    rows = [(name, each.used or "?", each.hard, each.free, each.reserved) for name, each in found.resources.items()]
    columns = [Column(head, ["-" * len(head), *(row[at] for row in rows)]) for at, head in enumerate(heads)]
    return terminal.fit(columns, most)[0] if names else "it limits nothing"


def _about(quota: MasterQuota, found: Figures, now: datetime, most: int | None) -> str:
    peak = f", peak: {found.peak}" if found.peak else ""
    lines = [f"Subject: {found.subject}, enforcement: {found.enforcement}{peak}"]
    if quota.status.surge.hard:
        hard, used = resources.parse(quota.status.surge.hard), resources.parse(quota.status.surge.used)
        lines.append(f"Surge: used {resources.text(used) or 'nothing'} of {resources.text(hard)}")
    if found.stale:
        lines.append(f"May be out of date: {', '.join(each.text(now) for each in found.stale)}")
    if quota.status.conditions and quota.status.observed_generation != quota.metadata.generation:
        lines.append("The spec was changed since; these are the limits of before.")
    return "\n".join(terminal.wrapped(line, most, "  ") for line in lines)


def _seeds_table(
    quota: MasterQuota, held: Mapping[str, Held] | None, seeds: Mapping[str, Seed], now: datetime, most: int | None
) -> str:
    rows = []
    for line in quota.status.seeds:
        rows += _seed_rows(line, held, _reported(line, seeds.get(line.name)), now)
    heads = ("Seed", "State", "Resource", "Used", "Held", "Idle", "Reported")
    table = terminal.fit([Column(head, [row[at] for row in rows]) for at, head in enumerate(heads)], most)[0]
    omitted = quota.status.seeds_omitted
    return f"{table}\nand {omitted} more" if omitted else table


def _seed_rows(line: SeedUsage, held: Mapping[str, Held] | None, reported: str, now: datetime) -> list[tuple[str, ...]]:
    used, known = resources.parse(line.local_usage), True
    holds: ResourceList = resources.parse(line.granted)
    if held is not None:
        ledger = held.get(line.name, Held({}, known=True))
        holds, known = ledger.amounts, ledger.known
    head = (line.name, line.state)
    when = staleness.age(reported, now) or "never"
    rows: list[tuple[str, ...]] = []
    for name in in_order(dict(used) | dict(holds)):
        use, hold = used.get(name, 0), holds.get(name, 0)
        amounts = resources.alike(name, *map(_readable, (use, hold, max(hold - use, 0))))
        rows.append((*(head if not rows else ("", "")), name, *(amounts if known else (amounts[0], "?", "?")), when))
        when = ""
    return rows or [(*head, "", "0", "0" if known else "?", "0" if known else "?", when)]


def _readable(amount: int) -> int:
    """What a seed holds is a share that may be odd to a billionth: from one whole on, thousandths say enough."""
    return amount - amount % (UNIT // 1000) if amount >= UNIT else amount


def _reported(line: SeedUsage, seed: Seed | None) -> str:
    """Of a seed that is current the quota's status does not follow the time: the Seed does."""
    if line.state == "Stale" or seed is None:
        return line.last_report_time
    return max(line.last_report_time, seed.status.last_seen_time)


def _namespaces_table(quota: MasterQuota, most: int | None) -> str:
    lines = quota.status.namespaces
    columns = [
        Column("Namespace", [line.namespace for line in lines]),
        Column("Cluster", [line.cluster for line in lines]),
        Column("Used", [resources.text(resources.parse(line.used)) or "nothing" for line in lines]),
    ]
    omitted = quota.status.namespaces_omitted
    table = terminal.fit(columns, most)[0]
    return f"{table}\nand {omitted} more" if omitted else table


def _conditions(quota: MasterQuota, most: int | None) -> list[str]:
    lines = []
    for each in findings.bad(quota.status.conditions):
        lines.append(terminal.wrapped(f"{each.type}={each.status} ({each.reason}): {each.message}", most, "  "))
        lines.append(terminal.wrapped(f"  cure: {cures.cure(cures.QUOTA, each.type, each.reason)}", most, "  "))
    return ["\n".join(lines)] if lines else []
