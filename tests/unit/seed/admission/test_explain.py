"""From a decision to its explanation: what is kept, what is answered, and that the same code decides it again."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import msgspec
import pytest
from aiohttp import web
from msgspec import structs

from cli import explain as command
from cli.__main__ import run
from cli.terminal import printable
from common.api.types import WireIdle
from common.kube.client.meta import ObjectMeta
from common.quota import fencing
from common.runtime.flags import Address
from common.runtime.metrics import build_version
from common.server.health import Health
from master.__main__ import main as master_main
from seed import size_command
from seed.__main__ import main as seed_main
from seed.accounts import capacity
from seed.admission import decision_log
from seed.admission.decision_log import PATH, REFUSED, Call, Decisions
from seed.admission.record import Record
from seed.admission.replay import replay, text
from seed.admission.types import Verdict
from tests.cpu import no_garbage_collection
from tests.unit.seed.admission.test_admitter import NAMESPACES, SILENT, full_with_surge, replacing, request, shared
from tests.unit.seed_world import CLUSTER_UID, SeedWorld, seed_world


def keep(
    world: SeedWorld,
    decisions: Decisions,
    found: Verdict,
    name: str = "m",
    *,
    dry_run: bool = False,
    namespace: str = "alpha",
) -> None:
    cluster = world.cluster_cache.user_cluster_by_uid(CLUSTER_UID)
    assert cluster is not None
    cluster = msgspec.structs.replace(cluster, metadata=msgspec.structs.replace(cluster.metadata, namespace=namespace))
    subject = ObjectMeta(name=name, namespace="ns", uid=f"uid of {name}")
    call = Call(operation="CREATE", user="ann", dry_run=dry_run, seconds=0.0012)
    decisions.made(found, cluster, subject, call)


def kept(world: SeedWorld, found: Verdict, *, dry_run: bool = False) -> Record:
    """As somebody reads it who asks for it by its id."""
    decisions = Decisions()
    keep(world, decisions, found, dry_run=dry_run)
    content = decisions.page(found.decision, {})
    assert content is not None
    return msgspec.json.decode(content, type=Record)


@pytest.fixture(autouse=True)
def unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the master answered does not grow old while the machine has other things to do."""
    monkeypatch.setattr(capacity, "FRESH", 60.0)


async def answered(world: SeedWorld, **grant: object) -> Verdict:
    """A decision that waited for the master's answer."""
    deciding = asyncio.create_task(world.admission.decide(request()))
    await world.asked()
    world.tell(answered=1, **grant)  # type: ignore[arg-type]
    return await deciding


async def fits(world: SeedWorld) -> Verdict:
    await world.quota(limits="cpu=64,memory=1Gi", granted="cpu=16")
    return await world.admission.decide(request())


async def fits_beside_others(world: SeedWorld) -> Verdict:
    await world.quota(limits="cpu=64", granted="cpu=64")
    found = await asyncio.gather(*(world.admission.decide(request(f"u{number}")) for number in range(8)))
    return found[0]


async def fits_after_an_answer(world: SeedWorld) -> Verdict:
    await world.quota(limits="cpu=64", granted="cpu=4")
    return await answered(world, granted={"cpu": "8"}, usage="cpu=20")


async def lent(world: SeedWorld) -> Verdict:
    await full_with_surge(world)
    return await world.admission.decide(request("new"), replacing("old"))


async def warned(world: SeedWorld) -> Verdict:
    await world.quota(limits="cpu=4", granted="cpu=4", enforcement="warn")
    return await world.admission.decide(request())


async def shared_by_quotas_of_namespaces(world: SeedWorld) -> Verdict:
    await world.quota("ann", limits="requests.cpu=8", granted="requests.cpu=8", **NAMESPACES)
    await world.quota("web", limits="pods=4", granted="pods=4", used="pods=2", **NAMESPACES)
    return await shared(world, ann="requests.cpu=2", web="pods=1")


async def refused_by_one_of_namespaces(world: SeedWorld) -> Verdict:
    await world.quota("ann", limits="requests.cpu=8", granted="requests.cpu=8", **NAMESPACES)
    await world.quota("web", limits="pods=4", granted="pods=4", used="pods=4", **NAMESPACES)
    return await shared(world, ann="requests.cpu=2", web="pods=1")


async def larger_than_the_limit(world: SeedWorld) -> Verdict:
    await world.quota(limits="cpu=4", granted="cpu=4")
    return await world.admission.decide(request())


async def full(world: SeedWorld) -> Verdict:
    await world.quota(limits="cpu=64", granted="cpu=64", used="cpu=60")
    return await world.admission.decide(request())


