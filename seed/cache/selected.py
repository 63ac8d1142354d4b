"""Which namespaces a quota's selector picks. Pure.

The namespaces that a cluster needs to run are picked only by name: a webhook that is asked about their pods, and is not
there, would keep the cluster from coming up.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from common.api import label_selector
from common.api.label_selector import LabelSelector

METADATA_NAME = "kubernetes.io/metadata.name"
"""The label that API servers give each namespace: its name."""


def picks(selector: LabelSelector, labels: Mapping[str, str], protected: Collection[str]) -> bool:
    """`protected`: the names of such namespaces."""
    if not label_selector.matches(selector, labels):
        return False
    return labels.get(METADATA_NAME) not in protected or bool(picked_by_name(selector))


def picked_by_name(selector: LabelSelector) -> frozenset[str]:
    """The only namespaces that it can pick, where it says their names; otherwise nothing."""
    found = {selector.match_labels[METADATA_NAME]} if METADATA_NAME in selector.match_labels else set()
    for requirement in selector.match_expressions:
        if requirement.key == METADATA_NAME and requirement.operator == "In":
            found.update(requirement.values)
    return frozenset(found)
