"""Which namespaces a quota's selector picks. Pure.

The namespaces that a cluster needs to run are exempt: a webhook that is asked about their pods, and is not there, would
keep the cluster from coming up.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from common.api import label_selector
from common.api.cluster_identity import KUBE_SYSTEM
from common.api.label_selector import LabelSelector

METADATA_NAME = "kubernetes.io/metadata.name"
"""The label that API servers give each namespace: its name."""


class Exempt(msgspec.Struct, frozen=True):
    """Namespaces that no selector picks. `unless_named`: but one that says their names.

    In a user cluster, a tenant could run pods in kube-system to escape its quotas, and nothing that SeedQuota needs is
    there. On the seed, no quota may keep SeedQuota itself from starting.
    """

    names: frozenset[str] = frozenset()
    unless_named: bool = False

    def of(self, selector: LabelSelector) -> frozenset[str]:
        return frozenset() if self.unless_named and picked_by_name(selector) else self.names


EVERY: Final = LabelSelector()
"""Picks all namespaces that are not exempt."""

OF_USER_CLUSTERS: Final = Exempt(frozenset({KUBE_SYSTEM}), unless_named=True)


def picks(selector: LabelSelector, labels: Mapping[str, str], exempt: Exempt) -> bool:
    return label_selector.matches(selector, labels) and labels.get(METADATA_NAME) not in exempt.of(selector)


def picked_by_name(selector: LabelSelector) -> frozenset[str]:
    """The only namespaces that it can pick, where it says their names; otherwise nothing."""
    found = {selector.match_labels[METADATA_NAME]} if METADATA_NAME in selector.match_labels else set()
    for requirement in selector.match_expressions:
        if requirement.key == METADATA_NAME and requirement.operator == "In":
            found.update(requirement.values)
    return frozenset(found)


class ByLabel:
    """Selectors by one of the labels that each asks for, so that those of other owners cost nothing to look up."""

    def __init__(self, selectors: Iterable[tuple[str, LabelSelector]]) -> None:
        """By name."""
        self._asking: dict[tuple[str, str], list[str]] = {}
        self._others: list[str] = []  # they ask for none, or for one of several values
        for name, selector in selectors:
            asked = min(selector.match_labels.items(), default=None)
            if asked is None:
                self._others.append(name)
            else:
                self._asking.setdefault(asked, []).append(name)

    def candidates(self, labels: Mapping[str, str]) -> list[str]:
        """All that may pick a namespace with these labels, each once."""
        found = list(self._others)
        for label in labels.items():
            found.extend(self._asking.get(label, ()))
        return found