async def full_of_thousands(world: SeedWorld) -> Verdict:
    await world.quota(limits="cpu=2003", granted="cpu=2003", used="cpu=2000")
    return await world.admission.decide(request())


async def full_by_the_masters_answer(world: SeedWorld) -> Verdict:
    await world.quota(limits="cpu=64", granted="cpu=4")
    return await answered(world, usage="cpu=60", reserved="cpu=2")


async def beyond_the_surge(world: SeedWorld) -> Verdict:
    await full_with_surge(world, "cpu=4", "cpu=16,surge.cpu=4")
    return await world.admission.decide(request("new"), replacing("old"))


async def one_of_two_refuses(world: SeedWorld) -> Verdict:
    await world.quota("project-alpha", limits="cpu=64", granted="cpu=64")
    await world.quota("org-acme", limits="cpu=10", granted="cpu=10", used="cpu=4", kind="organization")
    return await world.admission.decide(request())


async def fenced(world: SeedWorld) -> Verdict:
    handle = await world.quota(limits="cpu=64", granted="cpu=64")
    await handle.writer.change(lambda account: (fencing.fence(account, "n"), None))
    return await world.admission.decide(request())


async def out_of_reach(world: SeedWorld) -> Verdict:
    await world.quota(limits="cpu=64", granted="cpu=4")
    return await answered(world, usage="cpu=4", unavailable=[WireIdle(seed="us-1", idle={"cpu": "12"}, seconds=420)])


async def silent(world: SeedWorld) -> Verdict:
    await world.quota(limits="cpu=64", granted="cpu=4")
    return await world.admission.decide(request(seconds=SILENT))


Deciding = Callable[[SeedWorld], Awaitable[Verdict]]


@pytest.mark.parametrize(
    ("deciding", "lines"),
    [
        (
            fits,
            ["needs: cpu=8", "  used here, this one included: cpu=8, cpu=8 of it being created", "replayed: admitted"],
        ),
        (fits_beside_others, ["replayed: admitted"]),
        (fits_after_an_answer, ["the master was asked for cpu=8 (ask 1)", "replayed: admitted"]),
        (lent, ["on surge: surge.cpu=8", "replayed: admitted"]),
        (warned, ["replayed: over by cpu=4, admitted because enforcement is warn"]),
        (
            shared_by_quotas_of_namespaces,
            ["  needs: requests.cpu=2", "  needs: pods=1", "used here, this one included: pods=3, pods=1 of it"],
        ),
        (
            refused_by_one_of_namespaces,
            ["fits if pods=1 is freed or the limit is raised to pods=5; no object that needs pods fits now"],
        ),
        (larger_than_the_limit, ["fits if the limit is raised to cpu=8; a machine of at most cpu=4 fits now"]),
        (
            full,
            [
                "used everywhere: cpu=60",
                "held here: cpu=64; free: cpu=4",
                "replayed: refused: short by cpu=4",
                "fits if cpu=4 is freed or the limit is raised to cpu=68; a machine of at most cpu=4 fits now",
            ],
        ),
        (
            full_of_thousands,
            [
                "  limited: cpu=2003",
                "  used everywhere: cpu=2000",
                "  used here: cpu=2000",
                "  held here: cpu=2003; free: cpu=3",
                "fits if cpu=5 is freed or the limit is raised to cpu=2008; a machine of at most cpu=3 fits now",
            ],
        ),
        (full_by_the_masters_answer, ["used everywhere: cpu=60, cpu=2 of it being created", "short by cpu=4"]),
        (beyond_the_surge, ["raised to cpu=24; no machine that needs cpu fits now"]),
        (
            one_of_two_refuses,
            ["seedquota/org-acme (deny): 403 QuotaExceeded", "seedquota/project-alpha (deny): admitted"],
        ),
        (fenced, ["here: the account does not admit", "fits when the account is open again"]),
        (
            out_of_reach,
            [
                "short by cpu=4",
                "fits if cpu=4 is freed on this seed, or when the master reaches seed us-1 (cpu=12 free",
            ],
        ),
        (silent, ["fits if cpu=4 is freed on this seed, or when the master answers"]),
    ],
)
async def test_a_decision_is_made_again_from_its_facts_and_says_what_would_have_fit(
    deciding: Deciding, lines: list[str]
) -> None:
    async with seed_world() as world:
        record = kept(world, await deciding(world))
    again = replay(record)
    said = "\n".join(text(record, again))
    assert again.as_then, said
    for line in lines:
        assert line in said, said


