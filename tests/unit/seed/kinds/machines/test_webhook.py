from __future__ import annotations

import asyncio
import io
import json
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest
from msgspec.structs import replace

from common.api.labels import FITS_ANNOTATION
from common.api.types import Condition
from common.quota import account as accounts
from common.quota import fencing, resources
from common.server.http_server import HttpServer
from devcluster import certificates
from seed.kinds.machines.admission import MachineAdmission
from seed.kinds.machines.webhook import MachineWebhook, StampWebhook
from seed.registration.probe import ANNOTATION
from seed.sizing.sizer import Sizing
from seed.sizing.stamper import Stamping
from seed.webhooks import fits
from seed.webhooks.endpoint import Endpoint
from seed.webhooks.review import MAX_BODY
from seed.webhooks.router import route
from tests.memory_store import MemoryStore
from tests.unit.fake_api_server import within
from tests.unit.seed_world import CLUSTER_UID, SeedWorld, nanos, seed_world, sizing

TOKEN = "token-of-c1"
PATH = f"/machines/{CLUSTER_UID}/{TOKEN}"


def machine(
    cpu: str | None = "8", *, name: str = "m-1", uid: str = "5f0e6d6c-0001", generation: int = 1, **metadata: object
) -> dict:
    provider = {"cloudProvider": "fake", "cloudProviderSpec": {"cpu": cpu, "memory": "16Gi", "storage": "50Gi"}}
    if cpu is None:
        provider["cloudProvider"] = "unheard-of"
    return {
        "apiVersion": "cluster.k8s.io/v1alpha1",
        "kind": "Machine",
        "metadata": {"name": name, "namespace": "kube-system", "uid": uid, "generation": generation, **metadata},
        "spec": {"providerSpec": {"value": provider}},
    }


def review(new: dict | None, old: dict | None = None, *, operation: str | None = None, dry_run: bool = False) -> dict:
    return {
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "request": {
            "uid": "request-1",
            "operation": operation or ("CREATE" if old is None else "UPDATE"),
            "namespace": "kube-system",
            "name": "m-1",
            "userInfo": {"username": "ann", "groups": ["tenants"]},
            "object": new,
            "oldObject": old,
            "dryRun": dry_run,
        },
    }


class Caller:
    """An API server: speaks TLS and HTTP, and checks the certificate."""

    def __init__(
        self, world: SeedWorld, session: aiohttp.ClientSession, decisions: list[tuple[str, str, str]], sizes: Sizing
    ) -> None:
        self.world = world
        self.sizes = sizes
        self.decisions = decisions
        self._session = session

    async def post(self, body: object, path: str = f"{PATH}?timeout=30s") -> tuple[int, str]:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        headers = {"Content-Type": "application/json"}
        async with self._session.post(path, data=io.BytesIO(data), headers=headers) as answer:
            return answer.status, await answer.text()

    async def ask(self, body: dict, path: str = f"{PATH}?timeout=30s") -> dict:
        status, text = await self.post(body, path)
        assert status == 200, text
        answer = json.loads(text)
        assert (answer["apiVersion"], answer["kind"]) == ("admission.k8s.io/v1", "AdmissionReview")
        assert answer["response"]["uid"] == "request-1"
        return answer["response"]

    async def get(self, path: str) -> int:
        async with self._session.get(path) as answer:
            return answer.status


