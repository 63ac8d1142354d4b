"""A quota of some seeds: what it takes until what a seed held is others', when its labels change. The test plays the
API servers and the seeds."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from msgspec.structs import replace

from common.api.convert import grant_to_wire, report_to_wire
from common.api.labels import UID_LABEL
from common.api.types import ResourceQuotaStatus, Seed
from common.kube.client.errors import Conflict
from common.kube.client.meta import Object, ObjectMeta
from common.kube.controller.store import Change
from common.quota import escrow, resources
from common.quota.account import Account, Ask, Grant
from common.quota.escrow import Holding, MasterLedger
from common.quota.resources import ResourceList
from master.cache.objects import QuotaCopy
from master.quotas.quota_view import QuotaView
from master.quotas.status import quota_status
from tests.unit.master.quotas.test_controller import LIFE, UID, Link, Term, cpu, quota

SUBJECT = {"kind": "project", "name": "alpha", "seeds": {"matchLabels": {"region": "eu"}}}
EU, US = "eu-1", "us-1"


class Parts(Term):
    """A quota of the seeds in the region eu: both, at first. `released`: what copies on each seed may go, `kept`:
    which have to be there."""

    def __init__(self, *, doubtful: bool = False) -> None:
        super().__init__(doubtful=doubtful)
        self.seeds: dict[str, Seed] = {}
        self.released: dict[str, str] = {}
        self.kept: dict[str, str] = {}
        of_eu = replace(quota(), spec={**quota().spec, "subject": SUBJECT})
        self.api.quotas["alpha"] = of_eu
        self.cached._set("alpha", of_eu)
        get = self.api.get

        async def get_any(resource: object, name: str, namespace: str | None = None) -> Object:
            return self.seeds[name] if name in self.seeds else await get(resource, name, namespace)

        self.api.get = get_any  # type: ignore[method-assign]
        for name, link in self.links.items():
            link.sync.withdraw = self._withdraws(name)
            self.label(name, "eu")
            self.says(name, granted={EU: 8, US: 2}[name])

    def _withdraws(self, seed: str) -> object:
        def withdraw(_quota: str, uid: str, *, over: bool) -> None:
            self.released[seed] = uid if over else ""
            self.kept[seed] = uid if not over else ""

        return withdraw

    def label(self, name: str, region: str, *, cached: bool = True) -> None:
        labels = {"region": region}
        metadata = ObjectMeta(name=name, uid=f"{name}-uid", generation=1, labels=labels)
        self.seeds[name] = replace(self.links[name].seed, metadata=metadata)
        if cached:
            self.links[name].seed = self.seeds[name]

    def says(
        self,
        name: str,
        *,
        granted: int = 0,
        returned: int = 0,
        used: int = 0,
        asks: int = 0,
        nonce: str = "",
        withdrawn: str = "",
        sequence: int = 1,
    ) -> None:
        """The seed's copy, with its report. It was shown what the master showed last."""
        ask = Ask(number=1, first=cpu(asks), wanted=cpu(asks)) if asks else Ask()
        said = Account(
            incarnation=name,
            master=LIFE,
            sequence=sequence,
            granted=cpu(granted),
            returned=cpu(returned),
            used={"c1": cpu(used)} if used else {},
            nonce=nonce,
            ask=ask,
        )
        offered = self.links[name].offered
        grant = offered[-1].grant if offered else grant_to_wire(Grant(incarnation=LIFE))
        account = replace(report_to_wire(escrow.report(said)), withdrawn=withdrawn)
        status = ResourceQuotaStatus(account=account, grant=grant)
        metadata = ObjectMeta(name="alpha", uid=f"{name}-copy", labels={UID_LABEL: UID})
        copy = QuotaCopy(metadata=metadata, status=status)
        self.links[name].copies._set("alpha", copy)
        self.quotas.copy_changed(name, Change(None, copy), None)

    def goes(self, name: str) -> None:
        """Its copy."""
        gone = self.links[name].copies._remove("alpha")
        self.quotas.copy_changed(name, Change(gone, None), None)

    @contextmanager
    def unknown_copies(self, name: str) -> Iterator[None]:
        """There is no connection, and what the seed has was not listed through it."""
        link = self.links[name]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(link, "copies", None)
            patch.setattr(link, "copy", lambda *_: None)
            patch.setattr(link, "connected", False)
            yield

    def held(self, name: str) -> ResourceList:
        return escrow.held(self.api.ledger.seeds[name])

    def token(self, name: str) -> str:
        return self.links[name].offered[-1].grant.withdrawn

    @property
    def view(self) -> QuotaView:
        found = self.quotas.states["alpha"].view
        assert found is not None
        return found


async def leaving() -> tuple[Parts, str]:
    """eu-1 held 8 and used 5 of them when its label changed; us-1 asks for 6."""
    term = Parts()
    term.says(EU, granted=8, used=5)
    await term.decide()
    term.label(EU, "asia")
    term.says(US, granted=2, asks=6)
    await term.decide()
    token = term.token(EU)
    assert token
    return term, token


