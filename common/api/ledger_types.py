"""The master's QuotaLedger as it is written. The seed's own is in seed/ledger."""

from __future__ import annotations

from common.api.labels import GROUP, VERSION
from common.api.types import Quantities, Wire
from common.kube.client.meta import Object
from common.kube.client.resource import Resource


class WireHolding(Wire):
    account: str = ""
    granted: Quantities = {}
    returned: Quantities = {}
    learned: bool = True
    nonce: str = ""


class WireMasterLedger(Wire):
    incarnation: str
    learning: bool = False
    seeds: dict[str, WireHolding] = {}


class QuotaRef(Wire):
    name: str
    uid: str


class MasterQuotaLedger(Object, frozen=True, kw_only=True):
    """The master's QuotaLedger: G and R for every seed. The seed's own is in seed/ledger."""

    quota: QuotaRef
    grants: WireMasterLedger | None = None


MASTER_LEDGERS = Resource(GROUP, VERSION, "quotaledgers", "QuotaLedger", True, MasterQuotaLedger)
