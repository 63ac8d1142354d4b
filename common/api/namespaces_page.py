"""What each namespace of a seed uses of a quota, page by page, as the leading agent answers it. Pure.

A page has the namespaces in order of their clusters and names, so a later page begins after the last one of the page
before, whatever changes meanwhile.
"""

from __future__ import annotations

import re
from itertools import pairwise
from typing import Annotated, Final, NamedTuple
from urllib.parse import urlencode

import msgspec
from msgspec import Meta

from common.api.types import Wire
from common.quota import resources
from common.quota.quantity import QuantityError

PATH: Final = "namespaces"
MOST: Final = 500  # namespaces of one page
MAX_NAMED: Final = 32  # clusters that a page names beside
MAX_PAGE: Final = 256 * 1024  # bytes

MAX_PROJECT: Final = 253  # characters

_NAME: Final = "[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?"
_NAMESPACE: Final = "[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?"


class Place(NamedTuple):
    """Of a namespace. The first page begins after the empty one. `cluster` is that of the key of a UserCluster, or
    OWN_API_SERVER."""

    cluster: str = ""
    namespace: str = ""


class NamespaceLine(Wire):
    """Another page can begin after each. `project`: the Project that the namespace is of; empty if it is of none."""

    cluster: Annotated[str, Meta(max_length=317, pattern=rf"^{_NAME}(/{_NAME})?\Z")]
    namespace: Annotated[str, Meta(pattern=rf"^{_NAMESPACE}\Z")]
    project: Annotated[str, Meta(max_length=MAX_PROJECT)] = ""
    used: Annotated[
        dict[Annotated[str, Meta(max_length=317)], Annotated[str, Meta(max_length=64)]], Meta(max_length=128)
    ] = {}

    @property
    def place(self) -> Place:
        return Place(self.cluster, self.namespace)


class NamespacesPage(Wire):
    """`uid`: of the quota on the master. `more`: there are others after the last one. `not_current`: the first clusters
    that this page may lack something of, since they cannot be reached now, or are not counted yet."""

    uid: Annotated[str, Meta(max_length=64)]
    items: Annotated[list[NamespaceLine], Meta(max_length=MOST)] = []
    more: bool = False
    not_current: Annotated[list[Annotated[str, Meta(max_length=317)]], Meta(max_length=MAX_NAMED)] = []


_named = re.compile(_NAMESPACE).fullmatch
_decode = msgspec.json.Decoder(NamespacesPage).decode


def is_namespace(name: str) -> bool:
    """Whether a page can have a namespace of this name. What claims to be an API server may list others."""
    return _named(name) is not None


def path(quota: str, after: Place, limit: int) -> str:
    return f"{PATH}/{quota}?{urlencode({'cluster': after.cluster, 'namespace': after.namespace, 'limit': limit})}"


def read(content: bytes, uid: str, after: Place, limit: int) -> NamespacesPage | None:
    """None for what is no page of this quota after this place. Whoever follows pages would never come to an end if one
    went back."""
    try:
        page = _decode(content)
        for line in page.items:
            resources.parse(line.used)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, QuantityError):
        return None
    places = [after, *(line.place for line in page.items)]
    in_order = all(before < later for before, later in pairwise(places))
    ends = bool(page.items) or not page.more
    return page if page.uid == uid and in_order and ends and len(page.items) <= limit else None
