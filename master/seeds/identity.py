"""Which cluster a Seed's kubeconfig leads to, known by the uid of that cluster's namespace kube-system. Pure.

The first one is recorded in the status of the Seed. What a seed holds was handed to that cluster: where its kubeconfig
leads to another one later, nothing is written there and nothing is believed before an admin says that it takes the
place of the former. A cluster belongs to one Seed: of several that lead to it, to the one that was made first.
"""

from __future__ import annotations

from collections.abc import Iterable

from common.api.cluster_identity import CHANGED, DUPLICATE, KUBE_SYSTEM, is_another, order
from common.api.types import ACCEPT_CLUSTER_ANNOTATION, Seed
from common.kube.client.errors import ApiError


class Refused(ApiError):
    """The kubeconfig leads to a cluster that is not this Seed's. `reason` is CHANGED or DUPLICATE."""


def refusal(seed: Seed, recorded: str, uid: str, others: Iterable[tuple[Seed, str]]) -> Refused | None:
    """Why the cluster with this uid is not the Seed's, if it is not.

    `recorded` is what is recorded for the Seed, empty for nothing yet; `others` are the other Seeds that are not Lost,
    each with what is recorded for it.
    """
    name = seed.metadata.name
    if is_another(seed, recorded, uid):
        return Refused(
            409,
            CHANGED,
            f"the kubeconfig leads to another cluster than before: its namespace {KUBE_SYSTEM} has uid {uid}, not "
            f"{recorded}; nothing is written there, and what the seed held stays held. Correct the Secret; or, if this "
            "cluster takes the place of the former one and the machines of that are gone: kubectl annotate --overwrite "
            f"sqseed/{name} {ACCEPT_CLUSTER_ANNOTATION}={uid}",
        )
    earlier = [other for other, its in others if its == uid and order(other) < order(seed)]
    if not earlier:
        return None
    first = min(earlier, key=order).metadata.name
    return Refused(
        409,
        DUPLICATE,
        f"the kubeconfig leads to the cluster of Seed {first}, which was made earlier: its namespace {KUBE_SYSTEM} has "
        f"uid {uid}; nothing is written there by this Seed. Correct the Secret, or delete one of the two Seeds",
    )
