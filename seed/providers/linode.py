"""Linode: the type's vCPUs, memory (MiB) and disk (MiB) from `GET /v4/linode/types`, which asks for no credentials.

Fields: k8c.io/machine-controller/sdk/cloudprovider/linode/types.go, RawConfig;
pkg/cloudprovider/provider/linode/provider.go attaches no volumes. GPUs are NVIDIA's.
Answers: https://techdocs.akamai.com/linode-api/reference/get-linode-types
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

import msgspec

from common.quota.quantity import UNIT
from common.runtime.pieces import in_pieces
from seed.providers.entries import Entries
from seed.providers.flavour import Catalogue, Cloud, Flavour, Lookup, Place, Query, Settings
from seed.providers.pages import listed_pages
from seed.providers.size import MIB
from seed.providers.spec import LARGEST, Spec

NAME = "linode"

_HOST = "api.linode.com"
PER_PAGE = 500  # the most that is documented

_Whole = Annotated[int, msgspec.Meta(gt=0, le=LARGEST)]


def size(spec: Spec) -> Lookup:
    return Lookup(provider=NAME, flavour=spec.word("type", "a type"), where={}, credentials={})


def place(where: Settings) -> Place:
    """The same everywhere: a type has one size, whatever the region."""
    return Place(NAME, _HOST)


class _Type(msgspec.Struct):
    vcpus: _Whole
    memory: _Whole
    disk: _Whole
    gpus: Annotated[int, msgspec.Meta(ge=0, le=1024)] = 0


class _Answer(msgspec.Struct):
    data: list[msgspec.Raw]
    pages: int


async def fetch(query: Query) -> Catalogue:
    entries = Entries()
    url, parameters = f"https://{_HOST}/v4/linode/types", {"page": "1", "page_size": str(PER_PAGE)}
    async for page in listed_pages(query, url, _Answer, _following, parameters=parameters):
        async for kind in in_pieces(page.data):
            entries.add_json(kind, ("id",), _Type, _flavour)
    return entries.catalogue()


def _following(page: _Answer, number: int) -> Mapping[str, str] | None:
    return {"page": str(number + 1)} if number < page.pages else None


def _flavour(kind: _Type) -> Flavour:
    return Flavour(
        cpu=kind.vcpus * UNIT,
        memory=kind.memory * MIB * UNIT,
        storage=kind.disk * MIB * UNIT,
        devices={"nvidia.com/gpu": kind.gpus * UNIT} if kind.gpus else {},
    )


CLOUD = Cloud(place=place, fetch=fetch, lists=True, least_spec=lambda _region: {"type": "x"})
