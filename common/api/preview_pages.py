"""What the master asks the agents of a seed for previews, and how they answer: the machine types that are known there,
and what the objects of a manifest would use of quotas. Pure.
"""

from __future__ import annotations

from typing import Annotated, Any, Final
from urllib.parse import urlencode

import msgspec
from msgspec import Meta

from common.api.types import Wire
from common.quota import resources
from common.quota.quantity import QuantityError
from common.quota.resources import ResourceList

MACHINE_TYPES: Final = "machinetypes"
NEEDS: Final = "needs"

MAX_TYPES: Final = 1000  # of one answer
MAX_DOCUMENTS: Final = 32  # objects of one question
MAX_LINES: Final = 64  # of one answer: a StatefulSet is counted with its pods and each of its claims
MAX_QUOTAS: Final = 16  # of one question
MAX_REPLICAS: Final = 999_999
MAX_QUESTION: Final = 96 * 1024  # bytes
MAX_ANSWER: Final = 256 * 1024  # bytes

_Name = Annotated[str, Meta(max_length=317)]
_Text = Annotated[str, Meta(max_length=1024)]
_Amounts = Annotated[dict[_Name, Annotated[str, Meta(max_length=64)]], Meta(max_length=128)]
_Reasons = Annotated[dict[_Name, _Text], Meta(max_length=16)]


class MachineType(Wire):
    """What one Machine of a type uses, by the catalogue of its cloud. `place`: where it is sold, for people. `unknown`:
    what it uses in an amount that the type does not tell, and why."""

    provider: Annotated[str, Meta(max_length=64)]
    place: Annotated[str, Meta(max_length=317)]
    name: Annotated[str, Meta(max_length=255)]
    resources: _Amounts = {}
    unknown: _Reasons = {}


class MachineTypesPage(Wire):
    """`more`: there are others."""

    items: Annotated[list[MachineType], Meta(max_length=MAX_TYPES)] = []
    more: bool = False


class NeedsQuestion(Wire):
    """`project`: whose user clusters tell sizes of machine types; empty: those of the projects that `quotas` limit.
    `replicas`: instead of the number in the objects; 0: as they say."""

    quotas: Annotated[list[_Name], Meta(max_length=MAX_QUOTAS)]
    documents: Annotated[list[dict[str, Any]], Meta(max_length=MAX_DOCUMENTS)]
    project: _Name = ""
    replicas: Annotated[int, Meta(ge=0, le=MAX_REPLICAS)] = 0


class ObjectNeeds(Wire):
    """Of one object, or of what it makes: `count` pieces, and what each of them needs of each quota that counts it.
    `problem`: why that is not known, or what keeps it from being admitted whatever is free. `unknown`: as in
    MachineType."""

    object: _Text
    count: Annotated[int, Meta(ge=0, le=MAX_REPLICAS)]
    needs: Annotated[dict[_Name, _Amounts], Meta(max_length=MAX_QUOTAS)] = {}
    unknown: _Reasons = {}
    problem: _Text = ""


class NeedsPage(Wire):
    """`problem`: why the question is not answered; the objects are wrong then."""

    items: Annotated[list[ObjectNeeds], Meta(max_length=MAX_LINES)] = []
    problem: _Text = ""


_types = msgspec.json.Decoder(MachineTypesPage).decode
_needs = msgspec.json.Decoder(NeedsPage).decode
_UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, QuantityError)


def machine_types_path(project: str, name: str) -> str:
    """`name`: of the only type that is asked for; empty: of all."""
    query = f"?{urlencode({'name': name})}" if name else ""
    return f"{MACHINE_TYPES}/{project}{query}"


def read_machine_types(content: bytes) -> MachineTypesPage | None:
    """None: it cannot be read."""
    try:
        page = _types(content)
        for each in page.items:
            _parsed(each.resources)
    except _UNREADABLE:
        return None
    return page


def read_needs(content: bytes) -> NeedsPage | None:
    """None: it cannot be read."""
    try:
        page = _needs(content)
        for each in page.items:
            for need in each.needs.values():
                _parsed(need)
    except _UNREADABLE:
        return None
    return page


def _parsed(amounts: dict[str, str]) -> ResourceList:
    """Raises QuantityError."""
    found = resources.parse(amounts)
    if any(amount < 0 for amount in found.values()):
        raise QuantityError("an amount is negative")
    return found


def shortened(text: str) -> str:
    """As much of it as an answer can have."""
    return text[:1024]
