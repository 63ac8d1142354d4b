"""Shows one quota: the amounts of each seed, its top consumers, its last denials, and the conditions that are bad."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from datetime import UTC, datetime

import msgspec

from cli import consumers, denials, figures, largest_and_last, quotas, reading, terminal
from cli.connection import add_cluster, add_namespace, connected
from cli.doctor import cures, findings
from cli.figures import Figures
from cli.largest_and_last import LargestAndLast
from cli.outcome import DONE, STALE, Failed, Printed
from cli.seeds import fleet, on_master
from cli.seeds.on_master import Held
from cli.terminal import Column, add_output
from common.api import account_waits, label_selector
from common.api.label_selector import LabelSelector
from common.api.labels import SETTINGS
from common.api.types import QUOTA_SETTINGS, SEEDS, CatalogueEntry, Seed, Subject
from common.kube.client.api_client import Cluster
from common.kube.client.errors import ApiError
from common.quota import resources
from common.quota.names import in_order
from common.quota.object_names import COUNT, SUM
from common.quota.quantity import UNIT, QuantityError
from common.quota.resources import ResourceList
from master.cache.objects import MasterQuota, SeedUsage
from master.quotas import staleness
from master.quotas.override_conditions import text_of

NO_WORDS: Mapping[str, str] = {}

HELP = "show one quota: used and free amounts, its seeds, consumers, denials and problems"
EXAMPLES = """\
examples:
  seedquota describe project-alpha
  seedquota describe seedquota/project-alpha   # as messages name it
  seedquota describe project/alpha             # by its subject, also sqp/alpha
  seedquota describe sqa/ann                   # of a ResourceQuotaAllocation
  seedquota describe project-alpha --seed eu-1   # with its consumers and denials on that seed
  seedquota describe owner-ann -o wide         # with all consumers and denials, and all columns