@asynccontextmanager
async def serving(
    directory: Path, store: MemoryStore | None = None, sizes: Sizing | None = None
) -> AsyncIterator[Caller]:
    sizes = sizes or sizing()
    made = certificates.serving("webhook")
    (directory / "tls.crt").write_text(made.certificate)
    (directory / "tls.key").write_text(made.key)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(directory / "tls.crt", directory / "tls.key")
    async with seed_world(store) as world:
        decisions: list[tuple[str, str, str]] = []
        handle = route(
            {
                "machines": Endpoint(
                    MachineWebhook(world.cluster_cache, MachineAdmission(world.quota_cache, world.admission, sizes)),
                    lambda _kind, decision, reason, path, _seconds: decisions.append((decision, reason, path)),
                ),
                "stamp": Endpoint(StampWebhook(Stamping(world.cluster_cache, sizes))),
            },
            lambda _name, uid, token: (uid, token) == (CLUSTER_UID, TOKEN) or token == "token-of-a-deleted-cluster",
        )
        server = HttpServer(handle, max_body=MAX_BODY)
        await server.start("127.0.0.1", 0, context)
        trusting = ssl.create_default_context(cadata=made.ca)
        async with aiohttp.ClientSession(
            f"https://127.0.0.1:{server.port}", connector=aiohttp.TCPConnector(ssl=trusting)
        ) as session:
            yield Caller(world, session, decisions, sizes)
        await server.stop(0.1)


@pytest.fixture
async def caller(tmp_path: Path) -> AsyncIterator[Caller]:
    async with serving(tmp_path) as found:
        yield found


async def test_a_machine_that_fits_is_admitted_and_reserved_by_its_uid(caller: Caller) -> None:
    await caller.world.quota(limits="cpu=64", granted="cpu=64")
    assert await caller.ask(review(machine())) == {"uid": "request-1", "allowed": True}
    ((source, uid), kept), *others = caller.world.account().reservations.items()
    assert not others
    assert (source, uid) == ("alpha/c1", "5f0e6d6c-0001")
    assert (kept.source, kept.object, kept.generation) == ("alpha/c1", "kube-system/m-1", 0)
    assert kept.amount == nanos("cpu=8,memory=16Gi,storage=50Gi,machines=1")
    assert caller.decisions == [("allowed", "", "local")]


async def test_a_refusal_carries_what_people_and_programs_need(caller: Caller) -> None:
    await caller.world.quota(limits="cpu=64", granted="cpu=64", used="cpu=60")
    response = await caller.ask(review(machine()))
    status = response.pop("status")
    assert response == {"uid": "request-1", "allowed": False}
    message, _, decision = status.pop("message").rpartition("; decision ")
    assert message == (
        "exceeded quota: project-alpha, requested: cpu=8, used: cpu=60, limited: cpu=64; short by cpu=4; "
        "retrying helps only after something is deleted"
    )
    assert len(decision) == 8
    cause = {"reason": "QuotaExceeded", "message": "requested cpu=8, used cpu=60, limited cpu=64", "field": "cpu"}
    assert status == {"code": 403, "reason": "Forbidden", "status": "Failure", "details": {"causes": [cause]}}
    assert caller.decisions == [("denied", "QuotaExceeded", "local")]


@pytest.mark.parametrize("status", ["True", "False", "Unknown", ""])
async def test_a_refusal_names_the_local_copies_only_where_they_are(caller: Caller, status: str) -> None:
    conditions = [Condition(type="LocalQuotasWritten", status=status)] if status else []
    clusters = caller.world.cluster_cache.user_clusters.store
    cluster = clusters.get("alpha/c1")
    assert cluster is not None
    clusters._set("alpha/c1", replace(cluster, status=replace(cluster.status, conditions=conditions)))
    await caller.world.quota(limits="cpu=64", granted="cpu=64", used="cpu=60")
    message = (await caller.ask(review(machine())))["status"]["message"]
    assert ("; see: kubectl get lsq -n kube-system; decision " in message) is (status == "True")


async def test_what_cannot_be_decided_now_names_the_seconds_to_wait(caller: Caller) -> None:
    handle = await caller.world.quota(limits="cpu=64", granted="cpu=64")
    await handle.writer.change(lambda account: (fencing.fence(account, "n"), None))
    status = (await caller.ask(review(machine())))["status"]
    assert (status["code"], status["reason"]) == (503, "ServiceUnavailable")
    assert status["details"]["retryAfterSeconds"] == 1
    assert caller.decisions == [("denied", "QuotaUnavailable", "unavailable")]


