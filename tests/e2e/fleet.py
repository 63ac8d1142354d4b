"""Clusters by their contexts, and the shell of an admin who reaches all of them: for what the pages show."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
import textwrap
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import yaml

from devcluster import binaries
from devcluster.controlplane import ApiServer
from devcluster.install import SEED_USER
from devcluster.isolation import FIRST, Machine
from devcluster.manifests import MACHINE_CRDS, apply, load
from devcluster.objects import named, namespace, rights
from tests.e2e.cluster import NAMESPACE, PATIENT, Cluster, Machines, Site, site

ROOT = Path(__file__).parents[2]
PROJECT = "alpha"
NODE_PORT = 30443


@dataclass
class Fleet:
    """`nodes` are the clusters with a node, `users` those of tenants, by the names of their contexts."""

    directory: Path
    site: Site
    nodes: Mapping[str, Cluster]
    users: Mapping[str, ApiServer]
    before: dict[str, set[str]] = field(default_factory=dict)  # every object that was there, where a test asks later

    def machines(self, context: str) -> Machines:
        return Machines(self.users[context], "kube-system")

    async def run(self, script: str, *, context: str, types: str = "", status: int = 0) -> str:
        """What it prints. `context` is the current one, `types` what is typed, `status` that with which it ends."""
        kubeconfig = self.directory / f"{context}.contexts"
        kubeconfig.write_text(yaml.safe_dump({**self._contexts(), "current-context": context}))
        path = os.pathsep.join([str(self.directory / "bin"), os.environ["PATH"]])
        done = await asyncio.to_thread(
            subprocess.run,
            ["bash", "-ec", script],
            cwd=self.directory,
            env={**os.environ, "KUBECONFIG": str(kubeconfig), "HELM_CACHE_HOME": str(self.directory), "PATH": path},
            input=types,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=600,
            check=False,
        )
        print(textwrap.indent(script.rstrip(), "\n$ "), done.stdout, sep="\n")
        assert done.returncode == status, f"{script}: {done.returncode}, {done.stdout}"
        return done.stdout

    async def install_seed(self, context: str, machine: Machine, *, name: str = "", **given: object) -> None:
        """The agents, with the name of the context if no other one is given."""
        await self.nodes[context].apply(namespace(NAMESPACE), namespace(PROJECT))
        await self.nodes[context].install(
            "seed",
            seedName=name or context,
            userClusters__namespaces=[PROJECT],
            providers__enabled=["fake"],
            namespaceQuotas__enabled=True,
            **{**PATIENT, **given},
            webhook__externalURL=f"https://{machine.address}:{NODE_PORT}",
            webhook__service={"type": "NodePort", "nodePort": NODE_PORT, "port": 8443},
        )

    async def add_user_cluster(self, name: str, *, seed: str) -> None:
        (self.directory / f"{name}.yaml").write_text(self.users[name].kubeconfig(SEED_USER))
        secret = f"-n {PROJECT} create secret generic {name} --from-file=kubeconfig={name}.yaml"
        await self.run(f"kubectl {secret}", context=seed)
        source = named("UserCluster", name, project=PROJECT, kubeconfigSecretRef={"name": name})
        await self.nodes[seed].apply({**source, "metadata": {"name": name, "namespace": PROJECT}})

    async def explain(self) -> None:
        await self.site.explain()

    def _contexts(self) -> dict[str, object]:
        servers = {**{name: each.server for name, each in self.nodes.items()}, **self.users}
        found = {name: yaml.safe_load(server.kubeconfig()) for name, server in servers.items()}
        for name, each in found.items():
            for kind in ("clusters", "users", "contexts"):
                each[kind][0]["name"] = name
            each["contexts"][0]["context"].update(cluster=name, user=name)
        lists = {kind: [each[kind][0] for each in found.values()] for kind in ("clusters", "users", "contexts")}
        return {"apiVersion": "v1", "kind": "Config", **lists}


@asynccontextmanager
async def clusters(directory: Path, machines: Mapping[str, Machine], users: list[str]) -> AsyncIterator[Fleet]:
    """Nothing is installed yet. Each cluster with a node has an etcd of its own."""
    if shutil.which("jq") is None:
        pytest.skip("the pages' commands need jq, which is not on PATH")
    await _tools(directory / "bin")
    async with site(directory) as started:
        nodes = {name: await started.cluster(name, machine, own_etcd=True) for name, machine in machines.items()}
        await started.plane.start(users, machine=FIRST)
        found = Fleet(directory, started, nodes, {name: started.plane.cluster(name) for name in users})
        for name, each in nodes.items():
            (directory / f"{name}-admin.yaml").write_text(each.server.kubeconfig())
        for user in found.users.values():
            await apply(user, [*load(MACHINE_CRDS), *rights("user-cluster", SEED_USER)])
        yield found


async def _tools(directory: Path) -> None:
    """Those that the pages call, by their names."""
    directory.mkdir()
    for name, program in (await binaries.ensure(["kubectl", "helm", "etcdctl", "etcdutl"])).items():
        (directory / name).symlink_to(program)
    command = directory / "seedquota"
    command.write_text(f'#!/bin/sh\nPYTHONUNBUFFERED=1 PYTHONPATH={ROOT} exec {sys.executable} -m cli "$@"\n')
    command.chmod(0o755)
