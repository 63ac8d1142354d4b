"""How a quota's subject is written in columns. Pure."""

from __future__ import annotations

from common.api import cluster_selector, label_selector, seed_selector
from common.api.types import RESOURCE_QUOTAS_ALONE, Subject

LONGEST = 120  # characters of a subject; a selector may be long


def subject_text(subject: Subject) -> str:
    """`project/alpha`, `namespaces/owner=ann`, or `resourcequotas/owner=ann` of what core ResourceQuotas promise; with
    the clusters and the seeds to which it is narrowed."""
    kind = "resourcequotas" if subject.counts == RESOURCE_QUOTAS_ALONE else subject.kind
    picked = label_selector.text(subject.selector) if subject.selector is not None else subject.name
    text = "/".join(filter(None, (kind, picked)))
    if subject.clusters is not None:
        text += f" in clusters {cluster_selector.text(subject.clusters)}"
    if subject.seeds is not None:
        text += f" on seeds {seed_selector.text(subject.seeds)}"
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 3]}..."