async def test_warnings_reach_the_user(caller: Caller) -> None:
    await caller.world.quota(limits="cpu=64", granted="cpu=64", used="cpu=54")
    assert await caller.ask(review(machine())) == {
        "uid": "request-1",
        "allowed": True,
        "warnings": ["seedquota/project-alpha: cpu 62/64 (96%) after this"],
    }


async def test_a_machine_that_cannot_be_sized_is_invalid(caller: Caller) -> None:
    await caller.world.quota(limits="cpu=64", granted="cpu=64")
    status = (await caller.ask(review(machine(None))))["status"]
    assert (status["code"], status["reason"]) == (422, "Invalid")
    assert status["message"].startswith('cannot size machine: cloudProvider "unheard-of" is not supported')
    assert status["details"]["causes"][0]["reason"] == "MachineNotSized"


async def test_a_canary_is_refused_by_the_webhook_that_admits_and_not_by_the_one_that_stamps(caller: Caller) -> None:
    """API servers ask the one that stamps first, so its refusal would prove nothing of the other."""
    canary = review(machine(annotations={ANNOTATION: "true"}), dry_run=True)
    refused = await caller.ask(canary)
    assert refused["status"]["details"]["causes"][0]["reason"] == "CanaryDenied"
    assert (await caller.ask(canary, f"/stamp/{CLUSTER_UID}/{TOKEN}?timeout=30s"))["allowed"]


async def test_a_dry_run_writes_nothing(caller: Caller) -> None:
    await caller.world.quota(limits="cpu=64", granted="cpu=64")
    assert (await caller.ask(review(machine(), dry_run=True)))["allowed"]
    assert caller.world.account().reservations == {}
    assert not (await caller.ask(review(machine("65"), dry_run=True)))["allowed"]


@pytest.mark.parametrize(
    "path",
    [
        f"/machines/{CLUSTER_UID}/wrong",
        f"/machines/other-uid/{TOKEN}",
        f"/machines/{CLUSTER_UID}",
        f"/machines/{CLUSTER_UID}/{TOKEN}/more",
        f"/pods/{CLUSTER_UID}/{TOKEN}",
        "/",
    ],
)
async def test_who_does_not_know_the_url_learns_nothing(caller: Caller, path: str) -> None:
    await caller.world.quota(limits="cpu=64", granted="cpu=64")
    assert await caller.post(review(machine()), path) == (404, "not found\n")
    assert caller.world.account().reservations == {}


async def test_only_reviews_are_posted(caller: Caller) -> None:
    assert await caller.get(PATH) == 404


async def test_a_cluster_that_was_removed_is_told_to_wait(caller: Caller) -> None:
    await caller.world.quota(limits="cpu=64", granted="cpu=64")
    response = await caller.ask(review(machine()), "/machines/gone/token-of-a-deleted-cluster")
    assert response["status"]["code"] == 503


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b'{"request": {"uid": "u"}}',
        b'{"request": {"uid": "u", "operation": "CREATE", "object": {"metadata": {"name": 7}}}}',
        b'{"request": {"uid": "\xff", "operation": "CREATE"}}',
        b'{"request": {"uid": "u", "operation": "CREATE", "object": ' + b"[" * 200_000,
        b'{"other": ' + b"[" * 200_000 + b"]" * 200_000 + b', "request": {"uid": "u", "operation": "CREATE"}}',
    ],
    ids=["empty", "cut", "list", "partial", "wrong type", "not utf-8", "cut deep", "deep"],
)
async def test_what_is_no_review_is_refused_and_the_next_one_served(caller: Caller, body: bytes) -> None:
    status, text = await caller.post(body)
    assert status == 400
    assert text.startswith("not an AdmissionReview of a Machine: ")
    assert (await caller.ask(review(machine())))["allowed"]


