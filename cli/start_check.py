"""\
Waits until a program that was installed or upgraded does its work: one replica of this version leads, each replica
answers with its metrics, and the API server serves the custom resource definitions of this version, or newer ones. On a
seed, the API server must also ask the agents: a dry run of a UserCluster must be refused by them.
"""

from __future__ import annotations

import argparse
import asyncio
import re
import time
from collections.abc import Awaitable, Callable

import aiohttp

from cli import definitions
from cli.connection import add_cluster, add_namespace, connected
from cli.outcome import Failed
from cli.terminal import say, seconds
from common.kube.client.api_client import Cluster
from common.kube.client.errors import ApiError, NotFound
from common.kube.controller.leader_election import LEASES
from common.runtime.metrics import build_version
from common.server.agents import PODS, Pod
from seed.kinds.clusters import configuration as clusters
from seed.registration import probe, withdrawal

PAUSE = 1.0  # seconds
SAY_EVERY = 10.0
METRICS_TIMEOUT = 5.0
MAX_METRICS = 64 * 2**20  # bytes

HELP = "wait until an installation does its work, in its cluster"
EXAMPLES = """\
examples:
  seedquota start-check seed --namespace seedquota --timeout 3m

It connects to the pods themselves, so it runs in a pod of that cluster. The charts do so after each installation and
upgrade. charts/rbac has the roles: seed-start-check.yaml, master-start-check.yaml.
Exit status: 0 it works, 1 it did not within the time.
"""
_LEADER = re.compile(r"^seedquota_leader 1(?:\.0)?$", re.MULTILINE)
_VERSION = re.compile(r'^seedquota_build_info\{[^}\n]*version="([^"\n]*)"', re.MULTILINE)
_REACH = (
    "the API server must reach the pods at the port webhook.port of the chart: open it in firewalls and network "
    "policies, or choose another one; where it cannot reach addresses of pods, set hostNetwork=true"
)


