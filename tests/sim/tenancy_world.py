"""The simulated world with quotas of projects and of their organization over namespaces, which a label gives to them.

The quotas of a project and of the organization count each namespace of the project, in every cluster: each creation in
it is decided by both.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from common.api.labels import PROJECT_LABEL
from seed.admission.refusal import Refusal
from tests.sim.checks import Thing, Wish
from tests.sim.namespace_world import WITHOUT, NamespaceWorld
from tests.sim.namespaces import NamespacedCluster
from tests.sim.servers import OF_TENANTS, PARTICIPANT, TENANTS, Source
from tests.sim.world import CROWDED, Site

X, Y = TENANTS
OF_OTHERS = (*CROWDED, "in this cluster at once", "did not appear")  # in refusals


class TenancyWorld(NamespaceWorld):
    labels: Sequence[tuple[str, ...]] = ((X,), (X,), (Y,), (Y,), ())
    alone = ""  # a namespace whose project has little that did not appear yet: nothing of others keeps it out

    def _make_quotas(self) -> None:
        for name in WITHOUT:
            self.swarm.rates.pop(name, None)
        self.overlapping = False
        rng = self.rng
        for project in TENANTS:
            self.master.write_project(project, OF_TENANTS)
        for project in (PARTICIPANT, "a"):  # of the clusters themselves
            self.master.write_project(project, "platform")
        units = [rng.randint(2, 8) for _ in TENANTS]
        for project, of_project in zip(TENANTS, units, strict=True):
            if project == X or rng.random() < 0.7:
                self._make_quota(project, project, {"cpu": of_project} | self._elsewhere(of_project))
        limits = {"cpu": rng.randint(max(units), sum(units))}
        if rng.random() < 0.5:
            limits["memory"] = 2 * limits["cpu"]
        self._make_quota("all", OF_TENANTS, limits | self._elsewhere(limits["cpu"]))

    def _elsewhere(self, _units: int) -> dict[str, int]:
        """What a quota limits beside what is in namespaces."""
        return {}

    def add_site(self, name: str) -> Site:
        site = super().add_site(name)
        for project, organization in self.master.projects.items():
            site.api.write_project(project, organization)
        return site

    def _picks(self, subject: str, labels: Mapping[str, str]) -> bool:
        project = labels.get(PROJECT_LABEL, "")
        return project in TENANTS if subject == OF_TENANTS else project == subject

    def _check_refusal(self, wish: Wish, no: Refusal) -> None:
        if self.alone and any(words in no.text for words in OF_OTHERS):
            source = self._source(wish.thing)
            if isinstance(source, NamespacedCluster) and source.inside.get(wish.thing.uid) == self.alone:
                self.fail(f"{wish.thing.uid} is refused for what others of its cluster do: {no.text}")
        super()._check_refusal(wish, no)

    def _webhooks(self, source: Source, thing: Thing) -> list[str]:
        """One is called for each namespace of a project."""
        return [""]
