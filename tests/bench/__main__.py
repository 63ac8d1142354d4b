"""`make bench`: what the admission path does, in ratios to a bare echo in the same run. Nothing here can fail."""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import uvloop

from devcluster import manifests
from devcluster.controlplane import ApiServer, ControlPlane
from devcluster.install import Installation, quota
from devcluster.load import Size, Tenant
from devcluster.observe import QuotaWatch, latencies, percentile
from devcluster.writes import count_writes, line
from tests.bench import server
from tests.bench.load import Result, Task, in_process
from tests.bench.sizes import sizes

CRDS = Path(__file__).parents[2] / "charts" / "crds"
CLIENTS = (1, 8, 32, 128)
SEEDS = (2, 4, 8)

REVIEW = {
    "apiVersion": "admission.k8s.io/v1",
    "kind": "AdmissionReview",
    "request": {
        "uid": "705ab4f5-6393-11e8-b7cc-42010a800002",
        "kind": {"group": "cluster.k8s.io", "version": "v1alpha1", "kind": "Machine"},
        "resource": {"group": "cluster.k8s.io", "version": "v1alpha1", "resource": "machines"},
        "name": "pool-a-x7k2p",
        "namespace": "kube-system",
        "operation": "CREATE",
        "userInfo": {"username": "system:serviceaccount:kube-system:machine-controller", "groups": ["system:masters"]},
        "object": {
            "apiVersion": "cluster.k8s.io/v1alpha1",
            "kind": "Machine",
            "metadata": {
                "name": "pool-a-x7k2p",
                "generateName": "pool-a-",
                "namespace": "kube-system",
                "uid": "00000000-0000-0000-0000-000000000000",
                "generation": 1,
                "creationTimestamp": "2026-11-20T10:00:03Z",
                "labels": {"machine": "md-pool-a", "x-kubernetes.io/cluster": "c1"},
                "ownerReferences": [
                    {
                        "apiVersion": "cluster.k8s.io/v1alpha1",
                        "kind": "MachineSet",
                        "name": "pool-a",
                        "uid": "b7cc4201-0a80-0002-705a-b4f5639311e8",
                        "controller": True,
                    }
                ],
            },
            "spec": {
                "providerSpec": {
                    "value": {
                        "cloudProvider": "vsphere",
                        "cloudProviderSpec": {
                            "cpus": 4,
                            "memoryMB": 8192,
                            "diskSizeGB": 50,
                            "templateVMName": "ubuntu-22.04",
                            "datacenter": "dc-1",
                            "cluster": "cl-1",
                            "datastore": "datastore1",
                            "folder": "/dc-1/vm/c1",
                            "networks": ["net-1"],
                            "allowInsecure": False,
                        },
                        "operatingSystem": "ubuntu",
                        "operatingSystemSpec": {"distUpgradeOnBoot": False},
                        "sshPublicKeys": ["ssh-ed25519 " + "A" * 68],
                    }
                },
                "versions": {"kubelet": "1.34.4"},
            },
        },
        "oldObject": None,
        "dryRun": False,
    },
}


@asynccontextmanager
async def serving(kind: str, api: ApiServer) -> AsyncIterator[dict[str, object]]:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "tests.bench.server",
        kind,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        limit=1 << 20,
    )
    assert process.stdin is not None and process.stdout is not None
    process.stdin.write(json.dumps({"kubeconfig": api.kubeconfig("admin")}).encode() + b"\n")
    line = await process.stdout.readline()
    if not line:
        raise RuntimeError(f"the {kind} server did not start")
    try:
        yield {**json.loads(line), "pid": process.pid}
    finally:
        process.stdin.close()
        await process.wait()


async def measure(kind: str, api: ApiServer, clients: int, seconds: float) -> tuple[Result, float]:
    """The result, and the server's CPU seconds for each request."""
    async with serving(kind, api) as found:
        task = Task(
            host="127.0.0.1",
            port=int(str(found["port"])),
            path=str(found["path"]),
            ca=str(found["ca"]),
            body=json.dumps(REVIEW),
            clients=clients,
            seconds=1.0,
        )
        await in_process(task)  # warm: connections, caches, the API server's own
        task.seconds = seconds
        before = cpu_seconds(int(str(found["pid"])))
        result = await in_process(task)
        return result, (cpu_seconds(int(str(found["pid"]))) - before) / result.requests


def cpu_seconds(pid: int) -> float:
    """Of a process, in user and kernel: says more on a noisy machine than the clock does."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def admissions(seconds: float) -> None:
    async with ControlPlane() as plane:
        await plane.start(["bench"])
        api = plane.cluster("bench")
        await manifests.apply(api, [*manifests.load(CRDS), *server.OBJECTS])
        await asyncio.sleep(2.5)  # an API server holds back creations of a type younger than 2 s
        print("admissions on one quota, one replica, each durable in the API server before its answer")
        print(" clients  admitted/s   p50 ms   p99 ms  cpu us    echo/s  echo p50  cpu us  ratio")
        for clients in CLIENTS:
            ours, our_cpu = await measure("admission", api, clients, seconds)
            bare, bare_cpu = await measure("echo", api, clients, seconds)
            print(
                f"{clients:>8} {ours.rate:>11.0f} {ours.p50_ms:>8.2f} {ours.p99_ms:>8.2f} {our_cpu * 1e6:>7.0f}"
                f" {bare.rate:>9.0f} {bare.p50_ms:>9.2f} {bare_cpu * 1e6:>7.0f} {ours.rate / bare.rate:>6.2f}",
                flush=True,
            )
            if ours.failed or ours.denied:
                print(f"         {ours.denied} denied, {ours.failed} failed: not a figure of admissions alone")


async def writes() -> None:
    print("API writes that a Machine costs, all clusters together, by number of seeds")
    print("alone nothing can be shared; in a storm what comes together is written together")
    for seeds in SEEDS:
        print(line(await count_writes(seeds)), flush=True)


async def latency() -> None:
    async with AsyncExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="seedquota-bench-")))
        installed = await stack.enter_async_context(Installation(directory, seeds=2))
        limits = {"cpu": "1000", "memory": "4000Gi", "storage": "40000Gi"}
        await manifests.apply(installed.master, [quota("bench", installed.project, limits)])
        await installed.enforced("bench")
        watch = await stack.enter_async_context(QuotaWatch(installed.master, "bench"))
        tenant = await stack.enter_async_context(Tenant(installed.cluster("user-1")))
        seconds, _ = await latencies(tenant, watch, Size("1", "4Gi", "20Gi"), 50)
        print(
            "from sending a Machine, one at a time, to the master's globalUsage: "
            f"p50 {percentile(seconds, 50) * 1000:.0f} ms, p99 {percentile(seconds, 99) * 1000:.0f} ms"
        )


MEASUREMENTS = ("admissions", "latency", "writes", "sizes")


async def main() -> None:
    parser = argparse.ArgumentParser(prog="make bench", description=__doc__)
    parser.add_argument("only", nargs="*", choices=[[], *MEASUREMENTS], help="what to measure [default: all of it]")
    parser.add_argument("--seconds", type=float, default=5.0, help="for each measurement [default 5]")
    options = parser.parse_args()
    logging.basicConfig(level=logging.WARNING)
    chosen = options.only or MEASUREMENTS
    if "admissions" in chosen:
        await admissions(options.seconds)
    if "latency" in chosen:
        await latency()
    if "writes" in chosen:
        await writes()
    if "sizes" in chosen:
        await sizes()


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())
