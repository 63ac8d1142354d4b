"""Hetzner Cloud: the server type's cores, memory (GiB, may be fractional) and local disk (GiB).

Fields: k8c.io/machine-controller/sdk/cloudprovider/hetzner/types.go, RawConfig;
pkg/cloudprovider/provider/hetzner/provider.go, getConfig, has their names in the environment. It attaches no volumes,
and takes `serverType` for a name or, if it is a number, for an id.
Answers: https://docs.hetzner.cloud/reference/cloud#server-types. Deprecated types stay listed: Machines of them exist.
"""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from typing import Annotated

import msgspec

from common.quota.quantity import UNIT
from common.runtime.pieces import in_pieces
from seed.providers.decimals import gibibytes
from seed.providers.entries import Entries
from seed.providers.flavour import Catalogue, Cloud, Flavour, Lookup, Place, Query, Settings
from seed.providers.pages import listed_pages
from seed.providers.size import GIB
from seed.providers.spec import LARGEST, Spec

NAME = "hetzner"

_HOST = "api.hetzner.cloud"
PER_PAGE = 50  # the most that is documented

_Whole = Annotated[int, msgspec.Meta(gt=0, le=LARGEST)]


def size(spec: Spec) -> Lookup:
    return Lookup(
        provider=NAME,
        flavour=spec.word("serverType", "a server type"),
        where={},
        credentials={"token": spec.setting("token", "HZ_TOKEN")},
    )


def place(where: Settings) -> Place:
    """The same everywhere: a type has one size, whatever the location."""
    return Place(NAME, _HOST)


class _Type(msgspec.Struct):
    id: int
    name: str
    cores: _Whole
    memory: Decimal
    disk: _Whole


class _Pagination(msgspec.Struct):
    next_page: int | None = None


class _Meta(msgspec.Struct):
    pagination: _Pagination


class _Answer(msgspec.Struct):
    server_types: list[msgspec.Raw]
    meta: _Meta


async def fetch(query: Query) -> Catalogue:
    headers = {"Authorization": f"Bearer {query.credentials['token']}"}
    entries = Entries()
    url, parameters = f"https://{_HOST}/v1/server_types", {"page": "1", "per_page": str(PER_PAGE)}
    async for page in listed_pages(query, url, _Answer, _following, parameters=parameters, headers=headers):
        async for kind in in_pieces(page.server_types):
            entries.add_json(kind, ("name", "id"), _Type, _flavour)
    return entries.catalogue()


def _following(page: _Answer, _number: int) -> Mapping[str, str] | None:
    following = page.meta.pagination.next_page
    return None if following is None else {"page": str(following)}


def _flavour(kind: _Type) -> Flavour:
    return Flavour(cpu=kind.cores * UNIT, memory=gibibytes(kind.memory), storage=kind.disk * GIB * UNIT, name=kind.name)


CLOUD = Cloud(place=place, fetch=fetch, lists=True, least_spec=lambda _region: {"serverType": "x"})
