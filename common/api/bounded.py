"""How long and how large a status may be that a seed's API server shows: its schema says the same.

A compromised API server holds to no schema. What is beyond it could not be written into a ledger or a status of the
master, and one seed must not keep those of all others from being written.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from common.kube.client.meta import Int64

MAX_NAMES = 256  # in a counter of a ledger
MAX_COUNT = 2**31 - 1
LONGEST_MESSAGE = 32 * 1024  # of a condition

ConditionType = Annotated[str, Meta(max_length=316)]
Reason = Annotated[str, Meta(max_length=1024)]
Message = Annotated[str, Meta(max_length=LONGEST_MESSAGE)]

Token = Annotated[str, Meta(max_length=64)]
Text = Annotated[str, Meta(max_length=4096)]
FewNames = Annotated[tuple[Annotated[str, Meta(max_length=512)], ...], Meta(max_length=3)]
SourceName = Annotated[str, Meta(min_length=1, max_length=384)]
ClusterName = Annotated[str, Meta(min_length=1, max_length=317)]
NamespaceName = Annotated[str, Meta(min_length=1, max_length=63)]
ProjectName = Annotated[str, Meta(max_length=253)]
ResourceName = Annotated[str, Meta(max_length=317)]
SourceNames = Annotated[tuple[SourceName, ...], Meta(max_length=32)]
ClusterNames = Annotated[tuple[ClusterName, ...], Meta(max_length=32)]
NamespaceNames = Annotated[tuple[Annotated[str, Meta(max_length=63)], ...], Meta(max_length=64)]
ResourceNames = Annotated[tuple[ResourceName, ...], Meta(max_length=64)]

Count = Annotated[int, Meta(ge=0, le=MAX_COUNT)]
Number = Annotated[int, Meta(ge=0, le=2**63 - 1)]

Amounts = Annotated[dict[ResourceName, Token | Int64], Meta(max_length=512)]
Counters = Annotated[dict[ResourceName, Token | Int64], Meta(max_length=MAX_NAMES)]
FewAmounts = Annotated[dict[ResourceName, Token | Int64], Meta(max_length=64)]