async def test_what_a_seed_holds_is_nobody_elses_before_it_has_closed_its_account() -> None:
    term, token = await leaving()
    for _ in range(2):
        await term.decide()
    assert (term.held(EU), term.held(US), term.released) == (cpu(8), cpu(2), {EU: "", US: ""})
    term.says(EU, granted=8, returned=3, used=5, sequence=2)  # it gives back what is idle
    await term.decide()
    assert (term.held(EU), term.held(US), term.released[EU]) == (cpu(5), cpu(2), "")
    term.says(EU, granted=8, returned=8, nonce="closed", withdrawn=token, sequence=3)
    await term.decide()
    assert (term.held(EU), term.held(US), term.released[EU]) == (cpu(0), cpu(6), UID)
    assert term.token(EU) == token


async def test_its_use_does_not_count_and_no_condition_depends_on_it() -> None:
    term, _ = await leaving()
    term.links[EU].connected = False
    await term.decide()
    [line] = [seed for seed in term.view.seeds if seed.name == EU]
    assert (line.state, line.use, line.held) == ("Withdrawing", {}, cpu(8))
    status = quota_status(term.view, term.quotas.states["alpha"].shown, "2026-01-01T00:00:00Z")
    assert status.global_usage == {"cpu": "0"}
    assert {each.type: each.status for each in status.conditions}["UsageCurrent"] == "True"
    assert status.summary.seeds == "1/1"


async def test_a_seed_that_is_not_picked_and_has_nothing_is_no_part_of_any_decision() -> None:
    term = Parts()
    term.links["asia-1"] = Link("asia-1")
    term.links["asia-1"].sync.withdraw = term._withdraws("asia-1")
    term.label("asia-1", "asia")
    term.links["asia-1"].connected = term.links["asia-1"].settled = term.links["asia-1"].listed = False
    await term.decide()
    assert [seed.name for seed in term.view.seeds] == [EU, US]
    assert set(term.api.ledger.seeds) == {EU, US}


async def test_the_counters_of_a_seed_stay_when_its_copy_has_gone_and_it_comes_back_with_them() -> None:
    """Another account of it, or an older ledger, has no more than they say."""
    term, token = await leaving()
    term.says(EU, granted=8, returned=8, nonce="closed", withdrawn=token, sequence=3)
    await term.decide()
    term.goes(EU)
    await term.decide()
    assert [seed.name for seed in term.view.seeds] == [US]
    assert term.api.ledger.seeds[EU] == Holding(account=EU, granted=cpu(8), returned=cpu(8), nonce="closed")
    term.label(EU, "eu")
    term.says(EU, nonce="another")
    await term.decide()
    shown = term.links[EU].offered[-1].grant
    assert (shown.withdrawn, shown.nonce) == ("", "another")
    assert (resources.parse(shown.granted), resources.parse(shown.returned)) == (cpu(8), cpu(8))


async def test_a_seed_that_is_picked_again_gives_back_everything_first() -> None:
    """What was created there meanwhile was not asked about: it has to be counted before anything is admitted."""
    term, token = await leaving()
    term.label(EU, "eu")
    await term.decide()
    assert term.token(EU) == token
    term.says(EU, granted=8, returned=8, nonce="closed", withdrawn="of another time", sequence=3)
    await term.decide()
    assert term.token(EU) == token, "it was closed before"
    term.says(EU, granted=8, returned=8, nonce="closed", withdrawn=token, sequence=4)
    await term.decide()
    assert (term.token(EU), term.links[EU].offered[-1].grant.nonce, term.released[EU]) == ("", "closed", "")


async def test_a_seed_that_is_picked_again_does_not_wait_for_other_news_once_it_has_given_back_everything() -> None:
    term, token = await leaving()
    term.label(EU, "eu")
    term.says(EU, granted=8, returned=8, nonce="closed", withdrawn=token, sequence=3)
    assert (await term.quotas._decide("alpha"), term.token(EU)) == (0.0, token)
    assert await term.quotas._decide("alpha") != 0.0
    assert term.token(EU) == ""


async def test_a_seed_that_has_lost_its_copy_gets_it_again_and_gives_back_what_it_holds() -> None:
    """Somebody has deleted it, or a backup without it was restored there. The account went with it."""
    term, token = await leaving()
    assert (term.kept[EU], term.kept[US]) == (UID, "")
    term.goes(EU)
    await term.decide()
    assert (term.held(EU), term.kept[EU], term.released[EU]) == (cpu(8), UID, "")
    term.says(EU, nonce="another account")
    await term.decide()
    shown = term.links[EU].offered[-1].grant
    assert (shown.withdrawn, shown.nonce, resources.parse(shown.granted)) == (token, "another account", cpu(8))
    term.says(EU, granted=8, returned=8, nonce="closed", withdrawn=token, sequence=2)
    await term.decide()
    assert (term.held(EU), term.kept[EU], term.released[EU]) == (cpu(0), "", UID)