@pytest.mark.parametrize(
    "wrong",
    [
        {"name": "m 1"},
        {"name": ""},
        {"name": "m" * 254},
        {"namespace": ""},
        {"namespace": "a/b"},
        {"uid": ""},
        {"uid": "u" * 65},
        {"uid": "a\nb"},
    ],
    ids=str,
)
async def test_names_that_no_api_server_sends_do_not_reach_the_ledger(caller: Caller, wrong: dict[str, str]) -> None:
    await caller.world.quota(limits="cpu=64", granted="cpu=64")
    new = machine()
    new["metadata"].update(wrong)
    status, text = await caller.post(review(new))
    assert (status, text) == (400, "the object has no proper name, namespace and uid\n")
    assert caller.world.account().reservations == {}


@pytest.mark.parametrize("generation", [-1, 2**63, 10**4000], ids=["negative", "beyond 64 bits", "4001 digits"])
@pytest.mark.parametrize("operation", ["CREATE", "UPDATE"])
async def test_a_generation_that_no_api_server_has_does_not_reach_the_ledger(
    caller: Caller, operation: str, generation: int
) -> None:
    await caller.world.quota(limits="cpu=64", granted="cpu=64")
    new = machine(generation=generation, cpu="9")
    status, text = await caller.post(review(new, machine() if operation == "UPDATE" else None))
    assert status == 400
    assert "generation" in text
    assert caller.world.account().reservations == {}


async def test_what_is_too_large_is_refused(caller: Caller) -> None:
    assert (await caller.post(b" " * (MAX_BODY + 1)))[0] == 413
    large = machine()
    large["metadata"]["annotations"] = {"a": "x" * (3 * 2**19)}
    assert (await caller.ask(review(large, large)))["allowed"], "two objects of the largest size that etcd takes fit"


async def test_an_update_costs_what_it_adds(caller: Caller) -> None:
    await caller.world.quota(limits="cpu=64", granted="cpu=64", used="cpu=60")
    grown = machine("12", generation=2)
    assert (await caller.ask(review(grown, machine("8"))))["allowed"]
    (kept,) = caller.world.account().reservations.values()
    assert (kept.amount, kept.generation) == (nanos("cpu=4"), 2)


async def test_an_update_that_does_not_fit_is_refused_with_what_it_adds(caller: Caller) -> None:
    await caller.world.quota(limits="cpu=64", granted="cpu=64", used="cpu=60")
    response = await caller.ask(review(machine("13", generation=2), machine("8")))
    assert "requested: cpu=5, used: cpu=60, limited: cpu=64; short by cpu=1;" in response["status"]["message"]


async def test_lowering_is_always_allowed_and_reserves_nothing(caller: Caller) -> None:
    await caller.world.quota(limits="cpu=64", granted="cpu=64", used="cpu=99")
    assert (await caller.ask(review(machine("4", generation=2), machine("8"))))["allowed"]
    assert caller.world.account().reservations == {}


async def test_an_update_of_anything_but_the_size_costs_nothing(caller: Caller) -> None:
    await caller.world.quota(limits="cpu=64", granted="cpu=64", used="cpu=99")
    assert (await caller.ask(review(machine("8", generation=2, labels={"a": "b"}), machine("8"))))["allowed"]
    assert caller.world.account().reservations == {}


async def test_a_machine_that_cannot_be_sized_can_lose_its_finalizer(caller: Caller) -> None:
    await caller.world.quota(limits="cpu=64", granted="cpu=64", used="cpu=99")
    going = machine(None, finalizers=["machine-node"], deletionTimestamp="2026-11-20T10:00:03Z")
    gone = machine(None, deletionTimestamp="2026-11-20T10:00:03Z")
    assert (await caller.ask(review(gone, going)))["allowed"]


async def test_a_machine_that_could_not_be_sized_costs_all_but_itself_once_it_can_be(caller: Caller) -> None:
    await caller.world.quota(limits="cpu=64,machines=1", granted="cpu=64,machines=1", used="machines=1")
    assert (await caller.ask(review(machine("8", generation=2), machine(None))))["allowed"]
    (kept,) = caller.world.account().reservations.values()
    assert kept.amount == nanos("cpu=8,memory=16Gi,storage=50Gi")