What seeds hold is read from the ledgers if you may list them, else from the quota's status. Only a seed knows what
each user cluster uses and what was refused, so --seed names seeds. They are asked with the kubeconfigs in their
Secrets, which you must be allowed to get. The seed in the master's own cluster, if there is one, is read without it.
Denials are those of Machines, from Events. API servers keep Events for an hour, unless they are told otherwise. The
output says what is not known.
Exit status: 0 done, 1 failed, 3 a figure may be out of date, or a seed of --seed could not be read.
"""


def declare(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", help=quotas.NAMED)
    add_cluster(parser)
    fleet.add_seeds(parser, "show its user clusters and denials")
    add_namespace(parser)
    add_output(parser, "text", "wide", "json", "yaml")
    parser.set_defaults(run=run)


async def run(options: argparse.Namespace) -> Printed:
    now = datetime.now(UTC)
    async with connected(options, "master") as master:
        quota = await quotas.the_one(master, options.name)
        name = quota.metadata.name
        held = await _held(master, options.namespace, name)
        seeds = await _seeds(master)
        words = await _words(master)
        named = fleet.chosen(options, seeds)
        told = await largest_and_last.ask(master, quota, seeds, named, options.namespace, now)
    try:
        found = figures.of_quota(quota, staleness.silence_of_master(seeds, now))
        known = largest_and_last.known(quota, told, largest_and_last.SHOWN if options.output == "text" else None)
        if options.output in ("text", "wide"):
            by_name = {seed.metadata.name: seed for seed in seeds}
            most = terminal.width() if options.output == "text" else None
            said = text(quota, found, held, by_name, known, now, most, words)
        else:
            said = reading.written(plain(quota, found, held, known), options.output)
    except QuantityError as error:
        raise Failed(f"seedquota/{name} cannot be read: {error}") from None
    return Printed(said, STALE if found.stale or told.failed else DONE)


async def _held(master: Cluster, namespace: str, quota: str) -> dict[str, Held] | None:
    """By seed. None: no ledger says it. So also where the ledgers are in another namespace."""
    try:
        by_seed = await on_master.held(master, namespace)
    except (ApiError, Failed):
        return None
    return {seed: by_quota[quota] for seed, by_quota in by_seed.items() if quota in by_quota} or None


async def _words(master: Cluster) -> dict[str, str]:
    """What people call resources, by the catalogue. Who may not read it sees their names."""
    try:
        found = await master.get(QUOTA_SETTINGS, SETTINGS)
    except ApiError:
        return {}
    return {each.name: _word(each) for each in found.spec.resources if _word(each)}


def _word(entry: CatalogueEntry) -> str:
    shown = entry.display_name if entry.display_name.lower() != entry.name else ""
    return f"{shown or entry.name}, in {entry.unit}" if entry.unit else shown


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
    known: LargestAndLast,
    now: datetime,
    most: int | None,
    words: Mapping[str, str] = NO_WORDS,
) -> str:
    """`held`: by seed, from the ledgers; None: the status has to do. `seeds` may lack some. `words`: what people call
    resources. Raises QuantityError."""
    parts = [_amounts(found, words, most), _about(quota, found, now, most)]
    if quota.status.seeds:
        parts.append("\n".join([_seeds_table(quota, held, seeds, now, most), *_waits(quota, most)]))
    parts += [*_consumers(quota, known, now, most), *_denials(quota, known, now, most)]
    if known.not_known:
        parts.append(terminal.not_known(known.not_known, most))
    parts += _conditions(quota, most)
    return "\n\n".join(parts)


def plain(
    quota: MasterQuota, found: Figures, held: Mapping[str, Held] | None, known: LargestAndLast
) -> dict[str, object]:
    """For programs: the figures of `top`, and who has them. What is not known is missing (`granted`) or null."""
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
        "overrides": quota.status.overrides,
        "consumers": known.consumers,
        "denials": known.denials,
        "omitted": {
            "seeds": quota.status.seeds_omitted,
            "namespaces": quota.status.namespaces_omitted,
            "consumers": known.more_consumers,
            "denials": known.more_denials,
        },
        "notKnown": known.not_known,
        "conditions": quota.status.conditions,
    }


def _amounts(found: Figures, words: Mapping[str, str], most: int | None) -> str:
    """As kubectl describes core quotas."""
    names = list(found.resources)
    heads = ("Resource", "Used", "Hard", "Free", "Reserved")
    rows = [
        (f"{name} ({words[name]})" if name in words else name, each.used or "?", each.hard, each.free, each.reserved)
        for name, each in found.resources.items()
    ]
    columns = [Column(head, ["-" * len(head), *(row[at] for row in rows)]) for at, head in enumerate(heads)]
    return terminal.fit(columns, most)[0] if names else "it limits nothing"


def _about(quota: MasterQuota, found: Figures, now: datetime, most: int | None) -> str:
    peak = f", peak: {found.peak}" if found.peak else ""
    lines = [f"Subject: {found.subject}, enforcement: {found.enforcement}{peak}"]
    if (selector := _selector(quota)) is not None:
        lines.append(f"Namespaces: {label_selector.text(selector)}")
        lines += _unused(quota, found)
    if quota.status.surge.hard:
        hard, used = resources.parse(quota.status.surge.hard), resources.parse(quota.status.surge.used)
        lines.append(f"Surge: used {resources.text(used) or 'nothing'} of {resources.text(hard)}")
    if (kept := quota.spec.get("guaranteed")) and isinstance(kept, dict):
        wanted = resources.text(resources.parse(kept))
        fits = f"used of what fits: {found.guaranteed}" if found.guaranteed else "nothing of it is kept, see LimitsFit"
        lines.append(f"Guaranteed: {wanted}; {fits}")
    for each in quota.status.guarantees:
        hard, used = resources.parse(each.hard), resources.parse(each.used)
        lines.append(f"Guaranteed to {each.project}: {resources.text(hard)}, of which it uses {resources.text(used)}")
    if found.kept:
        lines.append(f"Of what is free, {resources.text(resources.parse(found.kept))} is for these projects alone.")
    lines += [f"Raised: {text_of(each)}" for each in quota.status.overrides if each.state != "Ended"]
    if found.stale:
        lines.append(f"May be out of date: {', '.join(each.text(now) for each in found.stale)}")
    if quota.status.conditions and quota.status.observed_generation != quota.metadata.generation:
        lines.append("The spec was changed since; these are the limits of before.")
    return "\n".join(terminal.wrapped(line, most, "  ") for line in lines)


def _selector(quota: MasterQuota) -> LabelSelector | None:
    """Raises Failed."""
    try:
        return msgspec.convert(quota.spec["subject"], Subject).selector
    except msgspec.ValidationError as error:
        raise Failed(f"the selector of seedquota/{quota.metadata.name} cannot be read: {error}") from None


def _unused(quota: MasterQuota, found: Figures) -> list[str]:
    """What looks the same where a selector or a kind is misspelt: nothing is used, so nothing is refused either."""
    if not quota.status.conditions:
        return []
    if not quota.status.namespaces:
        return [
            "No namespace uses anything of it. If one should, compare its labels with the selector: `kubectl get "
            "namespaces --show-labels` in each cluster that takes part."
        ]
    counts = [name for name, each in found.resources.items() if name.startswith((COUNT, SUM)) and each.used == "0"]
    if not counts:
        return []
    return [
        f"Nothing is counted of {', '.join(counts)}. If there are such objects, compare the name with `kubectl "
        "api-resources`: count/deployments.apps has the plural and the API group. "
        "sum.deployments.v1.apps/spec.replicas also has the version and the path of a field."
    ]


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


def _waits(quota: MasterQuota, most: int | None) -> list[str]:
    """What fenced accounts wait for."""
    waits = ((line.name, line.waits_for) for line in quota.status.seeds)
    return [
        terminal.wrapped(f"{name} admits nothing yet: it {account_waits.text(wait)}", most, "  ")
        for name, wait in waits
        if wait is not None
    ]


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
        amounts = resources.shown(name, *map(_readable, (use, hold, max(hold - use, 0))))
        rows.append((*(head if not rows else ("", "")), name, *(amounts if known else (amounts[0], "?", "?")), when))
        when = ""
    return rows or [(*head, "", "0", "0" if known else "?", "0" if known else "?", when)]


def _readable(amount: int) -> int:
    """What 0.2 left a seed may be odd to a billionth: from one whole on, thousandths say enough."""
    return amount - amount % (UNIT // 1000) if amount >= UNIT else amount


def _reported(line: SeedUsage, seed: Seed | None) -> str:
    """Of a seed that is current the quota's status does not follow the time: the Seed does."""
    if line.state == "Stale" or seed is None:
        return line.last_report_time
    return max(line.last_report_time, seed.status.last_seen_time)


