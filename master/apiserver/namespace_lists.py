"""The list of what each namespace uses of a quota: what agents answer, in one order over all seeds. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Final, NamedTuple

from msgspec import Meta

from common.api.namespaces_page import MAX_NAMED, MOST, Place, read
from master.apiserver.route import NAME
from master.apiserver.serializers import AnswerBody

SEEDS: Final = 16  # asked for one page
POSITION: Final = rf"{NAME.pattern}(,{NAME.pattern}(/{NAME.pattern})?,[a-z0-9-]{{1,63}})?"

NO_LEADER: Final = "no agent there that leads knows the quota"
NOT_READ: Final = "what its agent answers cannot be read"

Name = Annotated[str, Meta(max_length=317)]
Text = Annotated[str, Meta(max_length=4096)]


class Position(NamedTuple):
    """From where a page goes on: after a place on a seed."""

    seed: str = ""
    after: Place = Place()

    @property
    def text(self) -> str:
        return ",".join((self.seed, *self.after)) if self.after.cluster else self.seed


def position(text: str) -> Position:
    """Of a text as POSITION describes it, or an empty one."""
    seed, _, after = text.partition(",")
    cluster, _, namespace = after.partition(",")
    return Position(seed, Place(cluster, namespace))


class QuotaNamespace(AnswerBody, kw_only=True):
    """`cluster`: namespace and name of the UserCluster; of a seed's own API server the name of the Seed. `project`:
    that the namespace is of, or nothing."""

    seed: Name
    cluster: Name
    namespace: Name
    project: Name
    used: dict[Name, Annotated[str, Meta(max_length=64)]]


class NotAsked(AnswerBody, kw_only=True):
    seed: Name
    why: Text


class QuotaNamespaces(AnswerBody, kw_only=True):
    """`notCurrent`: clusters with their seeds, `SEED: CLUSTER`."""

    items: Annotated[list[QuotaNamespace], Meta(max_length=MOST)]
    not_asked: Annotated[list[NotAsked], Meta(max_length=SEEDS)] = []
    not_current: Annotated[list[Name], Meta(max_length=SEEDS * MAX_NAMED)] = []


def together(
    uid: str,
    begin: Position,
    limit: int,
    seeds: Sequence[str],
    answers: Mapping[str, Sequence[bytes]],
    not_asked: Mapping[str, str],
) -> tuple[QuotaNamespaces, Position | None]:
    """One page of the quota, and from where the next one goes on. `seeds`: in order, from that at which it begins;
    of them, the first SEEDS were asked, each for `limit` namespaces."""
    found = QuotaNamespaces(items=[])
    for number, seed in enumerate(seeds):
        if number == SEEDS or len(found.items) == limit:
            return found, Position(seed)
        after = begin.after if seed == begin.seed else Place()
        pages = [read(content, uid, after, limit) for content in answers.get(seed, ())]
        page = next((each for each in pages if each is not None), None)
        if page is None:
            why = NOT_READ if pages else not_asked.get(seed, NO_LEADER)
            found.not_asked.append(NotAsked(seed=seed, why=why))
            continue
        found.not_current += [f"{seed}: {cluster}" for cluster in page.not_current]
        room = limit - len(found.items)
        for line in page.items[:room]:
            cluster = line.cluster if "/" in line.cluster else seed
            found.items.append(
                QuotaNamespace(
                    seed=seed, cluster=cluster, namespace=line.namespace, project=line.project, used=line.used
                )
            )
        if page.more or len(page.items) > room:
            return found, Position(seed, page.items[:room][-1].place)
    return found, None
