"""\
Removes the webhook configurations of SeedQuota from the seed and from all its user clusters. CRDs, quotas and ledgers
stay. The agents remove them, so the agents must run. They create no configuration again until all agents have ended.
From then on, no quota is enforced there. The status of UserClusters, the Seed and the quotas says so (Uninstalled).
Remove the agents after that.
"""

from __future__ import annotations

import argparse
import asyncio
import secrets
import time

from msgspec.structs import replace

from cli.connection import add_cluster, add_namespace, connected
from cli.outcome import Failed
from cli.terminal import say, seconds
from common.api.labels import UNINSTALL_ANNOTATION, UNINSTALLED_ANNOTATION
from common.kube.client.api_client import Cluster
from common.kube.client.errors import Conflict, NotFound
from common.kube.controller.leader_election import LEASES, SINCE_ANNOTATION, LeaseObject

LEASE = "seedquota-seed"
PAUSE = 0.5  # seconds
ATTEMPTS = 10
SAY_EVERY = 10.0

HELP = "prepare the removal of an installation"
EXAMPLES = """\
examples:
  seedquota uninstall seed --context seed-1
  seedquota uninstall seed --context seed-1 --undo   # enforce again

In a pod without a kubeconfig it is the pod's own cluster. Its ServiceAccount must be allowed to get and update the
Lease seedquota-seed. Exit status: 0 done, 1 failed or something is left.
"""
_BY_HAND = (
    "with the agents gone, delete the configurations labelled app.kubernetes.io/managed-by=seedquota in each cluster "
    "by hand: validatingwebhookconfigurations and mutatingwebhookconfigurations"
)


def declare(parser: argparse.ArgumentParser) -> None:
    what = parser.add_subparsers(metavar="WHAT", required=True)
    seed = what.add_parser(
        "seed",
        help="remove the webhooks of a seed's agents from the seed and its user clusters",
        description=__doc__,
        epilog=EXAMPLES,
    )
    add_cluster(seed, "the seed")
    add_namespace(seed, "of the agents")
    seed.add_argument(
        "--timeout", type=seconds, default=120.0, metavar="DURATION", help="how long to wait [default 2m]"
    )
    seed.add_argument("--undo", action="store_true", help="let the agents create the webhooks again")
    seed.set_defaults(run=run)


async def run(options: argparse.Namespace) -> str:
    async with connected(options, "seed") as seed:
        if options.undo:
            await _ask(seed, options.namespace, "")
            return f"the agents on {seed.server} put their webhooks back within seconds"
        return await _withdraw(seed, options.namespace, time.monotonic() + options.timeout)


async def _withdraw(seed: Cluster, namespace: str, until: float) -> str:
    question = await _ask(seed, namespace, secrets.token_hex(4))
    answered, left, said_at = False, "", time.monotonic()
    while time.monotonic() < until:
        annotations = (await _lease(seed, namespace)).metadata.annotations
        if annotations.get(UNINSTALL_ANNOTATION) != question or not _in_run(annotations, question):
            raise Failed("the agents were started anew, and enforce again: run this again")
        of, _, left = annotations.get(UNINSTALLED_ANNOTATION, "").partition(" ")
        answered = of == question
        if answered and not left:
            return (
                f"no webhook of SeedQuota is left on {seed.server} and in its user clusters: no quota is enforced "
                "there any more. Remove the agents now; --undo enforces again"
            )
        if answered and time.monotonic() - said_at > SAY_EVERY:
            said_at = time.monotonic()
            say(f"waiting: webhooks are still in {left}")
        await asyncio.sleep(PAUSE)
    if not answered:
        raise Failed(f"no agent has answered: none leads, or it is of an older version; {_BY_HAND}")
    raise Failed(
        f"webhooks may be left in {left}: a cluster that cannot be reached keeps them, and refuses Machines once the "
        f"agents are gone. Run this again when it is back, delete its UserCluster, or {_BY_HAND}"
    )


async def _ask(seed: Cluster, namespace: str, number: str) -> str:
    """Writes what is asked of the present run; an empty number takes it back. By `update`, which the agents' own role
    has."""
    for _ in range(ATTEMPTS):
        lease = await _lease(seed, namespace)
        annotations = dict(lease.metadata.annotations)
        annotations.pop(UNINSTALL_ANNOTATION, None)
        question = f"{annotations.get(SINCE_ANNOTATION, '')}.{number}" if number else ""
        if question:
            annotations[UNINSTALL_ANNOTATION] = question
        try:
            await seed.replace(LEASES, replace(lease, metadata=replace(lease.metadata, annotations=annotations)))
        except Conflict:  # a renewal
            continue
        return question
    raise Failed(f"the Lease {namespace}/{LEASE} changes all the time: run this again")


async def _lease(seed: Cluster, namespace: str) -> LeaseObject:
    try:
        return await seed.get(LEASES, LEASE, namespace)
    except NotFound:
        raise Failed(
            f"there is no Lease {namespace}/{LEASE} on {seed.server}: no agent of SeedQuota has run there; -n names "
            f"another namespace. If one did, {_BY_HAND}"
        ) from None


def _in_run(annotations: dict[str, str], question: str) -> bool:
    return question.startswith(f"{annotations.get(SINCE_ANNOTATION, '')}.")
