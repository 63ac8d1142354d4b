"""Shows problems, and what to do about each of them."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from cli import reading, terminal
from cli.clusters import add_master_context, add_namespace, connected
from cli.doctor import findings, on_seed, signs
from cli.doctor.report import Report, text
from cli.outcome import DONE, STALE, Failed, Printed
from cli.seeds import on_master
from cli.terminal import add_output
from common.api.conditions import count
from common.api.core import SECRETS, kubeconfig_text
from common.api.types import SEEDS, Seed
from common.kube.client.api_client import Cluster
from common.kube.client.kubeconfig import InvalidKubeconfig
from common.kube.controller.leader_election import LEASES
from master.cache.objects import MASTER_QUOTAS

MASTER = "seedquota-master"

_EXAMPLES = """\
examples:
  seedquota doctor
  seedquota doctor --kubeconfig eu-1.yaml   # also that seed: user clusters, certificates, leftovers

It reads only, and by your own rights: what you may not read is named as not checked.
Times are compared with the clock of this computer.
Exit status: 0 nothing is wrong, 1 something is, or it failed, 3 nothing is wrong in what could be checked.
"""


def declare(commands: Any) -> None:
    parser = commands.add_parser(
        "doctor",
        help="show problems, and what to do about them",
        description=__doc__,
        epilog=_EXAMPLES,
    )
    add_master_context(parser)
    parser.add_argument(
        "--kubeconfig", metavar="FILE", help="kubeconfig of a seed, to check the seed too; not set: only the master"
    )
    parser.add_argument(
        "--seed-context", metavar="CONTEXT", help="context of the seed in that file; not set: its current context"
    )
    add_namespace(parser)
    add_output(parser, "text", "json", "yaml")
    parser.set_defaults(run=run)


async def run(options: argparse.Namespace) -> Printed:
    report, now = Report(), datetime.now(UTC)
    async with connected(None, options.context, "master") as master:
        await _master(report, master, options.namespace, now)
    if options.kubeconfig is not None:
        async with connected(options.kubeconfig, options.seed_context, "seed") as seed:
            await on_seed.look(report, seed, options.namespace, now)
    if not report.looked_at:
        raise Failed(f"nothing can be checked: {'; '.join(report.not_checked)}")
    status = Failed.status if report.findings else STALE if report.not_checked else DONE
    if options.output != "text":
        found: dict[str, object] = {"items": report.findings, "notChecked": report.not_checked}
        return Printed(reading.written(found, options.output), status)
    return Printed(text(report, terminal.width()), status)


async def _master(report: Report, master: Cluster, namespace: str, now: datetime) -> None:
    async with report.part("the leader of the master"):
        report.findings += signs.leader(MASTER, await reading.one(master, LEASES, MASTER, namespace), now)
    held = None
    async with report.part("what seeds hold"):
        held = await on_master.held(master, namespace)
    async with report.part("seeds"):
        seeds = await reading.every(master, SEEDS)
        report.looked_at.append(count(len(seeds), "seed"))
        report.findings += findings.of_seeds(seeds, held)
        async with report.part("tokens of seeds"):
            report.findings += signs.tokens(await _kubeconfigs(master, namespace, seeds), now)
    async with report.part("quotas"):
        quotas = await reading.every(master, MASTER_QUOTAS)
        report.looked_at.append(count(len(quotas), "quota"))
        report.findings += findings.of_quotas(quotas)


async def _kubeconfigs(master: Cluster, namespace: str, seeds: Sequence[Seed]) -> dict[str, str]:
    """By seed. One that is not there or cannot be read makes the Seed unconnected, which its conditions say."""
    found = {}
    for seed in seeds:
        reference = seed.spec.kubeconfig_secret_ref
        if reference is None or seed.spec.state == "Lost":
            continue
        secret = await reading.one(master, SECRETS, reference.name, namespace)
        try:
            found[seed.metadata.name] = kubeconfig_text(secret, namespace, reference)
        except InvalidKubeconfig:
            continue
    return found