@pytest.mark.parametrize("deciding", [full, larger_than_the_limit, one_of_two_refuses, full_by_the_masters_answer])
async def test_a_refusal_with_other_facts_is_told_from_what_it_was(deciding: Deciding) -> None:
    async with seed_world() as world:
        record = kept(world, await deciding(world))
    for quota in record.quotas:
        quota.limits = dict.fromkeys(quota.limits, "1k")
    assert not replay(record).as_then


async def test_an_admission_that_its_facts_do_not_allow_is_noticed() -> None:
    async with seed_world() as world:
        record = kept(world, await fits(world))
    account = record.quotas[0].account
    assert account is not None
    account.granted = {"cpu": "7"}
    assert not replay(record).as_then
    assert "replayed: refused: short by cpu=1; NOT as then" in "\n".join(text(record, replay(record)))


async def test_a_dry_run_says_so_and_is_nobodys_business() -> None:
    heard: list[str] = []
    decisions = Decisions(on_decision=lambda _cluster, machine, _found: heard.append(machine.name))
    async with seed_world() as world:
        await world.quota(limits="cpu=4", granted="cpu=4")
        keep(world, decisions, await world.admission.decide(request(dry_run=True)), "dry", dry_run=True)
        keep(world, decisions, await world.admission.decide(request()), "real")
    assert heard == ["real"]
    found = decisions.page("", {"machine": "dry"})
    assert found is not None and msgspec.json.decode(found)["items"][0]["dryRun"] is True


async def test_it_keeps_the_last_ones_and_finds_those_about_a_machine() -> None:
    decisions = Decisions(most=3)
    async with seed_world() as world:
        ids = []
        for name in ("a", "b", "a", "c", "a"):
            found = await world.admission.decide(request())
            ids.append(found.decision)
            keep(world, decisions, found, name)

    def of(machine: str) -> list[str]:
        content = decisions.page("", {"machine": machine})
        assert content is not None
        return [item["decision"] for item in msgspec.json.decode(content)["items"]]

    assert of("a") == of("ns/a") == [ids[4], ids[2]]
    assert of("b") == of("other/a") == of("") == []
    assert decisions.page(ids[0], {}) is None
    assert decisions.page(ids[2], {}) is not None


async def test_what_a_quota_refused_lately_is_listed_without_what_it_admitted_and_dry_runs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    decisions = Decisions()

    def refused(**query: str) -> tuple[list[str], bool]:
        content = decisions.page(REFUSED, query)
        assert content is not None
        found = msgspec.json.decode(content)
        return [item["decision"] for item in found["items"]], found["more"]

    async with seed_world() as world:
        admitted = await fits(world)
        keep(world, decisions, admitted)
        assert refused(quota="project-alpha") == ([], False)
        one, two = await larger_than_the_limit(world), await larger_than_the_limit(world)
        for found in (one, two):
            keep(world, decisions, found)
        keep(world, decisions, await larger_than_the_limit(world), dry_run=True)
    (name,) = {attempt.snapshot.quota.name for attempt in one.attempts}
    last_first = [two.decision, one.decision]
    assert refused(quota=name) == (last_first, False)
    assert one.request is not None
    assert refused(project=one.request.consumer.project) == (last_first, False)
    assert refused(quota="another") == refused(project="another") == refused() == ([], False)
    for bound in ("MAX_REFUSED", "MAX_REFUSED_BYTES"):
        with monkeypatch.context() as patched:
            patched.setattr(decision_log, bound, 1 if bound == "MAX_REFUSED" else 1200)
            assert refused(quota=name) == (last_first[:1], True), "the last ones, and that there are others"
    monkeypatch.setattr(decision_log, "LATELY", -1.0)
    assert refused(quota=name) == ([], False)


async def test_nothing_is_kept_of_what_costs_nothing() -> None:
    decisions = Decisions()
    async with seed_world() as world:
        keep(world, decisions, Verdict())
    assert decisions.page("", {"machine": "m"}) == b'{"items":[]}'


async def test_keeping_a_decision_costs_microseconds() -> None:
    decisions = Decisions()
    async with seed_world() as world:
        found = await fits(world)
        with no_garbage_collection():
            started = time.thread_time()
            for _ in range(10_000):
                keep(world, decisions, found)
            assert (time.thread_time() - started) / 10_000 < 100e-6


@pytest.fixture
async def agent() -> AsyncIterator[tuple[str, Decisions, str]]:
    """Its URL, what it keeps, and the id of a refusal."""
    health, decisions = Health(), Decisions()
    health.pages[PATH] = decisions.page
    async with seed_world() as world, health.serve(Address("127.0.0.1", 0)):
        found = await full(world)
        keep(world, decisions, found, "refused")
        yield f"http://127.0.0.1:{health.port}", decisions, found.decision


