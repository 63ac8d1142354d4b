"""The master's metrics, computed when Prometheus asks: cores and bytes as floats, only here at the edge."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from common.api.condition_metrics import conditions_of
from common.api.types import Condition
from common.quota import resources
from common.quota.quantity import UNIT
from common.runtime.unexpected import contained
from master.quotas.controller import Quotas
from master.seeds.registry import Seeds

_LABELS = ("quota", "subject_kind", "subject", "resource", "unit")


class MasterMetrics(Collector):
    """`present` gives what this replica leads, or None while it does not lead: then there is nothing to say."""

    def __init__(self, present: Callable[[], tuple[Seeds, Quotas] | None]) -> None:
        self._present = present

    def collect(self) -> Iterator[GaugeMetricFamily]:
        limit = GaugeMetricFamily("seedquota_limit", "The limit in force.", labels=_LABELS)
        used = GaugeMetricFamily("seedquota_used", "Counted and reserved, over all seeds.", labels=_LABELS)
        reserved = GaugeMetricFamily(
            "seedquota_reserved", "Part of what is used: admitted and not yet counted.", labels=_LABELS
        )
        overshoot = GaugeMetricFamily(
            "seedquota_overshoot", "How far use is over the limit.", labels=("quota", "resource", "unit")
        )
        contact = GaugeMetricFamily(
            "seedquota_seed_last_contact_timestamp_seconds",
            "When the seed last answered the master, in Unix time.",
            labels=("seed",),
        )
        connected = GaugeMetricFamily(
            "seedquota_seed_connected", "Whether the master is connected to the seed.", labels=("seed",)
        )
        token = GaugeMetricFamily(
            "seedquota_seed_token_expiry_timestamp_seconds",
            "When the token by which the master reaches the seed ends, in Unix time.",
            labels=("seed",),
        )
        of_quotas: list[tuple[str, list[Condition]]] = []
        of_seeds: list[tuple[str, list[Condition]]] = []
        present = self._present()
        if present is not None:
            seeds, quotas = present
            _add_quotas(quotas, limit, used, reserved, overshoot)
            of_quotas = [(name, state.shown.conditions) for name, state in list(quotas.states.items())]
            of_seeds = [(link.name, link.seed.status.conditions) for link in list(seeds.links.values())]
            began = time.time() - time.monotonic()
            for link in list(seeds.present()):
                connected.add_metric((link.name,), float(link.connected))
                if link.last_contact is not None:
                    contact.add_metric((link.name,), began + link.last_contact)
                if link.renewal.ends is not None:
                    token.add_metric((link.name,), link.renewal.ends)
        yield from (limit, used, reserved, overshoot, contact, connected, token)
        yield conditions_of("seedquota_quota_condition", "quota", of_quotas)
        yield conditions_of("seedquota_seed_condition", "seed", of_seeds)


def _add_quotas(
    quotas: Quotas,
    limit: GaugeMetricFamily,
    used: GaugeMetricFamily,
    reserved: GaugeMetricFamily,
    overshoot: GaugeMetricFamily,
) -> None:
    for name, state in list(quotas.states.items()):
        view = state.view
        if view is None:
            continue
        with contained("metrics", name):
            subject = view.spec.subject
            present = [seed for seed in view.seeds if not seed.lost]
            use = resources.total(seed.use for seed in present)
            waiting = resources.total(seed.reserved for seed in present)
            for resource, most in view.limits.items():
                unit = resources.unit(resource)
                labels = (name, subject.kind, subject.name, resource, unit)
                limit.add_metric(labels, most / UNIT)
                used.add_metric(labels, use.get(resource, 0) / UNIT)
                reserved.add_metric(labels, waiting.get(resource, 0) / UNIT)
                overshoot.add_metric((name, resource, unit), max(use.get(resource, 0) - most, 0) / UNIT)