def declare(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("what", choices=("master", "seed"), metavar="WHAT", help="master or seed")
    add_cluster(parser, "the cluster")
    add_namespace(parser)
    parser.add_argument(
        "--timeout", type=seconds, default=180.0, metavar="DURATION", help="how long to wait [default 3m]"
    )
    parser.set_defaults(run=run)


async def run(options: argparse.Namespace) -> str:
    until = time.monotonic() + options.timeout
    async with connected(options, options.what) as cluster, aiohttp.ClientSession() as session:
        check = Check(cluster, session, options.namespace, options.what)
        said: list[str] = []
        say_again = 0.0
        while problems := await check.problems():
            if time.monotonic() >= until:
                raise Failed(f"{check.program} does not work yet:\n{_lines(problems)}")
            if problems != said and time.monotonic() >= say_again:
                say(f"waiting:\n{_lines(problems)}")
                said, say_again = problems, time.monotonic() + SAY_EVERY
            await asyncio.sleep(PAUSE)
        enforces = "; its webhook has refused a dry run, so quotas are enforced" if options.what == "seed" else ""
        return f"{check.program} {build_version()} leads, and its metrics can be read{enforces}"


class Check:
    def __init__(self, cluster: Cluster, session: aiohttp.ClientSession, namespace: str, what: str) -> None:
        self.program = f"seedquota-{what}"
        self._cluster = cluster
        self._session = session
        self._namespace = namespace
        self._first_renewal = ""
        self._log = f"see `kubectl -n {namespace} logs deployment/{self.program}`"
        self._parts: dict[str, Callable[[], Awaitable[list[str]]]] = {
            "the custom resource definitions": lambda: definitions.problems(cluster),
            "the leader": self._leader,
            "the pods": self._pods,
        }
        if what == "seed":
            self._parts["the webhook"] = self._webhook

    async def problems(self) -> list[str]:
        """Each with what to do about it. Empty: it works."""
        found = []
        for what, look in self._parts.items():
            try:
                found += await look()
            except ApiError as error:
                found.append(f"{what} cannot be checked: {error.message}")
        return found

    async def _leader(self) -> list[str]:
        """One that is alive is seen to renew its Lease: clocks are not compared."""
        try:
            lease = await self._cluster.get(LEASES, self.program, self._namespace)
        except NotFound:
            return [f"no replica leads: there is no Lease {self._namespace}/{self.program}; {self._log}"]
        if withdrawal.asked(lease.metadata.annotations):  # of an earlier installation, the Lease may be left
            return ["the webhooks are withdrawn by `seedquota uninstall seed`; its --undo enforces again"]
        if not lease.spec.holder_identity or not lease.spec.renew_time:
            return [f"no replica leads: nobody holds the Lease {self._namespace}/{self.program}; {self._log}"]
        self._first_renewal = self._first_renewal or lease.spec.renew_time
        if lease.spec.renew_time != self._first_renewal:
            return []
        return [f"{lease.spec.holder_identity} has not renewed the Lease {self._namespace}/{self.program}; {self._log}"]

    async def _pods(self) -> list[str]:
        label = f"app.kubernetes.io/name={self.program}"
        listed = (await self._cluster.list(PODS, self._namespace, label_selector=label)).items
        running = [pod for pod in listed if pod.status.phase == "Running" and not pod.metadata.deletion_timestamp]
        if not running:
            return [f"no pod of {self.program} runs; see `kubectl -n {self._namespace} describe pods -l {label}`"]
        problems, leaders = [], []
        for pod, answer in zip(running, await asyncio.gather(*map(self._metrics, running)), strict=True):
            if isinstance(answer, Failed):
                problems.append(str(answer))
            elif _LEADER.search(answer):
                leaders.append((pod.metadata.name, _VERSION.search(answer)))
        if not leaders and not problems:
            problems.append(f"no pod of {self.program} says that it leads; {self._log}")
        for name, found in leaders:
            if (version := found[1] if found else "unknown") != build_version():
                problems.append(
                    f"pod {name} leads, and is version {version}, not {build_version()}; see `kubectl -n "
                    f"{self._namespace} rollout status deployment/{self.program}`"
                )
        return problems

    async def _metrics(self, pod: Pod) -> str | Failed:
        host = f"[{pod.status.pod_ip}]" if ":" in pod.status.pod_ip else pod.status.pod_ip
        url, content = f"http://{host}:{pod.port}/metrics", b""
        try:
            timeout = aiohttp.ClientTimeout(total=METRICS_TIMEOUT)
            async with self._session.get(url, timeout=timeout, allow_redirects=False) as answer:
                async for part in answer.content.iter_any():
                    content += part
                    if len(content) > MAX_METRICS:
                        return Failed(f"pod {pod.metadata.name} answers {url} with too much")
                if answer.status == 200:
                    return content.decode(errors="replace")
                return Failed(f"pod {pod.metadata.name} answers {url} with the status {answer.status}; {self._log}")
        except (aiohttp.ClientError, TimeoutError, ValueError) as error:
            why = str(error) or "no answer in time"
            return Failed(
                f"pod {pod.metadata.name} does not answer at {url}: {why}; {self._log}, and allow this connection in "
                "network policies"
            )

    async def _webhook(self) -> list[str]:
        proof = await probe.ask(self._cluster, clusters.sample(self._namespace))
        if proof is None:
            return ["the API server does not answer"]
        if proof.enforced:
            return []
        if proof.reason == "CanaryAdmitted":
            return [
                "the API server does not ask the agents: it admitted a dry run of a UserCluster; if there is a "
                f"validatingwebhookconfiguration {clusters.NAME}, look what stands between them, else {self._log}"
            ]
        cures = {
            "NotServing": _REACH,
            "CertificateInvalid": "see the values tls of the chart, and what proxies are between",
        }
        return ["; ".join([proof.message, *filter(None, [cures.get(proof.reason)])])]


def _lines(problems: list[str]) -> str:
    return "\n".join(f"- {problem}" for problem in problems)
