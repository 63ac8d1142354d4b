"""The machine types of a project's user clusters: what agents answer, in one list over all seeds. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Final

from msgspec import Meta

from common.api.preview_pages import MachineTypesPage
from common.quota import resources
from master.apiserver.serializers import AnswerBody

MOST: Final = 2000


class MachineType(AnswerBody, kw_only=True):
    """`resources`: what one Machine of it uses. `unknown`: what it uses in an amount that the type does not tell, and
    why. `place`: where its cloud sells it. `seeds`: those that say so."""

    name: str
    provider: str
    place: str
    resources: dict[str, str]
    unknown: dict[str, str]
    seeds: list[str]


class MachineTypes(AnswerBody, kw_only=True):
    """By name and place. `more`: there are others; ask for one by its name. `notAsked`: why no seed, or not each one,
    was asked."""

    items: Annotated[list[MachineType], Meta(max_length=MOST)]
    more: bool
    not_asked: str


def together(pages: Mapping[str, Sequence[MachineTypesPage]]) -> tuple[list[MachineType], bool]:
    """And whether there are more. Two seeds that know other sizes of one type are two lines."""
    found: dict[tuple[object, ...], MachineType] = {}
    for seed, of_agents in sorted(pages.items()):
        for each in (each for page in of_agents for each in page.items):
            size = resources.render(resources.parse(each.resources))
            key = (each.name, each.place, each.provider, *sorted(size.items()), *sorted(each.unknown.items()))
            line = found.setdefault(
                key,
                MachineType(
                    name=each.name,
                    provider=each.provider,
                    place=each.place,
                    resources=size,
                    unknown=dict(each.unknown),
                    seeds=[],
                ),
            )
            if seed not in line.seeds:
                line.seeds.append(seed)
    lines = [found[key] for key in sorted(found, key=lambda key: [str(part) for part in key])]
    more = len(lines) > MOST or any(page.more for of_agents in pages.values() for page in of_agents)
    return lines[:MOST], more
