"""What `doctor` looks at on the master: its leader, seeds, their tokens and what they hold, quotas."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import datetime

import msgspec

from cli import reading
from cli.doctor import findings, signs
from cli.doctor.findings import Place
from cli.doctor.leases import Leases
from cli.doctor.report import Report
from cli.seeds import on_master
from common.api.core import SECRETS, Secret, kubeconfig_text
from common.api.labels import MANAGED_BY_LABEL
from common.api.types import Seed
from common.kube.client.api_client import Cluster
from common.kube.client.kubeconfig import InvalidKubeconfig
from master.cache.objects import MASTER_QUOTAS

MASTER = "seedquota-master"


class _Kubeconfig(msgspec.Struct, frozen=True):
    """Of a Seed's Secret. `added`: `seedquota seed add` made it, and the master renews its token."""

    text: str
    added: bool


async def look(
    report: Report,
    master: Cluster,
    leases: Leases | None,
    seeds: Sequence[Seed] | None,
    named: Sequence[str],
    namespace: str,
    now: datetime,
) -> None:
    """`leases` and `seeds` are None where they cannot be read. `named`: the seeds to look at; none: all of them.
    `namespace`: of the master."""
    if leases is not None:
        report.findings += signs.leader(MASTER, leases.found, now, everywhere=leases.everywhere)
    if seeds is not None:
        await _seeds(report, master, seeds, named, namespace, now)
    async with report.part("quotas"):
        quotas = await reading.every(master, MASTER_QUOTAS)
        report.looked_at["quota"] += len(quotas)
        report.findings += findings.of_quotas(quotas)


async def _seeds(
    report: Report, master: Cluster, seeds: Sequence[Seed], named: Sequence[str], namespace: str, now: datetime
) -> None:
    chosen = [each for each in seeds if not named or each.metadata.name in named]
    held = None
    async with report.part("what seeds hold"):
        held = await on_master.held(master, namespace)
    kubeconfigs: dict[str, _Kubeconfig] = {}
    async with report.part("tokens of seeds"):
        kubeconfigs = await _kubeconfigs(master, namespace, chosen)
    places = {each.metadata.name: _place(each, kubeconfigs.get(each.metadata.name)) for each in chosen}
    report.looked_at["seed"] += len(chosen)
    known = {each.metadata.name for each in seeds}
    report.findings += findings.of_seeds(chosen, held, places, known)
    report.findings += signs.tokens({name: each.text for name, each in kubeconfigs.items()}, places, now)


async def _kubeconfigs(master: Cluster, namespace: str, seeds: Sequence[Seed]) -> dict[str, _Kubeconfig]:
    """By seed. One that is not there or cannot be read makes the Seed unconnected, which its conditions say."""
    references = {
        seed.metadata.name: seed.spec.kubeconfig_secret_ref
        for seed in seeds
        if seed.spec.kubeconfig_secret_ref is not None and seed.spec.state != "Lost"
    }
    names = sorted({reference.name for reference in references.values()})
    answers = await asyncio.gather(
        *(reading.one(master, SECRETS, name, namespace) for name in names), return_exceptions=True
    )
    secrets: dict[str, Secret | None] = {}
    for name, answer in zip(names, answers, strict=True):
        if isinstance(answer, BaseException):
            raise answer
        secrets[name] = answer
    found = {}
    for seed, reference in references.items():
        secret = secrets[reference.name]
        try:
            text = kubeconfig_text(secret, namespace, reference)
        except InvalidKubeconfig:
            continue
        added = secret is not None and secret.metadata.labels.get(MANAGED_BY_LABEL) == "seedquota"
        found[seed] = _Kubeconfig(text, added)
    return found


def _place(seed: Seed, kubeconfig: _Kubeconfig | None) -> Place:
    if seed.spec.in_cluster:
        return "in the master's cluster"
    return "" if kubeconfig is None else "added" if kubeconfig.added else "by a kubeconfig of its own"
