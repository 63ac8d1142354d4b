"""Conditions as metrics, for those who graph them and alert on them."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client.core import GaugeMetricFamily

from common.api.types import Condition


def conditions_of(metric: str, label: str, objects: Iterable[tuple[str, Iterable[Condition]]]) -> GaugeMetricFamily:
    """A sample for each condition. `label` has the name of the object."""
    family = GaugeMetricFamily(
        metric,
        "Always 1; the labels say which status each condition has, and for which reason.",
        labels=[label, "condition", "status", "reason"],
    )
    for name, conditions in objects:
        for found in conditions:
            family.add_metric([name, found.type, found.status, found.reason], 1)
    return family
