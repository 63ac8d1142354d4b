"""The master's ledgers: which one is a quota's, and when what is held must be learned again."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from common.api.labels import LEDGER_ANNOTATION
from common.api.ledger_types import MASTER_LEDGERS, MasterQuotaLedger
from common.kube.client.errors import AlreadyExists, Conflict, NotFound
from common.kube.client.meta import ObjectMeta
from master.cache.objects import MasterQuota
from master.quotas.ledger_store import Ledgers

SPEC: dict[str, object] = {"subject": {"kind": "project", "name": "alpha"}, "quota": {"cpu": "4"}}


class ApiServer:
    def __init__(self) -> None:
        self.calls: list[str] = []
        self.ledger: MasterQuotaLedger | None = None
        self.noted = ""
        self.labels: dict[str, str] = {}

    async def create(self, _resource: object, body: dict[str, Any], _namespace: str) -> MasterQuotaLedger:
        self.calls.append("create")
        if self.ledger is not None:
            raise AlreadyExists(409, "AlreadyExists", "there is one")
        return self._stored(body)

    async def replace(self, _resource: object, body: dict[str, Any]) -> MasterQuotaLedger:
        self.calls.append("replace")
        return self._stored(body)

    async def get(self, _resource: object, _name: str, _namespace: str) -> MasterQuotaLedger:
        self.calls.append("get")
        if self.ledger is None:
            raise NotFound(404, "NotFound", "there is none")
        return self.ledger

    async def merge_patch(self, _resource: object, _name: str, patch: dict[str, Any]) -> None:
        self.calls.append("note")
        self.noted = patch["metadata"]["annotations"][LEDGER_ANNOTATION]

    def _stored(self, body: dict[str, Any]) -> MasterQuotaLedger:
        self.labels = body["metadata"]["labels"]
        self.ledger = MASTER_LEDGERS.decode(msgspec.json.encode(body))
        return self.ledger

    def quota(self) -> MasterQuota:
        annotations = {LEDGER_ANNOTATION: self.noted} if self.noted else {}
        return MasterQuota(metadata=ObjectMeta(name="alpha", uid="1", annotations=annotations), spec=SPEC)


def ledgers(api: Any) -> Ledgers:
    return Ledgers(api, "seedquota")


async def test_a_new_quota_gets_one_with_two_writes_and_nothing_to_learn() -> None:
    api = ApiServer()
    stored = await ledgers(api).load(api.quota(), ["seed-1"])
    assert api.calls == ["create", "note"]
    assert not stored.ledger.learning
    assert stored.ledger.seeds["seed-1"].learned
    assert api.noted == stored.ledger.incarnation


async def test_it_is_kept_out_of_backups() -> None:
    api = ApiServer()
    await ledgers(api).load(api.quota(), [])
    assert api.labels["velero.io/exclude-from-backup"] == "true"


async def test_one_that_was_made_and_not_noted_is_kept() -> None:
    """A master that ended between the two writes."""
    api = ApiServer()
    made = await ledgers(api).load(api.quota(), ["seed-1"])
    api.noted, api.calls = "", []
    stored = await ledgers(api).load(api.quota(), ["seed-1"])
    assert stored.ledger == made.ledger
    assert api.calls == ["create", "get", "note"]


async def test_one_that_was_noted_and_is_gone_is_learned_again() -> None:
    api = ApiServer()
    made = await ledgers(api).load(api.quota(), ["seed-1"])
    api.ledger, api.calls = None, []
    stored = await ledgers(api).load(api.quota(), ["seed-1"])
    assert stored.ledger.learning
    assert not stored.ledger.seeds["seed-1"].learned
    assert stored.ledger.incarnation != made.ledger.incarnation
    assert api.calls == ["get", "create", "note"]


@pytest.mark.parametrize("broken", ["an amount that is none", "no grants at all"])
@pytest.mark.parametrize("noted", [True, False])
async def test_one_that_cannot_be_read_is_learned_again(broken: str, noted: bool) -> None:
    """Also before it was noted which one it is: it may have granted something all the same."""
    api = ApiServer()
    made = await ledgers(api).load(api.quota(), ["seed-1"])
    assert api.ledger is not None
    assert api.ledger.grants is not None
    holding = msgspec.structs.replace(api.ledger.grants.seeds["seed-1"], granted={"cpu": "much"})
    grants = msgspec.structs.replace(api.ledger.grants, seeds={"seed-1": holding}) if "amount" in broken else None
    api.ledger = msgspec.structs.replace(api.ledger, grants=grants)
    if not noted:
        api.noted = ""
    stored = await ledgers(api).load(api.quota(), ["seed-1"])
    assert stored.ledger.learning
    assert not any(holding.learned for holding in stored.ledger.seeds.values())
    assert stored.ledger.incarnation != made.ledger.incarnation
    assert api.noted == stored.ledger.incarnation


async def test_one_that_is_not_the_one_noted_is_learned_again() -> None:
    api = ApiServer()
    await ledgers(api).load(api.quota(), ["seed-1"])
    api.noted = "another"
    stored = await ledgers(api).load(api.quota(), ["seed-1"])
    assert stored.ledger.learning
    assert api.noted == stored.ledger.incarnation


async def test_one_that_another_master_makes_meanwhile_is_no_new_one() -> None:
    class Overtaken(ApiServer):
        async def get(self, *_arguments: object) -> Any:
            raise NotFound(404, "NotFound", "there is none")

    api = Overtaken()
    await ledgers(api).load(api.quota(), ["seed-1"])
    with pytest.raises(Conflict):
        await ledgers(api).load(api.quota(), ["seed-1"])