async def test_a_size_that_is_not_told_is_refused_where_a_quota_limits_it(caller: Caller) -> None:
    new = machine()
    del new["spec"]["providerSpec"]["value"]["cloudProviderSpec"]["storage"]
    await caller.world.quota(limits="cpu=64", granted="cpu=64")
    assert (await caller.ask(review(new)))["allowed"]
    await caller.world.quota("org-acme", limits="storage=4Ti", granted="storage=4Ti", kind="organization")
    status = (await caller.ask(review(new)))["status"]
    assert (status["code"], status["details"]["causes"][0]["reason"]) == (422, "MachineNotSized")


async def test_deletes_are_never_refused(caller: Caller) -> None:
    await caller.world.quota(limits="cpu=1", granted="", used="cpu=99")
    assert (await caller.ask(review(None, machine(), operation="DELETE")))["allowed"]


async def test_the_answer_comes_within_the_callers_time(caller: Caller) -> None:
    await caller.world.quota(limits="cpu=64", granted="cpu=1")
    loop = asyncio.get_running_loop()
    started = loop.time()
    async with within(3):
        response = await caller.ask(review(machine()), f"{PATH}?timeout=3s")
    assert loop.time() - started > 0.3
    assert response["status"]["code"] == 503
    assert response["status"]["message"].startswith(
        "quota project-alpha cannot decide: the master did not answer in time"
    )


def fits_of(answer: dict) -> fits.Fits:
    """What the one cause says: for programs, as `seedquota fits`."""
    assert answer["allowed"] is False
    (cause,) = answer["status"]["details"]["causes"]
    assert (answer["status"]["code"], cause["reason"]) == (403, fits.REASON)
    return fits.read(cause["message"])


@pytest.mark.parametrize(("count", "fitting", "code"), [("4", 2, 403), ("2", 2, 0), ("1000", 2, 403)])
async def test_a_dry_run_that_asks_it_is_told_how_many_fit_and_takes_nothing(
    caller: Caller, count: str, fitting: int, code: int
) -> None:
    await caller.world.quota("project-alpha", limits="cpu=64", granted="cpu=64", used="cpu=44")
    await caller.world.quota("org-acme", limits="cpu=200", granted="cpu=200", kind="organization")
    before = caller.world.account("project-alpha")
    asked = machine(annotations={FITS_ANNOTATION: count})
    found = fits_of(await caller.ask(review(asked, dry_run=True)))
    assert (found.asked, found.code) == (int(count), code)
    by_name = {each.name: each for each in found.quotas}
    alpha = by_name["project-alpha"]
    assert (alpha.fitting, alpha.free, alpha.used) == (fitting, {"cpu": "20"}, {"cpu": "44"})
    assert resources.parse(alpha.need) == nanos(f"cpu={8 * int(count)}")
    assert by_name["org-acme"].fitting == min(int(count), 25), "it answers although the other can never have room"
    assert caller.world.account("project-alpha") is before


async def test_who_does_not_ask_by_a_dry_run_is_admitted_as_one(caller: Caller) -> None:
    await caller.world.quota(limits="cpu=64", granted="cpu=64")
    assert (await caller.ask(review(machine(annotations={FITS_ANNOTATION: "1000"}))))["allowed"]
    assert accounts.use(caller.world.account())["cpu"] == 8 * 10**9
    for text in ("0", "-1", "1000000", "two", "1.5", ""):
        asked = machine(uid="another", annotations={FITS_ANNOTATION: text})
        assert (await caller.ask(review(asked, dry_run=True)))["allowed"], text


async def test_what_can_never_be_admitted_and_what_cannot_be_decided_is_told_as_that(caller: Caller) -> None:
    asked = {"annotations": {FITS_ANNOTATION: "2"}}
    assert fits_of(await caller.ask(review(machine(**asked), dry_run=True))).quotas == []
    await caller.world.quota(limits="cpu=64")
    found = fits_of(await caller.ask(review(machine(cpu=None, **asked), dry_run=True)))
    assert (found.code, found.reason, found.quotas) == (422, "MachineNotSized", [])
