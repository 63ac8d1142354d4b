"""What the copies on a seed say beside the master's spec. Pure."""

from __future__ import annotations

from common.api.labels import MANAGED_BY_LABEL, MASTER_MANAGER, UID_LABEL
from common.api.types import GENERATION_ANNOTATION, Seed
from common.kube.client.meta import Object
from master.cache.objects import Named


def seed_copy(seed: Seed) -> Named:
    """What the seed itself gets of it: nothing of where its kubeconfig is."""
    spec: dict[str, object] = {"copyOf": seed.metadata.uid, "state": seed.spec.state}
    if seed.spec.namespace_quotas == "Enabled":
        spec["namespaceQuotas"] = "Enabled"
    if seed.spec.state == "Lost":
        spec["confirmLost"] = "its machines are gone"
    return Named(metadata=seed.metadata, spec=spec)


def copy_labels(desired: Object) -> dict[str, str]:
    return {UID_LABEL: desired.metadata.uid, MANAGED_BY_LABEL: MASTER_MANAGER}


def copied_generation(copy: Object) -> int:
    """0 where nobody has said it: then the copy proves nothing."""
    text = copy.metadata.annotations.get(GENERATION_ANNOTATION, "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 19 else 0


def is_shown(actual: Object | None, desired: Object) -> bool:
    """Where the seed is the master's own API server: whether its watch has shown the object as it is."""
    return (
        actual is not None
        and actual.metadata.uid == desired.metadata.uid
        and actual.metadata.generation >= desired.metadata.generation
    )