async def explain(*arguments: str) -> int:
    return await asyncio.to_thread(run, ["explain", *arguments])


async def test_the_command_prints_what_agents_keep(
    agent: tuple[str, Decisions, str], capsys: pytest.CaptureFixture[str]
) -> None:
    url, _, decision = agent
    for what in (decision, decision.lower(), "machine/refused", "machine/ns/refused"):
        assert await explain(what, "--url", "http://127.0.0.1:1", "--url", url) == 0
        said = capsys.readouterr().out
        assert said.startswith(f"decision {decision} of ")
        assert "fits if cpu=4 is freed or the limit is raised to cpu=68; a machine of at most cpu=4 fits now" in said
        assert f"kept by {url}" in said and "not asked: http://127.0.0.1:1: " in said
    assert await explain(decision, "--url", url, "-o", "json") == 0
    (item,) = msgspec.json.decode(capsys.readouterr().out)["items"]
    assert item["record"]["quotas"][0]["used"] == {"cpu": "60"}
    assert item["replay"]["asThen"] is True


async def test_whose_name_has_a_line_end_writes_no_line_of_the_answer(
    agent: tuple[str, Decisions, str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    url, _, decision = agent
    assert await explain(decision, "--url", url) == 0
    lines = capsys.readouterr().out.count("\n")
    as_told = command._one
    forged = "ann\nseedquota/project-alpha (deny): admitted"
    monkeypatch.setattr(command, "_one", lambda raw: [structs.replace(one, user=forged) for one in as_told(raw)])
    assert await explain(decision, "--url", url) == 0
    said = capsys.readouterr().out
    assert said.count("\n") == lines and "by ann\\nseedquota" in said


async def test_the_command_fails_for_what_nobody_knows(
    agent: tuple[str, Decisions, str], capsys: pytest.CaptureFixture[str]
) -> None:
    for what in ("00000000", "machine/unknown", "../healthz"):
        assert await explain(what, "--url", agent[0]) == 1
        printed = capsys.readouterr()
        assert printed.out == "" and "knows a decision" in printed.err
    assert await explain("00000000", "--url", "http://127.0.0.1:1") == 1
    assert capsys.readouterr().err.startswith("seedquota: no agent can be asked: http://127.0.0.1:1: ")
    capsys.readouterr()
    for arguments, said in (
        ([], "the following arguments are required: ID|machine/NAME"),
        (["00000000", "--url", "127.0.0.1:8081"], "'127.0.0.1:8081' is not a URL such as http://127.0.0.1:8081"),
    ):
        with pytest.raises(SystemExit) as usage:
            await explain(*arguments)
        assert usage.value.code == 1
        assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    "what", ["", "0", "000000000", "00 00 00", "machine/", "machine//a", "machine/a/b/c", "Machine/a"]
)
async def test_what_names_no_decision_is_told_how_one_is_named(what: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert await explain(what, "--url", "http://127.0.0.1:1") == 1
    assert "write the 8 letters and digits that a refusal ends with, machine/NAME or" in capsys.readouterr().err


async def test_a_kubeconfig_that_cannot_be_used_is_named_with_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    missing = tmp_path / "missing"
    monkeypatch.setenv("KUBECONFIG", f"{tmp_path}/a:{tmp_path}/b")
    assert await explain("00000000") == 1
    assert (
        "KUBECONFIG names several files, which is not supported: name one with --kubeconfig" in capsys.readouterr().err
    )
    assert await explain("00000000", "--kubeconfig", str(missing)) == 1
    said = capsys.readouterr().err
    assert said == f"seedquota: seed: {missing}: kubeconfig file cannot be read: No such file or directory\n"


def test_every_command_tells_its_version(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    programs: list[tuple[str, Callable[[], object]]] = [
        ("seedquota", lambda: run(["--version"])),
        ("seedquota-master", master_main),
        ("seedquota-seed", seed_main),
        ("seedquota-seed", lambda: size_command.main(["--version"])),
    ]
    monkeypatch.setattr("sys.argv", ["program", "--version"])
    for name, main in programs:
        with pytest.raises(SystemExit) as ended:
            main()
        assert ended.value.code == 0
        assert capsys.readouterr().out == f"{name} {build_version()}\n"


async def test_the_command_asks_the_running_pods_through_the_api_server(
    agent: tuple[str, Decisions, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    _, decisions, decision = agent
    asked: list[str] = []

    async def pods(asking: web.Request) -> web.Response:
        assert asking.query["labelSelector"] == "app.kubernetes.io/name=seedquota-seed"
        ports = [{"containerPort": 9443, "name": "webhook"}, {"containerPort": 8099, "name": "health"}]
        items = [
            {"metadata": {"name": "one"}, "spec": {"containers": [{"ports": ports}]}, "status": {"phase": "Running"}},
            {"metadata": {"name": "two"}, "spec": {"containers": [{}]}, "status": {"phase": "Running"}},
            {"metadata": {"name": "old"}, "spec": {"containers": []}, "status": {"phase": "Failed"}},
        ]
        return web.json_response({"kind": "PodList", "metadata": {"resourceVersion": "1"}, "items": items})

    async def token(asking: web.Request) -> web.Response:
        spec = (await asking.json())["spec"]
        assert spec == {"audiences": ["seedquota"], "expirationSeconds": 600}
        return web.json_response({"kind": "TokenRequest", "status": {"token": "for-agents"}}, status=201)

    async def proxy(asking: web.Request) -> web.Response:
        assert asking.headers["Seedquota-Token"] == "for-agents", "the API server keeps Authorization for itself"
        asked.append(asking.path)
        if "/one:8099/" in asking.path:
            content = decisions.page(asking.match_info["id"], {})
            return web.Response(body=content, content_type="application/json")
        return web.json_response({"kind": "Status", "code": 403, "reason": "Forbidden", "message": "no"}, status=403)

    app = web.Application()
    app.router.add_get("/api/v1/namespaces/quotas/pods", pods)
    app.router.add_post("/api/v1/namespaces/quotas/serviceaccounts/seedquota-explain/token", token)
    app.router.add_get("/api/v1/namespaces/quotas/pods/{pod}/proxy/decisions/{id}", proxy)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    config = {
        "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [{"name": "c", "cluster": {"server": f"http://127.0.0.1:{runner.addresses[0][1]}"}}],
        "users": [{"name": "u", "user": {"token": "t"}}],
    }
    (tmp_path / "kubeconfig").write_bytes(msgspec.json.encode(config))
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "kubeconfig"))
    for named in ([], ["--kubeconfig", str(tmp_path / "kubeconfig")]):
        assert await explain(decision, "-n", "quotas", *named) == 0
        said = capsys.readouterr().out
        assert "kept by one" in said and "not asked: two: " in said
        assert sorted(asked) == [
            f"/api/v1/namespaces/quotas/pods/one:8099/proxy/decisions/{decision}",
            f"/api/v1/namespaces/quotas/pods/two:8081/proxy/decisions/{decision}",
        ]
        asked.clear()
        monkeypatch.setenv("KUBECONFIG", "/nowhere")
    for module in ("cli.agents", "common.server.agents"):
        monkeypatch.setattr(f"{module}.ACCOUNT", "another")
    assert await explain(decision, "-n", "quotas", "--kubeconfig", str(tmp_path / "kubeconfig")) == 1
    assert "no token of ServiceAccount quotas/another can be had: " in capsys.readouterr().err
    assert await explain(decision, "--kubeconfig", str(tmp_path / "kubeconfig")) == 1
    assert "pods cannot be listed on http://127.0.0.1:" in capsys.readouterr().err
    await runner.cleanup()


async def test_one_cluster_s_many_decisions_do_not_push_out_another_s() -> None:
    decisions = Decisions(most=200)
    async with seed_world() as world:
        found = await fits(world)
        keep(world, decisions, found, "rare", namespace="quiet")
        for _ in range(1000):
            keep(world, decisions, found, "many", namespace="loud")
    assert len(_about(decisions, "rare")) == 1
    assert decisions._number <= 200
    assert sum(map(len, decisions._kept.values())) == decisions._number


async def test_dry_runs_push_out_nothing_but_dry_runs() -> None:
    decisions = Decisions(most=200)
    async with seed_world() as world:
        found = await fits(world)
        keep(world, decisions, found, "real")
        for _ in range(1000):
            keep(world, decisions, found, "dry", dry_run=True)
    assert len(_about(decisions, "real")) == 1


def _about(decisions: Decisions, machine: str) -> list[object]:
    content = decisions.page("", {"machine": machine})
    assert content is not None
    return list(msgspec.json.decode(content)["items"])


def test_what_a_terminal_would_obey_is_shown_as_its_number() -> None:
    text = "a\x1b[2J\x07\x9b31m\u202e\x7f\r\nb ü"
    assert printable(text) == "a\\u001b[2J\\u0007\\u009b31m\\u202e\\u007f\\r\nb ü"
    as_json = json.dumps({"name": "a\x1b\x7f\u202e"}, ensure_ascii=False, indent=1)
    assert json.loads(printable(as_json)) == json.loads(as_json)
