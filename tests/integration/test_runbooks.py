"""docs/how-to/backup.md: its commands save objects and snapshots, and what they restore admits never too much."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
import yaml

from devcluster import binaries
from devcluster.install import LEASE_SECONDS, NAMESPACE, Installation
from tests.integration.installed.site import CLUSTERS, QUOTA, WINDOW, Site, cpus, until

pytestmark = pytest.mark.integration

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "backup.md"
SAVE, SNAPSHOT, RESTORE, FROM_FILES = (
    re.sub("^ +", "", block, flags=re.MULTILINE)
    for block in re.findall(r"^ *```sh\n(.*?)^ *```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
)


@pytest_asyncio.fixture(scope="module")
async def installation(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Site]:
    directory = tmp_path_factory.mktemp("runbooks")
    async with Installation(directory, breakable=True, organization="acme", in_flight_window=WINDOW) as installed:
        site = Site(installed)
        yield site
        await site.close()


@pytest_asyncio.fixture
async def site(installation: Site) -> AsyncIterator[Site]:
    await installation.quota(cpus(4))
    yield installation
    await installation.clean()


async def run(script: str, directory: Path, **environment: str) -> None:
    programs = await binaries.ensure(["kubectl", "etcdctl", "etcdutl"])
    path = os.pathsep.join([*{str(each.parent) for each in programs.values()}, os.environ["PATH"]])
    done = await asyncio.to_thread(
        subprocess.run,
        ["bash", "-ec", script],
        cwd=directory,
        env={**os.environ, **environment, "PATH": path},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def contexts(site: Site, directory: Path) -> str:
    """A kubeconfig with those that the page names; the master's is the current one."""
    found = {name: yaml.safe_load(site.server(name).kubeconfig()) for name in ("master", "seed-1")}
    for name, each in found.items():
        for kind in ("clusters", "users", "contexts"):
            each[kind][0]["name"] = name
        each["contexts"][0]["context"].update(cluster=name, user=name)
    lists = {kind: [each[kind][0] for each in found.values()] for kind in ("clusters", "users", "contexts")}
    path = directory / "contexts.yaml"
    path.write_text(yaml.safe_dump({**found["master"], **lists, "current-context": "master"}))
    return str(path)


async def restored(site: Site, name: str) -> None:
    """With the commands of the page, from `etcd.db`. The agents run on."""
    etcd, directory = site.installed.etcd_of(name), site.installed.directory
    await site.kill(site.server(name), etcd)
    await asyncio.sleep(LEASE_SECONDS + 1)
    await run(RESTORE, directory)
    await etcd.restore(directory / "etcd-restored")
    shutil.rmtree(directory / "etcd-restored")
    await site.start(etcd)
    await site.start(site.server(name))


async def snapshot(site: Site, name: str) -> None:
    (site.installed.directory / "etcd.db").unlink(missing_ok=True)
    await run(SNAPSHOT, site.installed.directory, ETCDCTL_ENDPOINTS=site.installed.etcd_of(name).url)


async def test_an_etcd_of_a_seed_and_then_that_of_the_master(site: Site) -> None:
    """Both miss what came after their snapshots, and their revisions are higher than all before."""
    await site.admitted("user-1")
    await site.uses(cpus(1))
    await snapshot(site, "seed-1")
    await site.admitted("user-1")
    await site.admitted("user-2")
    await site.uses(cpus(3))
    await restored(site, "seed-1")
    async with site.no_overshoot(cpus(4)):
        await until(lambda: site.admitted("user-1"), 120)
        await site.uses(cpus(4), seconds=60)
        for cluster in ("user-1", "user-2"):
            await until(lambda cluster=cluster: site.refused(cluster), 60)
    assert int((await site.ledger("seed-1"))["metadata"]["resourceVersion"]) > 1_000_000_000

    await snapshot(site, "master")
    await site.quota(cpus(6))
    await site.admitted("user-1")
    await site.admitted("user-2")
    await site.uses(cpus(6))
    await restored(site, "master")
    # Which of the two reasons is said depends on whether the master that took over had the limit of 6 in its cache.
    await site.comes("master", f"resourcequotas/{QUOTA}", "Exceeded", "True", "", "cpu 6/4: ", seconds=120)
    _, reason, _ = await site.condition("master", f"resourcequotas/{QUOTA}", "Exceeded")
    assert reason in ("LimitLowered", "UsageNotAdmitted")
    for cluster in ("user-1", "user-2"):
        await until(lambda cluster=cluster: site.refused(cluster), 60)
    await site.quota(cpus(7))
    async with site.no_overshoot(cpus(7)):
        await until(lambda: site.admitted("user-2"), 60)
        for cluster in ("user-1", "user-2"):
            await until(lambda cluster=cluster: site.refused(cluster), 60)


async def test_objects_of_a_seed_from_files(site: Site) -> None:
    if shutil.which("jq") is None:
        pytest.skip("the page's commands need jq, which is not on PATH")
    directory, agent = site.installed.directory, site.program("seed-1")
    kubeconfig = contexts(site, directory)
    await site.admitted("user-1", 2)
    await site.uses(cpus(2))
    await run(SAVE, directory, KUBECONFIG=kubeconfig)
    before = {each["metadata"]["name"]: each["data"] for each in await secrets(site)}
    await site.stop(agent)
    await site.delete("seed-1", f"{CLUSTERS}/user-1")
    for path in ("alpha/secrets/user-1", *(f"{NAMESPACE}/secrets/{name}" for name in before)):
        await site.delete("seed-1", f"/api/v1/namespaces/{path}")

    first, *scaled, last = FROM_FILES.splitlines()[1:]
    clean = FROM_FILES.splitlines()[0]
    assert all("deployment/seedquota-seed" in line for line in scaled), "what starts the agents"
    await run(f"{clean}\n{first}", directory, KUBECONFIG=kubeconfig)
    await site.start(agent)
    await run(f"{clean}\n{last}", directory, KUBECONFIG=kubeconfig)
    await site.comes("seed-1", f"{CLUSTERS}/user-1", "Ready", "True", seconds=60)
    await site.uses(cpus(2), seconds=60)
    assert {each["metadata"]["name"]: each["data"] for each in await secrets(site)} == before
    await site.admitted("user-1", 2)
    await site.refused("user-1")


async def secrets(site: Site) -> list[dict[str, dict[str, str]]]:
    names = ("seedquota-webhook-key", "seedquota-webhook-tls")
    return [await site.get("seed-1", f"/api/v1/namespaces/{NAMESPACE}/secrets/{name}") for name in names]
