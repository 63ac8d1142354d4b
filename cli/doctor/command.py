"""Shows problems, and what to do about each of them: of the master, of all quotas, and of all seeds."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from datetime import UTC, datetime

import msgspec

from cli import reading, terminal
from cli.connection import add_cluster, add_namespace, connected
from cli.doctor import on_master, on_seed, report
from cli.doctor.leases import leases
from cli.doctor.report import Report
from cli.outcome import DONE, STALE, Failed, Printed
from cli.seeds import fleet
from cli.terminal import add_output, seconds
from common.api.labels import UID_LABEL
from common.api.types import SEEDS, Seed
from common.kube.client.api_client import Cluster

HELP = "show problems, and what to do about them"
EXAMPLES = """\
examples:
  seedquota doctor
  seedquota doctor --seed eu-1 --seed us-1     # of all seeds only these
  seedquota doctor --kubeconfig eu-1.yaml      # of a seed alone, also when its certificates end
  seedquota doctor --as jane --as-group admins

It reads only, and by your own rights: what you may not read is named as not checked. Seeds are asked with the
kubeconfigs in their Secrets, some at a time; the one in the master's own cluster with yours. Only your own rights show
when certificates end. Where you may list Leases, it finds the namespaces of the programs itself.
Times are compared with the clock of this computer.
Exit status: 0 nothing is wrong, 1 something is, or it failed, 3 nothing is wrong in what could be checked.
"""


def declare(parser: argparse.ArgumentParser) -> None:
    add_cluster(parser, "the master cluster or of a seed")
    parser.add_argument(
        "--seed",
        dest="seeds",
        metavar="NAME",
        action="append",
        default=[],
        help="name of a Seed to check; it can be repeated; not set: all that are not Lost",
    )
    add_namespace(parser)
    parser.add_argument(
        "--timeout", type=seconds, default=fleet.WITHIN, metavar="DURATION", help="how long to ask seeds [default 1m]"
    )
    add_output(parser, "text", "json", "yaml")
    parser.set_defaults(run=run, all_seeds=False)


async def run(options: argparse.Namespace) -> Printed:
    async with connected(options, "master") as cluster:
        reports = await _look(cluster, options, datetime.now(UTC))
    if not any(each.looked_at for each in reports):
        raise Failed(f"nothing can be checked: {'; '.join(report.whole(reports).not_checked)}")
    found = report.whole(reports)
    status = Failed.status if found.items else STALE if found.not_checked else DONE
    if options.output != "text":
        return Printed(reading.written(msgspec.to_builtins(found), options.output), status)
    return Printed(report.text(reports, terminal.width()), status)


async def _look(cluster: Cluster, options: argparse.Namespace, now: datetime) -> list[Report]:
    of_master, masters = Report(), None
    seeds: list[Seed] | None = None
    async with of_master.part("seeds"):
        seeds = await reading.every(cluster, SEEDS)
    copies = [each for each in seeds or [] if UID_LABEL in each.metadata.labels]
    if copies and copies == seeds:
        return [await _only_a_seed(cluster, copies[0].metadata.name, options.namespace, now)]
    async with of_master.part("the leader of the master"):
        masters = await leases(cluster, on_master.MASTER, [options.namespace])
    if seeds == [] and masters is not None and not masters.found and await _has_agents(cluster, options.namespace):
        return [await _only_a_seed(cluster, "", options.namespace, now)]
    namespace = (masters.namespace(now) if masters is not None else "") or options.namespace
    chosen = fleet.chosen(options, seeds or []) if options.seeds else seeds or []
    await on_master.look(of_master, cluster, masters, seeds, options.seeds, namespace, now)
    return [of_master, *await _of_seeds(cluster, chosen, [namespace, options.namespace], now, options.timeout)]


async def _has_agents(cluster: Cluster, namespace: str) -> bool:
    return bool((await leases(cluster, on_seed.AGENT, [namespace])).found)


async def _only_a_seed(seed: Cluster, name: str, namespace: str, now: datetime) -> Report:
    """`name` is empty where no master has reached it."""
    found = Report(seed=name)
    if not name:
        found.not_checked.append("which Seed it is: it has no copy of one, so no master has reached it yet")
    found.looked_at["seed"] += 1
    await on_seed.look(found, seed, [namespace], now, by_secret=False)
    return found


async def _of_seeds(
    master: Cluster, seeds: Sequence[Seed], namespaces: Sequence[str], now: datetime, within: float
) -> list[Report]:
    """`namespaces`: the first is that of the master. What a seed has said is kept if it then answers no more."""
    asked = [each for each in seeds if each.spec.state != "Lost"]
    reports = {each.metadata.name: Report(seed=each.metadata.name) for each in asked}

    async def question(seed: Seed, cluster: Cluster) -> None:
        there = reports[seed.metadata.name]
        await on_seed.look(there, cluster, namespaces, now, by_secret=not seed.spec.in_cluster)

    _, failed = await fleet.ask(master, asked, namespaces[0], question, within)
    for seed, why in failed.items():
        reports[seed].not_checked.append(f"the seed itself: {why}")
    return list(reports.values())
