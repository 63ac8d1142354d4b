"""Whether a user can see an organization, and a project. Who cannot does not learn whether it exists."""

from __future__ import annotations

from common.server.access_reviews import User
from master.apiserver.auth import Right, Rights
from master.apiserver.problem import ProblemError
from master.cache.informers import Caches, organization_of


class Visibility:
    """Each method raises ProblemError."""

    def __init__(self, caches: Caches, rights: Rights) -> None:
        self._caches = caches
        self._rights = rights

    async def organization(self, user: User, name: str) -> None:
        right = Right(
            verb="get", resource="organizations", subresource="quotas", name=name, namespace=namespace_of(name)
        )
        if not await self._rights.has(user, right) or self._caches.organizations.store.get(name) is None:
            raise ProblemError(404, f"there is no organization {name}, or you cannot see it")

    async def project(self, user: User, name: str) -> str:
        """Its organization, or nothing."""
        project = self._caches.projects.store.get(name)
        organization = organization_of(project) if project is not None else ""
        namespace = namespace_of(organization) if organization else ""
        right = Right(verb="get", resource="projects", subresource="quotas", name=name, namespace=namespace)
        if not await self._rights.has(user, right) or project is None:
            raise ProblemError(404, f"there is no project {name}, or you cannot see it")
        return organization


def namespace_of(organization: str) -> str:
    """In which are its Allocations, and in which rights on it may be bound. The CRD keeps the name free for it."""
    return f"org-{organization}"
