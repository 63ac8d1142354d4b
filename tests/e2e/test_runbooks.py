"""What docs/how-to shows of backups, of a move of the master and of the removal of everything, where pods run.

The commands are those of the pages, literally. Contexts of the kubeconfig have the names that the pages give them.
"""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import subprocess
import sys
import textwrap
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest
import pytest_asyncio
import yaml

from devcluster import binaries, isolation
from devcluster.controlplane import ApiServer
from devcluster.install import SEED_USER
from devcluster.manifests import MACHINE_CRDS, apply, load
from devcluster.objects import API, named, namespace, project, quota, rights
from tests.e2e.cluster import NAMESPACE, PATIENT, Cluster, Machines, site, until

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs" / "how-to"
PROJECT, QUOTA = "alpha", "project-alpha"
OLD, NEW, SEED, USER = "old", "new", "seed-1", "c1"
NODE_PORT = 30443
WEBHOOKS = "validatingwebhookconfigurations,mutatingwebhookconfigurations"
TOOLS = ("kubectl", "helm")


@dataclass
class Fleet:
    """The clusters by their contexts, and a shell of an admin who reaches all of them."""

    directory: Path
    nodes: Mapping[str, Cluster]
    user: ApiServer
    before: dict[str, set[str]]

    @property
    def machines(self) -> Machines:
        return Machines(self.user, "kube-system")

    async def run(self, script: str, *, context: str) -> str:
        """What it prints. `context` is the current one."""
        kubeconfig = self.directory / f"{context}.yaml"
        kubeconfig.write_text(yaml.safe_dump({**self._contexts(), "current-context": context}))
        path = os.pathsep.join([str(self.directory / "bin"), os.environ["PATH"]])
        done = await asyncio.to_thread(
            subprocess.run,
            ["bash", "-ec", script],
            cwd=self.directory,
            env={**os.environ, "KUBECONFIG": str(kubeconfig), "HELM_CACHE_HOME": str(self.directory), "PATH": path},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=600,
            check=False,
        )
        print(textwrap.indent(script.rstrip(), "\n$ "), done.stdout, sep="\n")
        assert done.returncode == 0, f"{script}: {done.stdout}"
        return done.stdout

    def _contexts(self) -> dict[str, object]:
        servers = {**{name: each.server for name, each in self.nodes.items()}, USER: self.user}
        found = {name: yaml.safe_load(server.kubeconfig()) for name, server in servers.items()}
        for name, each in found.items():
            for kind in ("clusters", "users", "contexts"):
                each[kind][0]["name"] = name
            each["contexts"][0]["context"].update(cluster=name, user=name)
        lists = {kind: [each[kind][0] for each in found.values()] for kind in ("clusters", "users", "contexts")}
        return {"apiVersion": "v1", "kind": "Config", **lists}


def shown(page: str, begins: str) -> str:
    """The block of commands of the page that begins so."""
    text = (DOCS / page).read_text()
    fenced = re.findall(r"^ *```sh\n(.*?)^ *```$", text, re.MULTILINE | re.DOTALL)
    indented = re.findall(r"(?:^ {4,}\S.*\n)+", text, re.MULTILINE)
    (found,) = (block for each in (*fenced, *indented) if (block := textwrap.dedent(each)).startswith(begins))
    return found


@pytest_asyncio.fixture(scope="module")
async def fleet(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Fleet]:
    if shutil.which("jq") is None:
        pytest.skip("the pages' commands need jq, which is not on PATH")
    directory = tmp_path_factory.mktemp("run")  # short: sockets are below it
    await tools(directory / "bin")
    async with site(directory) as started:
        nodes = {
            OLD: await started.cluster(OLD, isolation.FIRST),
            SEED: await started.cluster(SEED, isolation.SECOND),
            NEW: await started.cluster(NEW, isolation.THIRD),
        }
        await started.plane.start([USER], machine=isolation.FIRST)
        fleet = Fleet(directory, nodes, started.plane.cluster(USER), {})
        await apply(fleet.user, [*load(MACHINE_CRDS), *rights("user-cluster", SEED_USER)])
        fleet.before.update({name: await each.everything() for name, each in nodes.items()})
        try:
            await install(fleet)
            yield fleet
        except BaseException:
            await started.explain()
            raise


