"""A hostile API server of a tenant, against the real agent of a seed with two user clusters.

The other one's webhook answers as before, no stall is long, the memory is bounded, and the agent goes on to run.
MINUTES and SEED say for how long and which: `make fuzz MINUTES=30 SEED=7` runs one again.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import re
import signal
import ssl
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import msgspec
import pytest
import yaml

from devcluster import certificates, manifests
from devcluster.install import SEED_USER, Installation, Program
from devcluster.network import free_port
from devcluster.objects import API, CHARTS, quota, secret
from devcluster.observe import percentile
from tests.bench.storm import named, review
from tests.fuzz.hostile_api import Orders
from tests.integration.installed.site import until

ALONE = "MINUTES" in os.environ  # else many other tests run beside it, and take the CPU
MINUTES = float(os.environ.get("MINUTES", "0.3"))
SEED = int(os.environ.get("SEED", "1"))
QUIET_SECONDS = 8.0
NOISE_SECONDS = 0.02 if ALONE else 0.2  # of the other's p99, which a busy machine takes by itself
STALL = 0.1 if ALONE else 1.0
WEBHOOKS = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations/seedquota-machines"
HOSTILE, VICTIM, PROJECT = "hostile", "user-1", "alpha"

pytestmark = pytest.mark.integration


@dataclass(frozen=True)
class Metrics:
    stall: float
    memory: float
    started: float


async def look(agent: Program) -> Metrics:
    async with aiohttp.ClientSession() as session, session.get(f"{agent.health}/metrics") as answer:
        text = await answer.text()

    def of(name: str) -> float:
        found = re.search(rf"^{name} (\S+)$", text, re.MULTILINE)
        assert found is not None, name
        return float(found[1])

    names = (
        "seedquota_event_loop_longest_stall_seconds",
        "process_resident_memory_bytes",
        "process_start_time_seconds",
    )
    return Metrics(*map(of, names))


def memory_limit() -> int:
    values = yaml.safe_load((CHARTS / "seedquota-seed" / "values.yaml").read_text())
    size = str(values["resources"]["limits"]["memory"])
    assert size.endswith("Gi")
    return int(size[:-2]) * 2**30


@asynccontextmanager
async def hostile(installed: Installation, directory: Path) -> AsyncIterator[asyncio.subprocess.Process]:
    """One more user cluster, behind what spoils its answers. It is counted, and nothing is spoilt yet."""
    await installed.start_user_cluster(HOSTILE)
    real = installed._plane.cluster(HOSTILE)
    serving = certificates.serving(HOSTILE, "127.0.0.1")
    files = directory / "hostile.crt", directory / "hostile.key"
    for file, content in zip(files, (serving.certificate, serving.key), strict=True):
        file.write_text(content)
    port = free_port()
    orders = Orders(SEED, port, str(files[0]), str(files[1]), real.url, real.ca, str(directory / "answers.log"))
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.fuzz.hostile_api", stdin=asyncio.subprocess.PIPE
    )
    assert process.stdin is not None
    process.stdin.write(msgspec.json.encode(orders))
    process.stdin.close()
    try:
        kubeconfig = json.dumps(
            {
                "current-context": "c",
                "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
                "clusters": [{"name": "c", "cluster": reached(port, serving.ca)}],
                "users": [{"name": "u", "user": {"token": real.tokens[SEED_USER]}}],
            }
        )
        cluster = {
            "apiVersion": API,
            "kind": "UserCluster",
            "metadata": {"name": HOSTILE, "namespace": PROJECT},
            "spec": {"project": PROJECT, "kubeconfigSecretRef": {"name": HOSTILE}},
        }
        seed = installed.cluster("seed-1")
        await manifests.apply(seed, [secret(HOSTILE, PROJECT, kubeconfig), cluster])
        await installed._holds(seed, f"namespaces/{PROJECT}/userclusters/{HOSTILE}", "Ready")
        yield process
        assert process.returncode is None, "it goes on until it is ended"
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


def reached(port: int, ca: str) -> dict[str, str]:
    authority = base64.b64encode(ca.encode()).decode()
    return {"server": f"https://127.0.0.1:{port}", "certificate-authority-data": authority}


async def webhook_p99(installed: Installation, seconds: float) -> float:
    """Seconds, of what an API server of the victim would wait."""
    server = installed.cluster(VICTIM)
    async with server.session() as session, session.get(WEBHOOKS) as answer:
        client = (await answer.json())["webhooks"][0]["clientConfig"]
    tls = ssl.create_default_context(cadata=base64.b64decode(client["caBundle"]).decode())
    took: list[float] = []
    end = time.monotonic() + seconds
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=tls)) as past:
        while time.monotonic() < end:
            started = time.monotonic()
            body = msgspec.json.encode(named(f"asked-{len(took)}"))
            async with past.post(client["url"], data=review(body)) as answer:
                assert answer.status == 200
                assert (await answer.json())["response"]["allowed"] is True
            took.append(time.monotonic() - started)
            await asyncio.sleep(0.01)
    return percentile(sorted(took), 99)


async def test_a_hostile_api_server_keeps_nobody_else_waiting(tmp_path: Path) -> None:
    async with Installation(tmp_path, seeds=1) as installed:
        await manifests.apply(installed.master, [quota("fuzz", PROJECT, {"cpu": "100000"})])
        await installed.enforced("fuzz")
        agent = installed.programs["seedquota-seed-1"]
        async with hostile(installed, tmp_path) as process:
            await until(lambda: webhook_p99(installed, 2.0), 30)
            quiet, before = await webhook_p99(installed, QUIET_SECONDS), await look(agent)
            process.send_signal(signal.SIGUSR1)
            loud, most, stall = 0.0, before.memory, 0.0
            end = time.monotonic() + 60 * MINUTES
            while time.monotonic() < end:
                loud = max(loud, await webhook_p99(installed, min(10.0, 60 * MINUTES)))
                seen = await look(agent)
                assert seen.started == before.started, "the agent was started again"
                most, stall = max(most, seen.memory), max(stall, seen.stall)
            answers = (tmp_path / "answers.log").read_text().splitlines()
            spoilt = sum(not line.endswith(" -") for line in answers)
            print(
                f"seed {SEED}: the other's p99 {quiet * 1000:.1f} ms quiet, {loud * 1000:.1f} ms loud; longest stall "
                f"{before.stall * 1000:.0f} ms before, {stall * 1000:.0f} ms in all; memory "
                f"{before.memory / 2**20:.0f} MiB before, {most / 2**20:.0f} MiB at most; "
                f"{spoilt} answers were spoilt, see {tmp_path}/answers.log"
            )
            assert loud <= 3 * max(quiet, NOISE_SECONDS)
            assert stall <= max(STALL, 2 * before.stall)
            assert most < memory_limit()
            assert spoilt > 10
        unexpected = [line for line in installed.complaints() if "Traceback" in line or '"level":"error"' in line]
        assert not unexpected
