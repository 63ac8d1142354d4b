"""What changes is told to those who follow it, as server-sent events: the names of objects, within half a second.

A stream is of one project, of one organization, or of everything. Which objects it may name is asked again every few
seconds, as for any other request. What changes meanwhile is told once. Whoever does not read is cut off by the server
(WRITE_SECONDS), and holds no more than MAX_NAMES names until then.
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import msgspec
from aiohttp import web

from common.api.types import Allocation
from common.kube.client.meta import Object
from common.kube.controller.store import Change
from common.runtime.waiting import within
from common.server.access_reviews import User
from master.apiserver.auth import LIST_QUOTAS, Right, Rights
from master.apiserver.problem import ProblemError, invalid
from master.apiserver.visibility import Visibility
from master.cache.allocations import AllocationCache
from master.cache.informers import Caches, subject_of
from master.cache.objects import MasterQuota

TOGETHER_SECONDS = 0.05  # after a change, in which others come that belong to it ...
PAUSE_SECONDS = 0.3  # ... and between two events: what changes meanwhile is told together
BEAT_SECONDS = 10.0  # between two proofs that somebody may still follow; a comment is sent with each
MAX_NAMES = 200  # in one event; beyond, it says that more have changed
MAX_STREAMS = 512
MAX_STREAMS_OF_ONE = 16  # user

EVERYTHING = ("resourcequotas", "projects", "organizations", "quotasettings")

Still = Callable[[], Awaitable[None]]
"""Raises ProblemError where whoever follows may do so no more."""


class Changed(msgspec.Struct, frozen=True, order=True):
    """An object that was made, changed or deleted. Allocations have no name: whoever sees a quota need not see them."""

    resource: str
    name: str


class ChangeEvent(msgspec.Struct):
    """`more`: others have changed as well."""

    changed: list[Changed]
    more: bool = False


@dataclass(eq=False)
class _Stream:
    """`subject`: kind and name; empty: everything. `seeds`: it may name them."""

    subject: tuple[str, str]
    seeds: bool = False
    pending: set[Changed] = field(default_factory=set)
    more: bool = False
    woken: asyncio.Event = field(default_factory=asyncio.Event)

    def tell(self, changed: Changed) -> None:
        if changed.resource == "seeds" and not self.seeds:
            return
        if len(self.pending) < MAX_NAMES:
            self.pending.add(changed)
        elif changed not in self.pending:
            self.more = True
        self.woken.set()

    def take(self) -> bytes:
        told = ChangeEvent(sorted(self.pending), self.more)
        self.pending, self.more = set(), False
        self.woken.clear()
        return b"event: change\ndata: " + msgspec.json.encode(told) + b"\n\n"


class Events:
    def __init__(self, caches: Caches, allocations: AllocationCache, rights: Rights) -> None:
        self._rights = rights
        self._visibility = Visibility(caches, rights)
        self._streams: dict[tuple[str, str], set[_Stream]] = {}
        self._of: Counter[str] = Counter()
        self._ended = False
        caches.listen(self._changed)
        allocations.listen(self._allocated)

    def end(self) -> None:
        """All streams, so that those who follow ask another replica."""
        self._ended = True
        for streams in self._streams.values():
            for stream in streams:
                stream.woken.set()

    def stream(self, project: str, organization: str) -> _Stream:
        """Raises ProblemError."""
        if project and organization:
            raise invalid("", "name either a project or an organization, or nothing for all")
        return _Stream(
            ("project", project) if project else ("organization", organization) if organization else ("", "")
        )

    @contextmanager
    def follow(self, user: User, stream: _Stream) -> Iterator[None]:
        """Within it the stream has what changes. Raises ProblemError where too many are followed."""
        if self._of[user.username] >= MAX_STREAMS_OF_ONE:
            raise ProblemError(429, f"you follow {MAX_STREAMS_OF_ONE} times already")
        if self._of.total() >= MAX_STREAMS:
            raise ProblemError(503, "too many follow")
        streams = self._streams.setdefault(stream.subject, set())
        streams.add(stream)
        self._of[user.username] += 1
        try:
            yield
        finally:
            streams.discard(stream)
            if not streams:
                self._streams.pop(stream.subject, None)
            self._of[user.username] -= 1
            if not self._of[user.username]:
                del self._of[user.username]

    async def prove(self, user: User, stream: _Stream) -> None:
        """Raises ProblemError where the user may not follow this."""
        kind, name = stream.subject
        if kind == "project":
            await self._visibility.project(user, name)
        elif kind == "organization":
            await self._visibility.organization(user, name)
        else:
            await self._rights.require(user, LIST_QUOTAS)
            stream.seeds = await self._rights.has(user, Right(verb="list", resource="seeds"))

    async def send(self, stream: _Stream, response: web.StreamResponse, still: Still) -> None:
        """Until whoever follows has gone, may follow no more, or all streams end."""
        loop = asyncio.get_running_loop()
        proven, told = loop.time(), -math.inf
        await response.write(b": what changes from now on\n\n")
        while not self._ended:
            await within(stream.woken, max(proven + BEAT_SECONDS - loop.time(), 0.0))
            if loop.time() >= proven + BEAT_SECONDS:
                try:
                    await still()
                except ProblemError:
                    return
                proven = loop.time()
                await response.write(b": still here\n\n")
            if stream.woken.is_set() and not self._ended:
                await asyncio.sleep(max(TOGETHER_SECONDS, told + PAUSE_SECONDS - loop.time()))
                told = loop.time()
                await response.write(stream.take())

    def _changed(self, resource: str, change: Change[Object]) -> None:
        if not self._streams:
            return
        subjects = set()
        for found in (change.old, change.new):
            if found is None:
                continue
            changed = Changed(resource, found.metadata.name)
            if resource in EVERYTHING or resource == "seeds":
                subjects.add(("", ""))
            if isinstance(found, MasterQuota):
                subjects.add(subject_of(found))
            elif resource in ("projects", "organizations"):
                subjects.add((resource.removesuffix("s"), found.metadata.name))
        for subject in subjects:
            for stream in self._streams.get(subject, ()):
                stream.tell(changed)
        if isinstance(change.old, MasterQuota | None) and isinstance(change.new, MasterQuota | None):
            for project in _guaranteed_otherwise(change.old, change.new):
                for stream in self._streams.get(("project", project), ()):
                    stream.tell(Changed(resource, ""))  # it may not be told the name of its organization's quota

    def _allocated(self, found: Allocation) -> None:
        for subject in (("organization", found.spec.organization), ("project", found.spec.project)):
            for stream in self._streams.get(subject, ()):
                stream.tell(Changed("allocations", ""))


def _guaranteed_otherwise(old: MasterQuota | None, new: MasterQuota | None) -> set[str]:
    """The projects to which another amount is guaranteed than before."""
    before, after = (
        {each.project: each.hard for each in found.status.guarantees} if found is not None else {}
        for found in (old, new)
    )
    return {project for project in before.keys() | after.keys() if before.get(project) != after.get(project)}