async def tools(directory: Path) -> None:
    """Those that the pages call, by their names."""
    directory.mkdir()
    for name, program in (await binaries.ensure(TOOLS)).items():
        (directory / name).symlink_to(program)
    command = directory / "seedquota"
    command.write_text(f'#!/bin/sh\nPYTHONPATH={ROOT} exec {sys.executable} -m cli "$@"\n')
    command.chmod(0o755)


async def install(fleet: Fleet) -> None:
    """As docs/how-to/install.md names the releases, with a quota of each origin."""
    for name in (OLD, SEED):
        await fleet.nodes[name].apply(namespace(NAMESPACE))
    await fleet.nodes[OLD].install("master", release="seedquota")
    await fleet.nodes[SEED].apply(namespace(PROJECT))
    await fleet.nodes[SEED].install(
        "seed",
        seedName=SEED,
        userClusters__namespaces=[PROJECT],
        providers__enabled=["fake"],
        namespaceQuotas__enabled=True,
        **PATIENT,
        webhook__externalURL=f"https://{isolation.SECOND.address}:{NODE_PORT}",
        webhook__service={"type": "NodePort", "nodePort": NODE_PORT, "port": 8443},
    )
    (fleet.directory / "admin.yaml").write_text(fleet.nodes[SEED].server.kubeconfig())
    (fleet.directory / "c1.yaml").write_text(fleet.user.kubeconfig(SEED_USER))
    await fleet.run(f"seedquota seed add {SEED} --seed-kubeconfig admin.yaml", context=OLD)
    enabled = '{"spec": {"namespaceQuotas": "Enabled"}}'
    await fleet.run(f"kubectl patch sqseed {SEED} --type=merge -p '{enabled}'", context=OLD)
    shared = {"selector": {"matchLabels": {"owner": "ann"}}, "allocation": {"hard": {"pods": "40"}}}
    await fleet.nodes[OLD].apply(
        named("QuotaSettings", "default", defaults={"organization": {"quota": {"cpu": "40"}}}),
        named("Organization", "acme"),
        project(PROJECT, "acme"),
        quota(QUOTA, PROJECT, {"cpu": "4"}),
        {"apiVersion": API, "kind": "ResourceQuotaAllocation", "metadata": {"name": "shared"}, "spec": shared},
    )
    script = f"kubectl --context {SEED} -n {PROJECT} create secret generic {USER} --from-file=kubeconfig=c1.yaml"
    await fleet.run(script, context=OLD)
    source = named("UserCluster", USER, project=PROJECT, kubeconfigSecretRef={"name": USER})
    await fleet.nodes[SEED].apply({**source, "metadata": {"name": USER, "namespace": PROJECT}})
    for each in (QUOTA, "org-acme", "allocation.shared"):
        await fleet.nodes[OLD].enforced(each)


@pytest_asyncio.fixture(autouse=True)
async def explained(fleet: Fleet, request: pytest.FixtureRequest) -> AsyncIterator[None]:
    failed = request.session.testsfailed
    yield
    if request.session.testsfailed > failed:
        for cluster in fleet.nodes.values():
            print(await cluster.diagnosis())


