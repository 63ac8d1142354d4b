"""Which user clusters `subject.clusters` of a quota picks. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from common.api import label_selector
from common.api.label_selector import LabelSelector


class ClusterSelector(LabelSelector, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """Picks clusters that have one of `names`, each `NAME` or `NAMESPACE/NAME`, and meet all the rest. Without `names`,
    any name will do."""

    names: tuple[str, ...] = ()


def picks(selector: ClusterSelector, namespace: str, name: str, labels: Mapping[str, str]) -> bool:
    named = not selector.names or name in selector.names or f"{namespace}/{name}" in selector.names
    return named and label_selector.matches(selector, labels)


def text(selector: ClusterSelector) -> str:
    """For people: `c1,c2`, or what `kubectl -l` takes, or both."""
    return " ".join(filter(None, (",".join(selector.names), label_selector.text(selector))))
