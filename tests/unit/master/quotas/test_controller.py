"""What one quota's decisions do with its ledger, when writes fail or caches are behind. The test plays the API."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from common.api.convert import grant_to_wire, ledger_from_wire, ledger_to_wire, report_to_wire
from common.api.copies import original_uid
from common.api.labels import LEDGER_ANNOTATION, UID_LABEL
from common.api.ledger_types import MASTER_LEDGERS, MasterQuotaLedger
from common.api.types import ResourceQuotaStatus, Seed, WireGrant
from common.kube.client.api_client import Cluster
from common.kube.client.errors import Conflict, NotFound, Unavailable
from common.kube.client.meta import Object, ObjectMeta
from common.kube.controller.store import Change, Store
from common.quota import escrow, resources
from common.quota.account import Account, Ask, Grant
from common.quota.escrow import Holding, MasterLedger
from common.quota.quantity import UNIT
from common.runtime.burst import BurstDetector
from master.cache.informers import Caches
from master.cache.objects import MasterQuota, QuotaCopy
from master.quotas.controller import Quotas
from master.quotas.events import QuotaEvents
from master.quotas.ledger_store import Ledgers, drop_orphans, ledger_name
from master.quotas.state import QuotaState
from master.seeds.registry import Seeds
from master.seeds.status_publisher import Shown

LIFE = "life-1"
UID = "alpha-uid"


def cpu(cores: int) -> dict[str, int]:
    return {"cpu": cores * UNIT}


class Api:
    """The ledgers. `refuses`: how many writes fail. `loses`: of how many the answer is lost."""

    def __init__(self) -> None:
        self.name = "master"
        self.ledgers: dict[str, MasterQuotaLedger] = {}
        self.quotas: dict[str, MasterQuota] = {}
        self.refuses = 0
        self.loses = 0
        self.noted: list[str] = []
        self.version = 0

    async def get(self, _resource: object, name: str, namespace: str | None = None) -> Object:
        found = self.quotas.get(name) if namespace is None else self.ledgers.get(name.removeprefix("master-"))
        if found is None:
            raise NotFound(404, "NotFound", name)
        return found

    async def list(self, _resource: object, _namespace: str, *, label_selector: str) -> SimpleNamespace:
        return SimpleNamespace(items=list(self.ledgers.values()))

    async def replace(self, _resource: object, body: dict[str, Any]) -> MasterQuotaLedger:
        if self.refuses:
            self.refuses -= 1
            raise Unavailable(0, "Unavailable", "nobody is there")
        stored = self.put(body)
        if self.loses:
            self.loses -= 1
            raise Unavailable(0, "Unavailable", "the answer was lost")
        return stored

    async def delete(self, _resource: object, name: str, _namespace: str) -> None:
        del self.ledgers[name.removeprefix("master-")]

    async def merge_patch(self, _resource: object, _name: str, patch: dict[str, Any]) -> None:
        self.noted.append(patch["metadata"]["annotations"][LEDGER_ANNOTATION])

    def put(self, body: dict[str, Any]) -> MasterQuotaLedger:
        self.version += 1
        metadata = {**body["metadata"], "resourceVersion": str(self.version)}
        stored = MASTER_LEDGERS.decode(msgspec.json.encode({**body, "metadata": metadata}))
        assert stored.metadata.name == ledger_name(stored.quota.uid)
        self.ledgers[stored.quota.uid] = stored
        return stored

    def set(self, ledger: MasterLedger, uid: str = UID, name: str = "alpha") -> None:
        quota = {"name": name, "uid": uid}
        self.put({"metadata": {"name": ledger_name(uid)}, "quota": quota, "grants": ledger_to_wire(ledger)})

    @property
    def ledger(self) -> MasterLedger:
        wire = self.ledgers[UID].grants
        assert wire is not None
        return ledger_from_wire(wire)


class Link:
    def __init__(self, name: str) -> None:
        self.name = name
        self.connected = self.listed = self.settled = True
        self.never_connected = self.agent_silent = self.in_cluster = False
        self.copied: list[tuple[str, str]] = []
        self.sync = SimpleNamespace(add=self.copied.append)
        self.copies = Store[QuotaCopy]({})
        self.last_contact = 0.0
        self.offered: list[Shown] = []
        self.publisher = SimpleNamespace(
            last=lambda *_: (None, 0.0),
            offer=lambda _name, _uid, shown, *_, **__: self.offered.append(shown),
            forget=lambda _: None,
        )
        self.set("Active")

    def copy(self, quota: str, _uid: str) -> QuotaCopy | None:
        return self.copies.get(quota)

    def is_copy(self, found: QuotaCopy, uid: str) -> bool:
        return original_uid(found, in_cluster=False) == uid

    def set(self, state: str) -> None:
        self.lost = state == "Lost"
        spec = {"kubeconfigSecretRef": {"name": self.name}, "state": state}
        self.seed = msgspec.convert({"metadata": {"name": self.name}, "spec": spec}, Seed)


class Term:
    """A leader that has one quota and two seeds: eu-1 was granted 8 of it, us-1 was granted 2."""

    def __init__(self, *, eu: int = 8, doubtful: bool = False) -> None:
        self.api = Api()
        self.api.set(ledger(eu=eu, us=2))
        self.settled = 0
        self.caches = Caches(cast(Cluster, self.api), "seedquota")
        self.cached = self.caches.quotas.store
        self.api.quotas["alpha"] = quota()
        self.cached._set("alpha", quota())
        self.links = {name: Link(name) for name in ("eu-1", "us-1")}
        seeds = SimpleNamespace(
            links=self.links,
            present=lambda: [link for link in self.links.values() if not link.lost],
            rush=BurstDetector(lambda: False),
        )
        self.quotas = Quotas(
            cast(Cluster, self.api),
            self.caches,
            cast(Seeds, seeds),
            Ledgers(cast(Cluster, self.api), "seedquota"),
            cast(QuotaEvents, None),
            doubtful=doubtful,
            on_settled=self._on_settled,
        )

    def _on_settled(self) -> None:
        self.settled += 1

    async def decide(self) -> None:
        await self.quotas._decide("alpha")

    async def fails(self) -> None:
        with pytest.raises(Unavailable):
            await self.decide()

    def report(
        self,
        sequence: int,
        *,
        returned: int = 0,
        asks: int = 0,
        shown: Grant | None = None,
        life: str = "us-1",
        of: str = UID,
    ) -> None:
        """From us-1. `shown`: what its copy says that it was granted."""
        ask = Ask(number=1, first=cpu(asks), wanted=cpu(asks)) if asks else Ask()
        said = Account(
            incarnation=life, master=LIFE, sequence=sequence, granted=cpu(2), returned=cpu(returned), epoch=1, ask=ask
        )
        grant = grant_to_wire(shown) if shown is not None else WireGrant()
        status = ResourceQuotaStatus(account=report_to_wire(escrow.report(said)), grant=grant)
        copy = QuotaCopy(metadata=ObjectMeta(name="alpha", uid="copy", labels={UID_LABEL: of}), status=status)
        self.links["us-1"].copies._set("alpha", copy)
        self.quotas.copy_changed("us-1", Change(None, copy), None)


def quota(name: str = "alpha", uid: str = UID) -> MasterQuota:
    metadata = ObjectMeta(name=name, uid=uid, generation=1, annotations={LEDGER_ANNOTATION: LIFE})
    return MasterQuota(
        metadata=metadata, spec={"subject": {"kind": "project", "name": "alpha"}, "quota": {"cpu": "10"}}
    )


def ledger(**granted: int) -> MasterLedger:
    seeds = {
        f"{name}-1": Holding(account=f"{name}-1", nonce="n", granted=cpu(cores)) for name, cores in granted.items()
    }
    return MasterLedger(incarnation=LIFE, seeds=seeds)


async def test_a_seed_that_is_lost_after_a_failed_write_is_no_ledger_that_went_back() -> None:
    term = Term()
    await term.decide()
    term.report(1, returned=1)
    term.api.refuses = 1
    await term.fails()
    await term.decide()
    assert term.api.ledger.seeds["us-1"].returned == cpu(1)
    term.links["eu-1"].set("Lost")
    for _ in range(2):
        await term.decide()
        assert (term.api.ledger.incarnation, list(term.api.ledger.seeds)) == (LIFE, ["us-1"])


async def test_nor_is_one_that_is_lost_by_a_write_whose_answer_is_lost() -> None:
    term = Term()
    await term.decide()
    term.links["eu-1"].set("Lost")
    term.api.loses = 1
    await term.fails()
    for _ in range(2):
        await term.decide()
        assert (term.api.ledger.incarnation, list(term.api.ledger.seeds)) == (LIFE, ["us-1"])


async def test_a_ledger_that_went_back_while_a_write_failed_is_found_however_many_more_fail() -> None:
    term = Term()
    await term.decide()
    term.report(1, returned=1)
    term.api.refuses = 1
    await term.fails()
    term.api.set(ledger(eu=5, us=2))  # the master's API server was restored from a backup
    term.api.refuses = 2
    await term.fails()
    await term.fails()
    await term.decide()
    assert term.api.ledger.incarnation != LIFE
    assert term.api.ledger.learning


async def test_a_seed_is_shown_a_grant_only_when_that_is_durable() -> None:
    term = Term(eu=5)
    link = term.links["us-1"]
    durable: list[dict[str, int]] = []
    record = link.publisher.offer

    def offer(*arguments: Any, **options: Any) -> None:
        record(*arguments, **options)
        durable.append(dict(term.api.ledger.seeds["us-1"].granted))

    link.publisher.offer = offer
    term.report(1, asks=5)
    term.api.refuses = 1
    await term.fails()
    assert link.offered == []
    await term.decide()
    await term.decide()
    assert resources.parse(link.offered[-1].grant.granted) == cpu(5), "all that was left"
    assert [resources.parse(shown.grant.granted) for shown in link.offered] == durable


async def test_an_ask_is_answered_to_the_life_of_the_account_that_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    term = Term(eu=5)
    await term.decide()
    term.report(1, asks=5)
    save = term.api.replace

    async def replace(resource: object, body: dict[str, Any]) -> MasterQuotaLedger:
        term.report(1, life="us-2")
        return await save(resource, body)

    monkeypatch.setattr(term.api, "replace", replace)
    await term.decide()
    account = term.quotas.states["alpha"].seeds["us-1"]
    assert account.report is not None
    assert (account.report.incarnation, account.asked) == ("us-2", 0), "it has asked nothing yet"


async def test_a_seed_that_is_gone_and_has_returned_all_is_dropped_also_after_a_failed_write() -> None:
    """Nobody reports again what it has returned."""
    term = Term()
    await term.decide()
    term.report(1, returned=2)
    del term.links["us-1"]
    term.api.refuses = 1
    await term.fails()
    await term.decide()
    assert list(term.api.ledger.seeds) == ["eu-1"]


async def test_what_a_seed_showed_first_is_heeded_until_a_decision_about_it_is_durable() -> None:
    """Its copy proves that the ledger is an older one. The master learns then, however many writes fail before."""
    term = Term(eu=5, doubtful=True)
    term.report(1, shown=Grant(incarnation=LIFE, account="us-1", granted=cpu(4)))
    term.api.refuses = 2
    for _ in range(2):
        await term.fails()
        assert term.settled == 0, "the next leader has to doubt it, too"
    await term.decide()
    assert (term.api.ledger.incarnation != LIFE, term.api.ledger.learning) == (True, True)
    assert term.settled == 1


async def test_in_doubt_nothing_is_granted_or_settled_before_every_seed_was_listed() -> None:
    term = Term(eu=5, doubtful=True)
    term.links["eu-1"].listed = False
    term.report(1, asks=5)
    await term.decide()
    assert (term.api.ledger.seeds["us-1"].granted, term.settled) == (cpu(2), 0)
    term.links["eu-1"].listed = True
    await term.decide()
    assert (term.api.ledger.seeds["us-1"].granted, term.settled) == (cpu(5), 1)


async def test_another_life_of_a_ledger_is_noted_on_its_quota() -> None:
    """Else the next leader would believe the one before, if that is put back."""
    term = Term(eu=5)
    term.report(1, shown=Grant(incarnation=LIFE, account="us-1", granted=cpu(4)))
    await term.decide()
    assert term.api.ledger.incarnation != LIFE
    assert term.api.noted == [term.api.ledger.incarnation]


async def test_a_copy_of_an_earlier_quota_of_its_name_says_nothing() -> None:
    term = Term()
    await term.decide()
    term.report(1, returned=2, of="earlier-uid")
    await term.decide()
    assert term.api.ledger.seeds["us-1"].returned == {}
    term.report(1, returned=2)
    await term.decide()
    assert term.api.ledger.seeds["us-1"].returned == cpu(2)


async def test_a_ledger_stays_where_only_the_cache_lacks_its_quota() -> None:
    term = Term()
    await term.decide()
    term.cached._remove("alpha")
    with pytest.raises(Conflict, match="is behind"):
        await term.decide()
    assert term.api.ledger.seeds.keys() == {"eu-1", "us-1"}
    term.cached._set("alpha", quota())
    await term.decide()
    assert "alpha" in term.quotas.states

    term.cached._remove("alpha")
    del term.api.quotas["alpha"]
    await term.decide()
    assert term.api.ledgers == {}


async def test_a_leader_that_begins_drops_the_ledgers_of_quotas_that_are_gone_and_no_others() -> None:
    term = Term()
    for name in ("deleted", "made-again", "unseen"):
        term.api.set(ledger(eu=1), f"{name}-uid", name)
    again = quota("made-again", "another-uid")
    term.api.quotas["made-again"] = again
    term.cached._set("made-again", again)
    term.api.quotas["unseen"] = quota("unseen", "unseen-uid")
    await drop_orphans(term.quotas._ledgers, term.caches)
    assert set(term.api.ledgers) == {UID, "unseen-uid"}


async def test_a_device_is_called_never_counted_only_when_all_seeds_were_listed_and_all_quotas_seen() -> None:
    term = Term()
    made = quota()
    made = msgspec.structs.replace(made, spec={**made.spec, "quota": {"cpu": "10", "a.example/b": "1"}})
    term.cached._set("alpha", made)
    await term.decide()
    assert seen(term) == ["a.example/b"]

    term.links["eu-1"].listed = False
    await term.decide()
    assert seen(term) is None
    term.links["eu-1"].never_connected = True
    await term.decide()
    assert seen(term) == ["a.example/b"]

    term.cached._set("other", quota("other", "other-uid"))
    await term.decide()
    assert seen(term) is None, "a source may have been counted under the other"
    term.cached._remove("other")

    said = Account(incarnation="us-1", master=LIFE, sequence=2, granted=cpu(2), used={"c": {"a.example/b": UNIT}})
    status = ResourceQuotaStatus(account=report_to_wire(escrow.report(said)))
    copy = QuotaCopy(metadata=ObjectMeta(name="alpha", uid="copy", labels={UID_LABEL: UID}), status=status)
    term.quotas.copy_changed("us-1", Change(None, copy), None)
    await term.decide()
    assert seen(term) == []


async def test_a_quota_hears_that_a_device_is_counted_under_another_quota() -> None:
    term = Term()
    made = quota()
    term.cached._set("alpha", msgspec.structs.replace(made, spec={**made.spec, "quota": {"a.example/b": "1"}}))
    await term.decide()
    assert seen(term) == ["a.example/b"]
    waiting = term.quotas._controller.queue
    assert len(waiting) == 0
    said = Account(incarnation="us-1", master=LIFE, sequence=2, used={"c": {"a.example/b": UNIT}})
    status = ResourceQuotaStatus(account=report_to_wire(escrow.report(said)))
    metadata = ObjectMeta(name="other", uid="copy", labels={UID_LABEL: "other-uid"})
    term.quotas.states["other"] = QuotaState(quota("other", "other-uid"))
    term.quotas.copy_changed("us-1", Change(None, QuotaCopy(metadata=metadata, status=status)), None)
    assert {await waiting.get() for _ in range(len(waiting))} == {"alpha", "other"}


def seen(term: Term) -> object:
    view = term.quotas.states["alpha"].view
    assert view is not None
    return view.never_counted


@pytest.mark.parametrize("in_cluster", [False, True])
async def test_an_override_ends_by_the_clock_like_a_limit_that_is_lowered(
    monkeypatch: pytest.MonkeyPatch, in_cluster: bool
) -> None:
    """eu-1 holds 8 and us-1 holds 2 of 10. What was granted meanwhile stays granted, and nothing more is."""
    now = [1_000_000.0]
    monkeypatch.setattr(time, "time", lambda: now[0])
    term = Term()
    link = term.links["us-1"]
    link.in_cluster = in_cluster
    raised = quota()
    raised.spec["overrides"] = [{"until": "1970-01-12T14:46:40Z", "quota": {"cpu": "16"}}]  # 1,003,600
    term.cached._set("alpha", raised)
    term.report(1, asks=5)
    await term.decide()
    assert term.api.ledger.seeds["us-1"].granted == cpu(5)
    assert resources.parse(link.offered[-1].hard) == cpu(16)
    assert resources.parse(link.offered[-1].grant.raised) == (cpu(16) if in_cluster else {})
    again = await term.quotas._decide("alpha")
    assert again is not None
    assert again <= 600, "the clock may be set"
    now[0] += 3600
    term.links["us-1"].copied.clear()
    term.report(2, asks=9)
    await term.decide()
    assert term.api.ledger.seeds["us-1"].granted == cpu(5), "13 of 10 are held"
    assert resources.parse(link.offered[-1].hard) == cpu(10)
    assert link.offered[-1].grant.raised == {}
    if not in_cluster:
        assert link.copied == [("resourcequotas", "alpha")], (
            "the copy on the seed is written, though no spec has changed"
        )
    now[0] -= 3600
    await term.decide()
    assert resources.parse(link.offered[-1].hard) == cpu(10)


@pytest.mark.parametrize(
    ("in_cluster", "said", "behind"),
    [(True, "16", True), (True, "many", True), (True, "", False), (False, "16", False)],
)
async def test_a_replica_that_may_admit_by_a_limit_that_is_not_raised_any_more_is_behind(
    in_cluster: bool, said: str, behind: bool
) -> None:
    """Only the master's own object says by its status what is raised."""
    term = Term()
    link = term.links["us-1"]
    link.in_cluster = in_cluster
    term.report(1)
    copy = link.copies.get("alpha")
    assert copy is not None
    account = msgspec.structs.replace(copy.status.account, enforced_raised={"cpu": said} if said else {})
    status = msgspec.structs.replace(copy.status, account=account)
    link.copies._set("alpha", msgspec.structs.replace(copy, status=status))
    await term.decide()
    view = term.quotas.states["alpha"].view
    assert view is not None
    assert {seed.name: seed.behind for seed in view.seeds}["us-1"] is behind


async def test_what_a_seed_says_that_it_returned_beyond_its_grants_is_granted_to_nobody() -> None:
    """Of 10, eu-1 holds 8 and us-1 holds 2. A compromised seed must not lift the limit for all others."""
    term = Term()
    await term.decide()
    for sequence, granted in ((1, 2), (2, 900)):
        said = Account(
            incarnation="us-1", master="another", sequence=sequence, granted=cpu(granted), returned=cpu(900), epoch=1
        )
        status = ResourceQuotaStatus(account=report_to_wire(escrow.report(said)))
        copy = QuotaCopy(metadata=ObjectMeta(name="alpha", uid="copy", labels={UID_LABEL: UID}), status=status)
        term.quotas.copy_changed("us-1", Change(None, copy), None)
        await term.decide()
    assert escrow.outstanding(term.api.ledger) == cpu(10)
    term.report(3, returned=1)
    await term.decide()
    assert escrow.outstanding(term.api.ledger) == cpu(9), "what it says later is heeded"