async def test_objects_of_a_seed_are_restored_from_files(fleet: Fleet) -> None:
    """backup.md, with agents that are scaled down and up."""
    for _ in range(2):
        await until(fleet.machines.admitted, 60)
    await fleet.run(shown("backup.md", "kubectl get sqo,sqp"), context=OLD)
    lost = f"-n {NAMESPACE} delete secrets seedquota-webhook-key seedquota-webhook-tls"
    await fleet.run(f"kubectl -n {NAMESPACE} scale deployment/seedquota-seed --replicas=0", context=SEED)
    gone = f"kubectl -n {NAMESPACE} wait --for=delete pod -l app.kubernetes.io/name=seedquota-seed --timeout=120s"
    await fleet.run(gone, context=SEED)
    await fleet.run(f"kubectl -n {PROJECT} delete uc/{USER} secrets/{USER} && kubectl {lost}", context=SEED)
    await fleet.run(shown("backup.md", "clean="), context=OLD)
    await fleet.run(f"kubectl -n {PROJECT} wait --for=condition=Ready uc/{USER} --timeout=120s", context=SEED)
    for _ in range(2):
        await until(fleet.machines.admitted, 120)
    assert "used: cpu=4, limited: cpu=4" in (await fleet.machines.refused()).message


async def test_the_master_moves(fleet: Fleet) -> None:
    """move-master.md, from the first command to the last."""
    page, new = "move-master.md", fleet.nodes[NEW]
    await fleet.nodes[OLD].apply(quota(QUOTA, PROJECT, {"cpu": "6"}))
    await fleet.nodes[OLD].enforced(QUOTA)
    await until(fleet.machines.admitted, 60)
    await new.apply(namespace(NAMESPACE))
    await new.install("master", release="seedquota")
    for each in (
        "kubectl --context new -n seedquota scale deployment/seedquota-master --replicas=0",
        "kubectl --context old -n seedquota scale deployment/seedquota-master --replicas=0",
        "mkdir moved",
        "clean=",
        "kubectl --context new -n seedquota scale deployment/seedquota-master --replicas=2",
    ):
        await fleet.run(shown(page, each), context=OLD)
    await fleet.run(f"helm --kube-context {OLD} uninstall -n {NAMESPACE} seedquota", context=OLD)
    await new.enforced(QUOTA)
    await until(fleet.machines.admitted, 60)
    assert "used: cpu=6, limited: cpu=6" in (await fleet.machines.refused()).message


async def test_everything_is_removed(fleet: Fleet) -> None:
    """uninstall.md, in its order."""
    _, first, second, third, fourth = re.split(
        r"^# (?=\d\. )", "\n" + shown("uninstall.md", "# 1. no UserCluster"), flags=re.MULTILINE
    )
    delete, look = first.splitlines()[1:]
    await fleet.run(delete, context=NEW)

    async def no_webhook() -> None:
        assert "seedquota" not in await fleet.run(look, context=NEW)

    await until(no_webhook, 60)
    await fleet.machines.admitted()
    *quotas, ledgers, seeds = second.splitlines()[1:]
    await fleet.run("\n".join(quotas), context=NEW)

    async def no_ledger() -> None:
        assert "No resources found" in await fleet.run(ledgers, context=NEW)

    await until(no_ledger, 60)
    await fleet.run(seeds, context=NEW)
    await fleet.run(f"# {third}", context=NEW)
    for context in (NEW, SEED):
        await fleet.run(f"# {fourth}", context=context)
        left = await fleet.nodes[context].everything() - fleet.before[context]
        assert {each for each in left if f" {PROJECT}" not in each and " kube-node-lease " not in each} == set(), left
    await nothing_but_what_the_page_names(fleet)
    await fleet.machines.admitted()


async def nothing_but_what_the_page_names(fleet: Fleet) -> None:
    """In the user cluster, but for the role and its binding, which are the admin's."""
    kinds = f"crd,clusterroles,clusterrolebindings,apiservices,{WEBHOOKS},validatingadmissionpolicies"
    found = await fleet.run(f"kubectl get {kinds} -o name", context=USER)
    assert {line.partition("/")[2] for line in found.splitlines() if "seedquota" in line} == {
        "localresourcequotas.seedquota.io",
        "localresourcequotaallocations.seedquota.io",
        "v1alpha1.seedquota.io",
        "seedquota-local-quotas",
        "seedquota-user-cluster",
        f"seedquota-user-cluster-{SEED_USER}",
    }
