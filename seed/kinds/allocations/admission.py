"""Whether an Allocation may be created or changed: by the quotas of its project and of its organization.

Only those quotas are asked that limit a type of which it takes more: an account that has nothing to do with it does not
keep it from being made.
"""

from __future__ import annotations

import asyncio

from common.api.types import ORGANIZATIONS, PROJECTS, Allocation, Organization, Project
from common.kube.client.api_client import Cluster
from common.kube.client.errors import ApiError
from common.quota.account import Reservation
from common.quota.resources import ResourceList
from seed.admission import denial
from seed.admission.admitter import Admission
from seed.admission.objects import RESERVING
from seed.admission.types import Request, Verdict, refused
from seed.cache.quotas import QuotaCache
from seed.kinds.allocations import evaluator as allocations
from seed.kinds.allocations.organizations import OrganizationCache
from seed.model import source_key
from seed.model.consumer import Consumer
from seed.model.source_key import SourceKey


class AllocationAdmission:
    def __init__(
        self, cluster: Cluster, quota_cache: QuotaCache, organizations: OrganizationCache, admission: Admission
    ) -> None:
        self._cluster = cluster
        self._quota_cache = quota_cache
        self._organizations = organizations
        self._admission = admission

    async def decide(self, new: Allocation, old: Allocation | None, *, dry_run: bool, deadline: float) -> Verdict:
        """`old`: what an update changes."""
        need = allocations.added(new, old)
        if old is not None and not need and new.spec.resources == old.spec.resources:
            return Verdict()
        known = self._quota_cache.catalogue.allocated
        if unknown := allocations.unknown(new, old, known):
            return refused(denial.unknown_types(unknown, sorted(known)))
        if (need or old is None) and (misplaced := await self._misplaced(new, deadline)) is not None:
            return misplaced  # also one that takes more: its Project may be another organization's by now
        if not need:
            return Verdict()
        if (undecided := self._undecided(new, need)) is not None:
            return undecided
        consumer = Consumer(new.spec.project)
        quotas = [quota for quota in self._quota_cache.quotas_of(consumer) if not quota.limits.keys().isdisjoint(need)]
        return await self._admission.decide(self._request(new, old, need, dry_run, deadline), quotas=quotas)

    @staticmethod
    def _request(
        new: Allocation, old: Allocation | None, need: ResourceList, dry_run: bool, deadline: float
    ) -> Request:
        return Request(
            uid=new.metadata.uid,
            consumer=Consumer(new.spec.project),
            need=need,
            reservation=Reservation(
                source=SourceKey.of_project(source_key.ALLOCATIONS, new.spec.project).text,
                object=new.metadata.key,
                amount=need,
                generation=new.metadata.generation if old is not None else 0,
            ),
            dry_run=dry_run,
            deadline=deadline,
            objects="allocations",
        )

    def _undecided(self, new: Allocation, need: ResourceList) -> Verdict | None:
        """What is told while it is not known what limits it."""
        project = new.spec.project
        if not self._quota_cache.in_cluster:
            return _unavailable(project, "this seed is not in the master's own cluster, as far as is known yet")
        if (undecided := self._admission.undecided()) is not None:
            return undecided
        if self._quota_cache.may_belong(Consumer(project), lambda limits: not need.keys().isdisjoint(limits)):
            return _unavailable(project, denial.limits_missing(project))
        return None

    async def _misplaced(self, new: Allocation, deadline: float) -> Verdict | None:
        """Who may write in its namespace may allocate for that organization: so it must be the organization's own, and
        its project one of that organization's. Where caches do not show that, they may be behind: then it is read."""
        spec = new.spec
        known = self._organizations.get(spec.organization)
        if _problem(new, known, self._quota_cache.projects.store.get(spec.project)) is None:
            return None
        try:
            async with asyncio.timeout_at(deadline - RESERVING):
                organization, project = await asyncio.gather(
                    self._cluster.find(ORGANIZATIONS, spec.organization), self._cluster.find(PROJECTS, spec.project)
                )
        except TimeoutError:
            return _unavailable(spec.project, "its Organization and Project could not be read in time")
        except ApiError as error:
            return _unavailable(spec.project, f"its Organization and Project cannot be read: {error.reason}")
        if organization is not None and not organization.status.namespace:
            return _unavailable(spec.project, f"Organization {spec.organization} has no namespace yet")
        problem = _problem(new, organization, project)
        if problem is None:
            return _unavailable(spec.project, "its Organization and Project have not come to this replica yet")
        return refused(denial.misplaced(*problem))


def _problem(new: Allocation, organization: Organization | None, project: Project | None) -> tuple[str, str] | None:
    """Why it may not be where it is, and the field that says so."""
    spec = new.spec
    if organization is None:
        return f"there is no Organization {spec.organization}", "spec.organization"
    if organization.status.namespace != new.metadata.namespace:
        where = organization.status.namespace
        return f"Allocations of Organization {spec.organization} belong in namespace {where}", "metadata.namespace"
    if project is None or project.spec.organization != spec.organization:
        return f"Organization {spec.organization} has no Project {spec.project}", "spec.project"
    return None


def _unavailable(project: str, why: str) -> Verdict:
    return refused(denial.unavailable(f"of project {project}", why))