def _consumers(quota: MasterQuota, known: LargestAndLast, now: datetime, most: int | None) -> list[str]:
    if known.consumers is None or not (known.consumers or known.asked_consumers):
        return []
    head, command = "Top consumers", f"seedquota describe {quota.metadata.name} -o wide"
    if known.asked_consumers:
        head += f", UserClusters on {', '.join(known.asked_consumers)}"
        command += " --seed NAME"
    if not known.consumers:
        return [terminal.wrapped(f"{head}: none", most, "  ")]
    lines = consumers.table(known.consumers, now, most, command)
    if known.more_consumers:
        if known.more_consumers == quota.status.namespaces_omitted:
            command = f"seedquota consumers {quota.metadata.name} --all"
        lines.append(f"and {known.more_consumers} more; see {command}")
    return ["\n".join([terminal.wrapped(f"{head}:", most, "  "), *lines])]


def _denials(quota: MasterQuota, known: LargestAndLast, now: datetime, most: int | None) -> list[str]:
    if known.denials is None:
        return []
    head = f"Last denials of Machines, from Events on {', '.join(known.asked_denials)}"
    if not known.denials:
        return [terminal.wrapped(f"{head}: none; API servers keep Events for an hour by default", most, "  ")]
    shown = [denials.without_quota(each, quota.metadata.name) for each in known.denials]
    lines = [terminal.wrapped(f"{head}:", most, "  "), denials.table(shown, now, most)]
    if known.more_denials:
        lines.append(f"and {known.more_denials} more; see seedquota denials --seed NAME")
    return ["\n".join(lines)]


def _conditions(quota: MasterQuota, most: int | None) -> list[str]:
    lines = []
    for each in findings.bad(quota.status.conditions):
        lines.append(terminal.wrapped(f"{each.type}={each.status} ({each.reason}): {each.message}", most, "  "))
        lines.append(terminal.wrapped(f"  cure: {cures.cure(cures.QUOTA, each.type, each.reason)}", most, "  "))
    return ["\n".join(lines)] if lines else []
