"""The configurations that make a cluster ask us about its Machines.

The validating one admits, and answers what MachineDeployments ask for. The mutating one stamps; a Machine that it
misses is sized all the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import structs

from common.api.types import UserCluster
from seed.machines.machine_controller import FOOTPRINT_ANNOTATION, MACHINES
from seed.registration.configuration import (
    CREATE,
    UPDATE,
    Webhook,
    WebhookConfiguration,
    WebhookServer,
    configuration,
    only_break_glass,
    rule,
    same,
)
from seed.registration.probe import Sample

NAME = "seedquota-machines"
WEBHOOK = "machines.seedquota.io"
STAMPING_WEBHOOK = "stamp.machines.seedquota.io"
SCALE_WEBHOOK = "scale.seedquota.io"


def name_for(cluster: UserCluster) -> str:
    """On a seed that counts its own Machines there is one for each UserCluster of that kind."""
    if cluster.spec.kubeconfig_secret_ref is not None:
        return NAME
    return f"{NAME}.{cluster.metadata.namespace}.{cluster.metadata.name}"


def desired(cluster: UserCluster, server: WebhookServer) -> WebhookConfiguration:
    """What belongs into the cluster. It holds tokens: never log it."""
    own_source = cluster.spec.kubeconfig_secret_ref is None
    selector = {"matchLabels": {"kubernetes.io/metadata.name": cluster.metadata.namespace}} if own_source else {}
    admitting = configuration(
        name_for(cluster),
        WEBHOOK,
        server,
        server.url("machines", cluster.metadata.uid),
        rules=[rule(MACHINES.group, [MACHINES.version], [MACHINES.plural], CREATE, UPDATE)],
        namespaces=selector,
        conditions=changes_size(["providerSpec"]),
    )
    return with_scale_checks(admitting, server.url("scale", cluster.metadata.uid))


def stamping(cluster: UserCluster, server: WebhookServer) -> WebhookConfiguration:
    """The mutating configuration that goes with it, of the same name: for the same Machines, in the same way.

    It is asked about every update: one that changes no size may be the first that it sees of a Machine.
    """
    admitting = desired(cluster, server)
    changed: Webhook = {
        **_advice(admitting.webhooks[0], STAMPING_WEBHOOK, server.url("stamp", cluster.metadata.uid)),
        "reinvocationPolicy": "IfNeeded",  # a webhook after ours may change the spec
    }
    return structs.replace(admitting, webhooks=[changed])


def with_scale_checks(admitting: WebhookConfiguration, url: str) -> WebhookConfiguration:
    """With a webhook for the MachineDeployments and MachineSets of the same API.

    It is advice, which stops nobody while we are down: their Machines are admitted by the other one.
    """
    (webhook,) = admitting.webhooks
    rules = webhook["rules"]
    assert isinstance(rules, list), "as `configuration` writes them"
    resources = ["machinedeployments", "machinedeployments/scale", "machinesets", "machinesets/scale"]
    scale = {**_advice(webhook, SCALE_WEBHOOK, url), "rules": [{**each, "resources": resources} for each in rules]}
    return structs.replace(admitting, webhooks=[webhook, scale])


def _advice(webhook: Webhook, name: str, url: str) -> Webhook:
    client = webhook["clientConfig"]
    assert isinstance(client, dict), "as `configuration` writes it"
    return {
        **only_break_glass(webhook),
        "name": name,
        "clientConfig": {**client, "url": url},
        "failurePolicy": "Ignore",
        "sideEffects": "None",
    }


def changes_size(fields: Sequence[str]) -> Mapping[str, str]:
    """CEL: false for an update that leaves our stamp as it is, and these fields of `spec`, which tell what an object
    costs and who pays. It is not asked about.

    An error would refuse the update, also while we answer. So no expression reads what may be missing or of another
    type, and none costs more for a larger object.
    """
    unchanged = f"{same('spec', fields)} && {same('metadata.annotations', [FOOTPRINT_ANNOTATION])}"
    return {"changes-size": f"!(request.operation == 'UPDATE' && {unchanged})"}


def sample(namespace: str) -> Sample:
    """A canary."""
    provider = {"cloudProvider": "fake", "cloudProviderSpec": {}, "operatingSystem": "ubuntu"}
    spec = {"versions": {"kubelet": "1.30.0"}, "providerSpec": {"value": provider}}
    return Sample(MACHINES, namespace, spec, WEBHOOK)
