"""Removes a seed. The Seed must be Draining and hold nothing, or be Lost. The command deletes the Seed and the Secret
that `seedquota seed add` created. With --seed-kubeconfig, it also removes the master's rights on the seed. That ends
the token."""

from __future__ import annotations

import argparse
import asyncio
import time

from cli.connection import connected_to
from cli.outcome import Denied, Failed
from cli.seeds import on_master, rights
from cli.seeds.states import CONFIRMED, set_state
from common.api import conditions
from common.api.cluster_identity import KUBE_SYSTEM, NAMESPACES
from common.api.core import SECRETS
from common.api.labels import MANAGED_BY_LABEL
from common.api.types import SEEDS, Seed
from common.kube.client.api_client import Cluster
from common.kube.client.errors import NotFound

PATIENCE = 30.0  # seconds in which the master lets go of a seed that is Lost
PAUSE = 0.2


async def run(options: argparse.Namespace) -> str:
    name, namespace = options.name, options.namespace
    async with on_master.master_of(options) as master:
        seed = await on_master.the_seed(master, name)
        if options.seed_kubeconfig is not None:
            await _is_its_cluster(options, seed)
        await _holds_nothing(master, seed, namespace)
        if seed.spec.state != "Lost":  # nothing is granted to it any more, whatever it asks for
            await set_state(master, seed, state="Lost", confirmLost=CONFIRMED)
        await _let_go(master, seed, namespace)
        # The Seed last: if this ends in between, it can be run again.
        if options.seed_kubeconfig is not None:
            async with connected_to(options.seed_kubeconfig, options.seed_context, "seed", options) as cluster:
                await rights.remove(cluster, namespace)
        kept = await _delete_secret(master, seed, namespace)
        await master.delete(SEEDS, name, uid=seed.metadata.uid)
    done = [f"seed {name} is removed", *kept]
    if options.seed_kubeconfig is not None:
        done.append("the master has no rights there any more")
    elif seed.spec.kubeconfig_secret_ref is not None:
        done.append(f"{rights.ACCOUNT} stays on the seed: remove it with `kubectl delete` of charts/rbac/{rights.FILE}")
    return "\n".join(done)


async def _is_its_cluster(options: argparse.Namespace, seed: Seed) -> None:
    async with connected_to(options.seed_kubeconfig, options.seed_context, "seed", options) as cluster:
        uid = (await cluster.get(NAMESPACES, KUBE_SYSTEM)).metadata.uid
    if uid != seed.status.cluster_uid:
        recorded = seed.status.cluster_uid or "none is recorded"
        raise Denied(f"--seed-kubeconfig leads to the cluster {uid}, which is not seed {options.name} ({recorded})")


async def _holds_nothing(master: Cluster, seed: Seed, namespace: str) -> None:
    """Raises Denied."""
    name = seed.metadata.name
    if seed.spec.state == "Lost":
        return
    if seed.spec.state == "Active":
        raise Denied(f"seed {name} is in use: run `seedquota seed drain {name}` first")
    held = (await on_master.held(master, namespace)).get(name, {})
    if held:
        raise Denied(
            "\n".join(
                [
                    f"seed {name} still holds:",
                    *on_master.lines(held),
                    "Delete its Machines, or move them to another seed. If the seed and its machines are gone: "
                    f"`seedquota seed lost {name}`.",
                ]
            )
        )
    if clusters := on_master.clusters_of(seed):
        raise Denied(
            f"seed {name} still has {conditions.count(clusters, 'user cluster')}, whose Machines nobody would count: "
            "delete the UserClusters there, which removes their webhook configurations"
        )


async def _let_go(master: Cluster, seed: Seed, namespace: str) -> None:
    """Waits until no ledger names it. A Seed that is deleted before keeps what it held. Raises Failed."""
    until = time.monotonic() + PATIENCE
    while seed.metadata.name in await on_master.held(master, namespace):
        if time.monotonic() > until:
            raise Failed(
                f"seed {seed.metadata.name} is Lost, and the master has not taken back what it held within "
                f"{PATIENCE:g} s: see that seedquota-master runs, and run this again"
            )
        await asyncio.sleep(PAUSE)


async def _delete_secret(master: Cluster, seed: Seed, namespace: str) -> list[str]:
    """What is said of one that stays."""
    reference = seed.spec.kubeconfig_secret_ref
    if reference is None:
        return []
    try:
        secret = await master.get(SECRETS, reference.name, namespace)
        if secret.metadata.labels.get(MANAGED_BY_LABEL) != "seedquota":
            return [f"secret {namespace}/{reference.name} was not made by `seedquota seed add` and stays"]
        await master.delete(SECRETS, reference.name, namespace, uid=secret.metadata.uid)
    except NotFound:
        pass
    return []
