"""An error that nobody expected, of one seed or quota: the others go on, and it is not taken for well."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from common.api.types import Seed
from common.kube.client.api_client import Cluster
from common.kube.controller.store import Store
from common.runtime import unexpected
from master import manager
from master.cache.informers import Caches
from master.manager import Master
from master.quotas.events import QuotaEvents
from master.reporting.metrics import MasterMetrics
from master.seeds import link as links
from master.seeds.link import SeedLink
from master.seeds.phase import Phase
from master.seeds.registry import Seeds
from tests.running import running
from tests.unit.fake_api_server import eventually
from tests.unit.odd_errors import odd_errors


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unexpected, "FIRST_PAUSE", 0.01)
    monkeypatch.setattr(links, "RESTART_AFTER", 0.01)
    monkeypatch.setattr(manager, "PAUSE", 0.01)


def seed(name: str) -> Seed:
    spec = {"kubeconfigSecretRef": {"name": name}}
    return msgspec.convert({"metadata": {"name": name, "uid": f"{name}-uid"}, "spec": spec}, Seed)


@asynccontextmanager
async def seeds(*names: str) -> AsyncIterator[Seeds]:
    store: Store[Any] = Store({})
    for name in names:
        store._set(name, seed(name))
    caches = SimpleNamespace(
        secrets=SimpleNamespace(store=Store[Any]({})),
        seeds=SimpleNamespace(store=store),
        listen=lambda _listener: lambda: None,
    )
    made = Seeds(cast(Caches, caches), "seedquota", master="own-lease")
    async with running(made.run()):
        yield made


@odd_errors
async def test_a_term_that_fails_is_followed_by_another(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    terms: list[int] = []

    class Lease:
        lost = asyncio.Event()

        @asynccontextmanager
        async def hold(self) -> AsyncIterator[SimpleNamespace]:
            terms.append(len(terms) + 1)
            yield SimpleNamespace(number=terms[-1], settled=True)

    async def lead(**_how: object) -> None:
        if len(terms) == 1:
            raise error
        await asyncio.get_running_loop().create_future()

    async def synced() -> None:
        return

    master = Master(cast(Cluster, SimpleNamespace(name="master")), "seedquota", "one")
    monkeypatch.setattr(master, "lease", Lease())
    monkeypatch.setattr(master, "_lead", lead)
    monkeypatch.setattr(master.caches, "synced", synced)
    async with running(master._terms()) as (task,):
        await eventually(lambda: terms == [1, 2])
        assert not task.done()


@odd_errors
async def test_a_seed_that_cannot_be_taken_up_stops_no_other(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    start = SeedLink.start

    def fails(link: SeedLink) -> None:
        if link.name == "bad":
            raise error
        start(link)

    monkeypatch.setattr(SeedLink, "start", fails)
    async with seeds("bad", "good") as made:
        await eventually(lambda: "good" in made.links and made.links["good"].phase is Phase.INVALID_KUBECONFIG)


@odd_errors
async def test_a_link_that_fails_says_so_and_begins_anew(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    failures, wanted = [error, error], SeedLink._kubeconfig
    phases: list[tuple[str, Phase, str]] = []

    def fails(link: SeedLink) -> Any:
        if link.name == "bad" and failures:
            raise failures.pop()
        return wanted(link)

    async with seeds() as made:
        monkeypatch.setattr(SeedLink, "_kubeconfig", fails)
        made.on_seed = lambda name: phases.append((name, made.links[name].phase, made.links[name].problem))
        for name in ("bad", "good"):
            with unexpected.contained("test"):  # `check` fails, too
                made._take(seed(name))
        await eventually(lambda: made.links["bad"].phase is Phase.INVALID_KUBECONFIG)
        assert ("bad", Phase.UNREACHABLE, f"internal error: {type(error).__name__}") in phases
        assert made.links["good"].phase is Phase.INVALID_KUBECONFIG


@odd_errors
async def test_a_change_that_one_link_cannot_take_reaches_the_others(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    got: list[tuple[str, str]] = []

    def fails(_key: tuple[str, str]) -> None:
        raise error

    async with seeds("bad", "good") as made:
        await eventually(lambda: len(made.links) == 2)
        made.links["bad"].sync = cast(Any, SimpleNamespace(add=fails, crowded=False))
        made.links["good"].sync = cast(Any, SimpleNamespace(add=got.append, crowded=False))
        made._changed("projects", cast(Any, SimpleNamespace(old=None, new=seed("alpha"))))
        assert got == [("projects", "alpha")]


@odd_errors
async def test_an_event_that_cannot_be_written_stops_no_other(error: Exception) -> None:
    written: list[str] = []

    async def create(_resource: object, body: dict[str, Any]) -> None:
        if body["regarding"]["name"] == "bad":
            raise error
        written.append(body["regarding"]["name"])

    events = QuotaEvents(cast(Cluster, SimpleNamespace(create=create)), "one")
    async with running(events.run()):
        for name in ("bad", "good"):
            events.add(name, f"{name}-uid", "Reason", "note", warning=True)
        await eventually(lambda: written == ["good"])
        events.add("good", "good-uid", "Reason", "note", warning=True)
        await eventually(lambda: written == ["good", "good"])


@odd_errors
def test_metrics_of_other_quotas_are_shown(error: Exception) -> None:
    class Bad:
        @property
        def seeds(self) -> list[Any]:
            raise error

        spec = SimpleNamespace(subject=SimpleNamespace(kind="project", name="alpha"))

    def state(view: object) -> SimpleNamespace:
        return SimpleNamespace(view=view, shown=SimpleNamespace(conditions=[]))

    good = SimpleNamespace(spec=Bad.spec, seeds=[], limits={"cpu": 3 * 10**9})
    quotas = SimpleNamespace(states={"bad": state(Bad()), "good": state(good)})
    found = MasterMetrics(lambda: cast(Any, (SimpleNamespace(links={}, present=list), quotas))).collect()
    limits = next(family for family in found if family.name == "seedquota_limit")
    assert [(sample.labels["quota"], sample.value) for sample in limits.samples] == [("good", 3.0)]
