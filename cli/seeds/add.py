"""Adds a seed. On the seed, the command creates an account for the master, with its rights and a token. On the master,
it creates the Secret with that token, and the Seed. The master renews the token. Run the command again to replace the
token, or to update the rights after an upgrade."""

from __future__ import annotations

import argparse
import base64
from collections.abc import Mapping
from pathlib import Path

import yaml

from cli.connection import connected_to
from cli.outcome import Denied, Failed
from cli.seeds import on_master, rights
from cli.seeds.on_master import Held
from common.api.cluster_identity import KUBE_SYSTEM, NAMESPACES, is_another
from common.api.core import SECRETS
from common.api.labels import GROUP, MANAGED_BY_LABEL, VERSION
from common.api.types import RESOURCE_QUOTAS, SEED_COPIES, SEEDS, SecretRef, Seed
from common.kube.client import service_account
from common.kube.client.api_client import Cluster
from common.kube.client.errors import NotFound
from common.kube.client.kubeconfig import InvalidKubeconfig, server_of

KEY = "kubeconfig"


async def run(options: argparse.Namespace) -> str:
    name, namespace = options.name, options.namespace
    try:
        server = await server_of(Path(options.seed_kubeconfig), options.seed_context)
    except InvalidKubeconfig as error:
        raise Failed(f"seed: {options.seed_kubeconfig}: {error}") from None
    async with (
        connected_to(options.seed_kubeconfig, options.seed_context, "seed", options) as seed,
        on_master.master_of(options) as master,
    ):
        reference = await _may_be_added(master, seed, name, namespace)
        await rights.apply(seed, namespace)
        token = await service_account.request_token(
            seed, namespace, rights.ACCOUNT, seconds=service_account.LIFE, timeout=seed.timeout
        )
        secret = {
            "metadata": {"name": reference.name, "namespace": namespace, "labels": {MANAGED_BY_LABEL: "seedquota"}},
            "data": {reference.key: base64.b64encode(_kubeconfig(name, server, token).encode()).decode()},
        }
        await master.apply(SECRETS, secret, rights.MANAGER)
        spec = {"kubeconfigSecretRef": {"name": reference.name, "key": reference.key}}
        await master.apply(SEEDS, {"metadata": {"name": name}, "spec": spec}, rights.MANAGER)
    return (
        f"seed {name} is added: {server['server']}, by the token in secret {namespace}/{reference.name}, which the "
        f"master renews\nwait for it with: kubectl wait --for=condition=Ready sqseed/{name} --timeout=60s"
    )


async def _may_be_added(master: Cluster, seed: Cluster, name: str, namespace: str) -> SecretRef:
    """Where its kubeconfig belongs. Nothing is written before. Raises Failed, Denied."""
    uid = (await seed.get(NAMESPACES, KUBE_SYSTEM)).metadata.uid
    if uid == (await master.get(NAMESPACES, KUBE_SYSTEM)).metadata.uid:
        raise Denied(
            "the kubeconfig leads to the master's own cluster: apply a Seed with spec.inCluster: true instead, or name "
            "the master's context with --context"
        )
    seeds = await on_master.all_seeds(master)
    known = next((found for found in seeds if found.metadata.name == name), None)
    for other in seeds:
        if other.metadata.name != name and other.status.cluster_uid == uid and other.spec.state != "Lost":
            raise Denied(f"this cluster is already the seed {other.metadata.name}")
    reference = _reference(known, name, uid)
    if known is None:
        await _holds_what_is_held(seed, name, (await on_master.held(master, namespace)).get(name, {}))
    try:
        secret = await master.get(SECRETS, reference.name, namespace)
    except NotFound:
        secret = None
    if secret is not None and secret.metadata.labels.get(MANAGED_BY_LABEL) != "seedquota":
        raise Denied(
            f"secret {namespace}/{reference.name} was not made by this command; to let it take the Secret over: "
            f"kubectl -n {namespace} label secret {reference.name} {MANAGED_BY_LABEL}=seedquota"
        )
    await _is_installed(seed, namespace)
    return reference


async def _holds_what_is_held(seed: Cluster, name: str, held: Mapping[str, Held]) -> None:
    """Of a Seed that was deleted while it held something nobody knows the cluster any more. Its accounts are there, and
    admit by what they hold. Raises Denied."""
    known = {quota: each for quota, each in held.items() if each.known}
    for quota, each in known.items():
        copy = await seed.find(RESOURCE_QUOTAS, quota)
        if copy is not None and copy.status.grant.account == each.account:
            return
    if known:
        lines = [
            f"a Seed {name} was deleted, and its cluster still holds:",
            *on_master.lines(known),
            "This cluster is another one, so both would admit by that. Add it by another name. To free what the former "
            f"one holds, if its machines are gone, create the Seed {name} with the state Lost.",
        ]
        raise Denied("\n".join(lines))


def _reference(known: Seed | None, name: str, uid: str) -> SecretRef:
    if known is None:
        return SecretRef(name=name, key=KEY)
    if known.spec.state == "Lost":
        raise Denied(f"seed {name} is Lost: remove it with `seedquota seed remove {name}` and add it by another name")
    if is_another(known, known.status.cluster_uid, uid):
        raise Denied(
            f"the kubeconfig leads to another cluster than seed {name} ({known.status.cluster_uid}): its namespace "
            f"kube-system has uid {uid}. If its machines are gone and this one replaces it: kubectl annotate "
            f"--overwrite sqseed/{name} seedquota.io/accept-cluster={uid}"
        )
    if known.spec.kubeconfig_secret_ref is None:
        raise Denied(f"seed {name} is the master's own cluster (spec.inCluster)")
    return known.spec.kubeconfig_secret_ref


async def _is_installed(seed: Cluster, namespace: str) -> None:
    try:
        await seed.list(SEED_COPIES, limit=1)
    except NotFound:
        raise Failed(f"{seed.server} has no CRDs of {GROUP}/{VERSION}: install SeedQuota on the seed first") from None
    try:
        await seed.get(NAMESPACES, namespace)
    except NotFound:
        raise Failed(
            f"{seed.server} has no namespace {namespace}: install SeedQuota on the seed first, or name its namespace "
            "with -n"
        ) from None


def _kubeconfig(name: str, server: dict[str, str], token: str) -> str:
    user = rights.ACCOUNT
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": name, "cluster": server}],
        "users": [{"name": user, "user": {"token": token}}],
        "contexts": [{"name": name, "context": {"cluster": name, "user": user}}],
        "current-context": name,
    }
    return yaml.safe_dump(config, sort_keys=False)