async def test_the_next_leader_goes_on_with_what_was_begun() -> None:
    term, token = await leaving()
    term.says(EU, granted=8, used=5, sequence=2)
    copy = term.links[EU].copies.get("alpha")
    assert copy is not None
    following = Parts()
    following.links[EU].copies._set("alpha", copy)
    await following.decide()  # the seed is picked again
    assert following.token(EU) == token


async def test_a_master_that_has_lost_its_ledger_learns_also_what_a_seed_holds_that_is_not_picked() -> None:
    term = Parts()
    term.label(EU, "asia")
    term.api.set(MasterLedger(incarnation=LIFE, learning=True, seeds={US: Holding(learned=False)}))
    for nonce in ("n", ""):
        term.says(US, granted=2, nonce=nonce, sequence=2)
        await term.decide()
    assert (term.api.ledger.seeds[US].learned, term.api.ledger.learning) == (True, True), "of eu-1 nothing is known"
    term.says(EU, granted=8, nonce="fenced", sequence=2)
    await term.decide()
    assert term.held(EU) == cpu(8)
    term.says(EU, granted=8, returned=8, nonce="closed", withdrawn=term.token(EU), sequence=3)
    await term.decide()
    assert (term.held(EU), term.released[EU], term.api.ledger.learning) == (cpu(0), UID, True)
    term.goes(EU)
    await term.decide()
    assert not term.api.ledger.learning


async def test_labels_that_a_cache_has_of_old_withdraw_nothing() -> None:
    term = Parts()
    await term.decide()
    term.label(EU, "asia")
    term.label(EU, "eu", cached=False)
    with pytest.raises(Conflict, match="is behind"):
        await term.decide()
    assert term.token(EU) == ""


async def test_a_seed_that_holds_nothing_has_to_close_its_account_all_the_same_while_its_copies_are_not_known() -> None:
    """Replicas that know the token do not limit, and what they admit is not counted: an account that is open would
    admit more before it is."""
    term, token = await leaving()
    term.says(EU, granted=8, returned=8, sequence=2)  # its account is open
    await term.decide()
    with term.unknown_copies(EU):
        term.label(EU, "eu")
        await term.decide()
    await term.decide()
    assert (term.token(EU), term.released[EU]) == (token, "")


async def test_a_copy_that_was_not_seen_yet_does_not_go_before_the_account_is_closed() -> None:
    term = Parts()
    term.label(EU, "asia")
    counters = {EU: Holding(account=EU, granted=cpu(8), returned=cpu(8)), US: Holding(account=US, granted=cpu(2))}
    term.api.set(MasterLedger(incarnation=LIFE, seeds=counters))
    term.says(EU, granted=8, returned=8)
    with term.unknown_copies(EU):
        await term.decide()
        assert term.released[EU] == ""
    await term.decide()
    assert (bool(term.token(EU)), term.released[EU]) == (True, "")


async def test_after_a_restore_nothing_is_granted_before_a_seed_that_is_not_picked_was_asked_what_it_has() -> None:
    """It may have been picked and granted something since the backup. Once it is picked again, that counts."""
    term = Parts(doubtful=True)
    term.label(EU, "asia")
    term.goes(EU)
    term.api.set(MasterLedger(incarnation=LIFE, seeds={US: Holding(account=US, granted=cpu(2))}))
    term.says(US, granted=2, asks=6)
    term.links[EU].listed = False
    with term.unknown_copies(EU):
        await term.decide()
    assert term.held(US) == cpu(2)
    term.links[EU].listed = True
    await term.decide()
    assert term.held(US) == cpu(6)


async def test_while_no_seed_is_picked_it_is_said_so() -> None:
    term = Parts()
    for name in (EU, US):
        term.label(name, "asia")
        term.goes(name)
    term.api.set(MasterLedger(incarnation=LIFE))
    await term.decide()
    status = quota_status(term.view, term.quotas.states["alpha"].shown, "2026-01-01T00:00:00Z")
    found = {each.type: each for each in status.conditions}
    assert (found["Enforced"].status, found["Enforced"].reason, found["Ready"].status) == ("False", "NoSeeds", "False")
    assert "spec.subject.seeds picks no Seed that there is" in found["Enforced"].message
    assert status.summary.seeds == "0/0"


async def test_what_a_seed_writes_into_its_copy_withdraws_no_quota_that_is_of_all_seeds() -> None:
    term = Parts()
    of_all = quota()
    term.api.quotas["alpha"] = of_all
    term.cached._set("alpha", of_all)
    copy = term.links[EU].copies.get("alpha")
    assert copy is not None
    status = replace(copy.status, grant=replace(copy.status.grant, withdrawn="token"))
    term.links[EU].copies._set("alpha", replace(copy, status=status))
    await term.decide()
    assert [seed.state for seed in term.view.seeds] == ["Current", "Current"]
