"""Linode: the type's vCPUs, memory (MiB) and disk (MiB) from `GET /v4/linode/types`, which asks for no credentials.

Fields: k8c.io/machine-controller/sdk/cloudprovider/linode/types.go, RawConfig;
pkg/cloudprovider/provider/linode/provider.go attaches no volumes. GPUs are NVIDIA's.
Answers: https://techdocs.akamai.com/linode-api/reference/get-linode-types
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from common.quota.quantity import UNIT
from common.runtime.pieces import in_pieces
from seed.providers.entries import Entries
from seed.providers.flavour import Catalogue, Cloud, CloudError, Flavour, Lookup, Place, Query, Settings
from seed.providers.size import MIB
from seed.providers.spec import LARGEST, Spec

NAME = "linode"

_HOST = "api.linode.com"
PER_PAGE = 500  # the most that is documented
MAX_PAGES = 20

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
    for page in range(1, MAX_PAGES + 1):
        parameters = {"page": str(page), "page_size": str(PER_PAGE)}
        answer = await query.http.request("GET", f"https://{_HOST}/v4/linode/types", query=parameters)
        if answer.status != 200:
            raise CloudError(f"answered {answer.status}")
        listed = answer.json(_Answer)
        async for kind in in_pieces(listed.data):
            entries.add_json(kind, ("id",), _Type, _flavour)
        if page >= listed.pages:
            return entries.catalogue()
    raise CloudError(f"answers more than {MAX_PAGES} pages")


def _flavour(kind: _Type) -> Flavour:
    return Flavour(
        cpu=kind.vcpus * UNIT,
        memory=kind.memory * MIB * UNIT,
        storage=kind.disk * MIB * UNIT,
        devices={"nvidia.com/gpu": kind.gpus * UNIT} if kind.gpus else {},
    )


CLOUD = Cloud(place=place, fetch=fetch, lists=True, least_spec=lambda _region: {"type": "x"})
