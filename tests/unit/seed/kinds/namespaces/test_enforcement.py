"""What is said of the webhook for namespaces in a cluster, and what becomes of one that an earlier leader left."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from common.kube.client.api_client import Cluster
from common.kube.client.errors import ApiError, Cause, Forbidden, NotFound, Unavailable
from common.quota.account import Account
from common.quota.object_names import GroupResource
from seed.accounts.registry import AccountRegistry
from seed.admission import denial
from seed.kinds.namespaces import configuration as namespaces
from seed.kinds.namespaces import enforcement as module
from seed.kinds.namespaces.configuration import Limits
from seed.kinds.namespaces.enforcement import NamespacedWebhook
from seed.model.quota import Quota
from seed.model.selected_namespaces import Exempt
from seed.registration import probe
from seed.registration.configuration import WebhookConfiguration, WebhookServer
from seed.registration.health import Proof
from seed.registration.registered_webhook import RegisteredWebhook
from tests.running import running
from tests.unit.fake_api_server import eventually
from tests.unit.namespaces_world import ANN, World

CLUSTER = "alpha/c1"


class Server:
    def __init__(self, answer: ApiError | None) -> None:
        self.answer = answer
        self.deletes = 0

    async def delete(self, _resource: object, name: str) -> None:
        assert name == "seedquota-namespaces"
        self.deletes += 1
        if self.answer is not None:
            raise self.answer


def desired(limits: Sequence[Limits]) -> WebhookConfiguration:
    server = WebhookServer(base_url="https://seed.example.com", token=lambda _kind: "token", ca_bundle=b"CA")
    return namespaces.desired(limits, server, "uid", exempt=Exempt(), shared=False)


class Site:
    def __init__(self, server: Server | None = None) -> None:
        self.world = World()
        self.states: list[str] = []
        self.new: set[str] = set()
        self.unserved: set[GroupResource] = set()
        self.wanted = True
        self.webhook = NamespacedWebhook(
            cast(Cluster, server),
            CLUSTER,
            self.world.quotas,
            self.world.clusters,
            cast(AccountRegistry, self),
            desired,
            unserved=lambda: frozenset(self.unserved),
            wanted=lambda: self.wanted,
            on_enforced=lambda _name: None,
            on_state=lambda: self.states.append(self.said()),
        )

    def is_new(self, quota: Quota) -> bool:
        return quota.name in self.new

    def on_account(self, _listener: Callable[[str, Account | None], None]) -> Callable[[], None]:
        return lambda: None

    def said(self) -> str:
        shown = self.webhook.shown
        return "" if shown is None else f"{shown.enforced} {shown.reason}"

    def finds(self, proof: Proof | None, *, proven: bool = True, **keeper: Any) -> str:
        """What the keeper and the canary see."""
        sample = self.webhook._sample()
        defaults = {"contested": False, "error": None, "in_place": True, "began": False}
        name = sample.webhook if sample is not None and proven else ""
        canary = SimpleNamespace(proven=name, forget=lambda: None)
        keeper = {**defaults, **keeper}
        registered = SimpleNamespace(proof=proof, keeper=SimpleNamespace(**keeper), canary=canary, changed=lambda: None)
        self.webhook._registered = cast(Any, registered)
        self.webhook._judge()
        return self.said()


DENIED = Proof(True, "CanaryDenied")


def test_it_says_that_all_is_checked_only_once_a_dry_run_has_proven_it_for_every_quota() -> None:
    site = Site()
    assert site.finds(None) == "", "it takes no part"
    site.world.cluster("c1")
    assert site.finds(None) == "", "no quota limits anything there"
    site.world.quota("ann", selector={"matchLabels": ANN})
    assert site.finds(None) == "None Connecting"
    assert site.finds(DENIED, in_place=False) == "None Connecting"
    assert site.finds(Proof(None, "NotProven"), proven=False) == "None NotProven"
    assert site.finds(DENIED) == "True CanaryDenied"
    site.world.quota("bob", {"services": "1"}, selector={"matchLabels": {"owner": "bob"}})
    assert site.finds(DENIED, proven=False) == "None NotProven"
    assert site.webhook.shown is not None and "bob" in site.webhook.shown.message
    assert site.finds(DENIED) == "True CanaryDenied"
    assert site.finds(Proof(False, "NotServing")) == "False NotServing"
    assert site.finds(DENIED, error="may not") == "False WebhookMissing"
    assert site.finds(DENIED, contested=True) == "False WebhookContested"
    site.wanted = False
    assert site.finds(DENIED) == "False Uninstalled"
    site.world.cluster("c1", "Disabled")
    assert site.finds(DENIED) == ""
    assert site.states[:2] == ["None Connecting", "None NotProven"], "only what is new is told"


def test_a_cluster_that_begins_to_ask_is_enforced_in_no_quota_until_that_is_proven() -> None:
    """What the leader before said, or this one while it took part before, is of another configuration."""
    site = Site()
    site.world.cluster("c1")
    site.world.quota("ann", selector={"matchLabels": ANN})

    def unenforced() -> bool:
        quota = site.world.quotas.quota("ann")
        assert quota is not None
        return bool(site.world.clusters.unenforced(quota))

    site.finds(DENIED)
    assert not unenforced()
    site.finds(None, proven=False)
    assert not unenforced(), "another leader: what was said stays"
    site.finds(None, proven=False, began=True)
    assert unenforced()
    site.finds(DENIED, began=True)
    assert not unenforced()


def test_of_a_kind_that_is_served_in_another_version_each_version_is_asked_about() -> None:
    """By a rule of a version that is not served an API server asks nothing. It is proven anew."""
    site = Site()
    site.world.cluster("c1")
    site.world.quota("ann", {"sum.databases.v1.example.com/spec.replicas": "1"}, selector={"matchLabels": ANN})

    def versions() -> set[str]:
        rules = [rule for each in site.webhook._desired().webhooks[:-1] for rule in cast(Any, each["rules"])]
        return {version for rule in rules for version in rule["apiVersions"]}

    assert (site.finds(DENIED), versions()) == ("True CanaryDenied", {"v1", "*"})
    site.unserved.add(GroupResource("databases", "example.com"))
    site.webhook.kinds_changed()
    assert (site.finds(DENIED, proven=False), versions()) == ("None NotProven", {"*"})
    assert site.finds(DENIED) == "True CanaryDenied"


def owners(found: WebhookConfiguration) -> set[str]:
    return {value for each in found.webhooks for value in re.findall(r"ann|bob", str(each["namespaceSelector"]))}


def test_a_new_quota_is_asked_about_once_its_account_is_open() -> None:
    site = Site()
    site.world.cluster("c1")
    site.world.quota("ann", selector={"matchLabels": ANN})
    site.new.add("bob")
    site.world.quota("bob", {"services": "1"}, selector={"matchLabels": {"owner": "bob"}})
    assert owners(site.webhook._desired()) == {"ann"}
    assert site.finds(DENIED) == "None NotProven"
    assert site.webhook.shown is not None and "bob" in site.webhook.shown.message, (
        "what proves the one says nothing of it"
    )
    site.new.clear()
    assert owners(site.webhook._desired()) == {"ann", "bob"}
    assert site.finds(DENIED) == "True CanaryDenied"


def test_the_configuration_is_written_again_when_the_account_of_a_new_quota_opens() -> None:
    site = Site()
    site.new.add("bob")
    site.world.quota("bob", selector={"matchLabels": {"owner": "bob"}})
    site.world.cluster("c1")
    assert owners(site.webhook._desired()) == set()
    written: list[set[str]] = []
    changed = lambda: written.append(owners(site.webhook._desired()))  # noqa: E731
    site.webhook.configuration_changed = changed  # type: ignore[method-assign]
    fenced = Account(incarnation="life", nonce="n")
    site.webhook._account_changed("bob", None)
    site.webhook._account_changed("bob", fenced)
    assert written == [], "it is not open"
    site.new.clear()
    opened = msgspec.structs.replace(fenced, nonce="", master="m")
    site.webhook._account_changed("bob", opened)
    site.webhook._account_changed("bob", opened)
    assert written == [{"bob"}], "later news of it say nothing of the configuration"


@pytest.mark.parametrize("answer", [None, NotFound(404, "NotFound", ""), Forbidden(403, "Forbidden", "")])
async def test_what_an_earlier_leader_left_where_the_cluster_takes_no_part_is_removed_once(
    answer: ApiError | None,
) -> None:
    server = Server(answer)
    site = Site(server)
    assert not site.webhook.absent, "it may be there"
    async with running(site.webhook.run()):
        await eventually(lambda: site.webhook.absent)
        site.webhook.configuration_changed()
        await asyncio.sleep(0.02)
    assert server.deletes == 1


async def test_while_it_cannot_be_removed_it_is_named_as_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "RETRY_SECONDS", 0.01)
    server = Server(Unavailable(0, "Unavailable", "no answer"))
    site = Site(server)
    async with running(site.webhook.run()):
        await eventually(lambda: server.deletes >= 2)
        assert not site.webhook.absent
        server.answer = None
        await eventually(lambda: site.webhook.absent)


class Answering:
    """An API server that refuses the canaries of the configuration that it has, when it is let."""

    name = "c1"

    def __init__(self, site: Callable[[], Site]) -> None:
        self.site = site
        self.asked = 0
        self.go = asyncio.Event()

    async def request(self, *_what: object, **_more: object) -> bytes:
        self.asked += 1
        sample = self.site().webhook._sample()
        assert sample is not None
        await self.go.wait()
        cause = denial.canary().causes[0]
        text = f'admission webhook "{sample.webhook}" denied the request'
        raise Forbidden(403, "Forbidden", text, None, (Cause(cause.reason, cause.message, cause.field),))


@pytest.mark.parametrize("when", ["before", "meanwhile"])
async def test_a_quota_that_comes_where_an_equal_one_went_is_proven_anew(
    when: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The configuration may have been removed in between, and not be back yet."""
    monkeypatch.setattr(probe, "TAKES_UP", 0.0)
    server = Answering(lambda: site)
    site = Site()
    site.world.cluster("c1")
    site.world.quota("ann", selector={"matchLabels": ANN})
    registered = site.webhook._registered = RegisteredWebhook(
        cast(Cluster, server),
        CLUSTER,
        site.webhook._desired,
        site.webhook._sample,
        wanted=lambda: True,
        on_state=site.webhook._judge,
    )
    registered.keeper.in_place, canary = True, registered.canary
    site.webhook.configuration_changed()
    async with running(canary.run()):
        canary.look()
        await eventually(lambda: server.asked == 1)
        if when == "before":
            server.go.set()
            await eventually(lambda: site.said() == "True CanaryDenied")
            server.go.clear()
        site.world.remove("ann")
        site.webhook.configuration_changed()
        site.world.quota("bob", selector={"matchLabels": ANN})
        site.webhook.configuration_changed()
        assert not site.said().startswith("True")
        if when == "meanwhile":
            server.go.set()
            await eventually(lambda: canary.proof is not None)
            assert canary.proven == "", "it was sent before"
        canary.look()
        server.go.set()
        await eventually(lambda: site.said() == "True CanaryDenied")
