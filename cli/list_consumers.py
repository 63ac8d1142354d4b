"""Lists who uses a quota: clusters and namespaces, the largest first."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import NamedTuple

from cli import consumers, largest_and_last, quotas, reading, terminal
from cli.connection import TIMEOUT, add_cluster, add_namespace, connected
from cli.consumers import Consumer
from cli.outcome import DONE, STALE, Failed, Printed
from cli.seeds import fleet, on_seed
from cli.terminal import add_output
from common.api import namespaces_page
from common.api.conditions import count
from common.api.namespaces_page import MAX_PAGE, MOST, NamespaceLine, NamespacesPage, Place
from common.api.types import SEEDS, Seed, UserCluster
from common.kube.client.api_client import Cluster
from common.quota import object_names, resources
from common.quota.names import in_order
from common.quota.quantity import QuantityError
from common.quota.resources import ResourceList
from common.server.agents import Agents, agents_token, running_pods
from master.cache.objects import MasterQuota, spec_quota
from master.seeds.kubeconfig_secret import token_in

MOST_LINES = 100_000  # of one seed

HELP = "list who uses a quota: clusters and namespaces, the largest first"
EXAMPLES = """\
examples:
  seedquota consumers owner-ann --all              # every namespace, on all seeds
  seedquota consumers organization/acme --all      # also the clusters of its projects
  seedquota consumers organization/acme --all --by project
  seedquota consumers owner-ann --all -o json
  seedquota consumers owner-ann                    # the 32 largest namespaces, from the quota's status

--all asks the agents of all Seeds that are not Lost, by the kubeconfigs in their Secrets, which you must be allowed to
get. On each seed they need the rights of charts/rbac/explain.yaml; charts/rbac/master-decisions.yaml gives them to the
account of the master. What is being created is not part of any amount.
Exit status: 0 done, 1 failed, 3 a seed could not be asked, or what a cluster uses is not known or may be out of date.
"""


class _OfSeed(NamedTuple):
    lines: list[NamespaceLine]
    not_current: Sequence[str]


def declare(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", help=quotas.NAMED)
    add_cluster(parser)
    add_namespace(parser)
    parser.add_argument("--all", action="store_true", help="ask all seeds; not set: only what the quota's status says")
    parser.add_argument("--by", choices=("project",), help="show the sums by `project`")
    add_output(parser, "table", "wide", "json", "yaml")
    parser.set_defaults(run=run)


async def run(options: argparse.Namespace) -> Printed:
    if options.by and not options.all:
        raise Failed("--by needs --all: only seeds say of which project a namespace is")
    now = datetime.now(UTC)
    async with connected(options, "master") as master:
        quota = await quotas.the_one(master, options.name)
        try:
            limits = resources.parse(quota.status.hard or spec_quota(quota))
            status = DONE
            if options.all:
                seeds = [each for each in await reading.every(master, SEEDS) if each.spec.state != "Lost"]
                found, failed, elsewhere = await everywhere(master, quota, seeds, options.namespace, limits)
                missing, status = [*failed, *elsewhere], STALE if failed else DONE
            else:
                found, missing = consumers.consumers(quota, {}), only_status(quota)
            if options.by == "project":
                found = consumers.by_project(found, limits)
        except QuantityError as error:
            raise Failed(f"seedquota/{quota.metadata.name} cannot be read: {error}") from None
    if options.output in ("json", "yaml"):
        return Printed(reading.written({"items": found, "notKnown": missing}, options.output), status)
    most = terminal.width() if options.output == "table" else None
    wide = f"seedquota consumers {options.name} -o wide"
    lines = consumers.table(found, now, most, wide) if found else [nothing(quota)]
    if missing:
        lines.append(terminal.not_known(missing, most))
    return Printed("\n".join(lines), status)


def nothing(quota: MasterQuota) -> str:
    used = largest_and_last.counts_clusters(quota) and any(resources.parse(quota.status.global_usage).values())
    return "no cluster and no namespace that is known uses it" + (
        "; Allocations may: `kubectl get allocations.seedquota.io -A`" if used else ""
    )


def only_status(quota: MasterQuota) -> list[str]:
    omitted = quota.status.namespaces_omitted
    parts = [count(omitted, "more namespace")] if omitted else []
    if largest_and_last.counts_clusters(quota):
        parts.append("what clusters use")
    return [f"{' and '.join(parts)}: --all asks the seeds"] if parts else []


async def everywhere(
    master: Cluster, quota: MasterQuota, seeds: Sequence[Seed], namespace: str, limits: ResourceList
) -> tuple[list[Consumer], list[str], list[str]]:
    """All consumers, what could not be read, and what none of them has. Raises Failed, QuantityError."""
    clusters: dict[str, list[UserCluster]] = {}
    missing: list[str] = []
    if largest_and_last.counts_clusters(quota):
        projects = await consumers.projects_of(master, quota)
        clusters, missing = await on_seed.clusters_of(master, seeds, namespace, projects)

    async def question(_: Seed, cluster: Cluster) -> _OfSeed:
        return await _of_seed(cluster, quota, namespace)

    of_machines_alone = largest_and_last.counts_clusters(quota) and not object_names.of_objects(limits)
    answers, failed = await fleet.ask(master, [] if of_machines_alone else seeds, namespace, question)
    namespaces = [
        Consumer(
            "namespace",
            f"{line.cluster if '/' in line.cluster else seed}/{line.namespace}",
            resources.render(resources.only(resources.parse(line.used), in_order(limits))),
            seed=seed,
            project=line.project,
        )
        for seed, answer in answers.items()
        for line in answer.lines
    ]
    missing += [f"namespaces on {seed}: {why}" for seed, why in failed.items()]
    for seed, answer in answers.items():
        missing += [f"what namespaces of {each} on {seed} use now" for each in answer.not_current]
    elsewhere = largest_and_last.not_counted(quota, clusters)
    return consumers.consumers(quota, clusters, namespaces), missing, elsewhere


async def _of_seed(cluster: Cluster, quota: MasterQuota, namespace: str) -> _OfSeed:
    """All pages. `namespace`: of the agents, if the kubeconfig does not say it. Raises Failed, ApiError."""
    _, token = token_in(cluster)  # the master's account on a seed is in the namespace of the agents
    namespace = token.namespace if token is not None else namespace
    pods = await running_pods(cluster, namespace)
    if not pods:
        raise Failed(f"no agent runs in its namespace {namespace}")
    agents = Agents(cluster, namespace, pods, await agents_token(cluster, namespace, TIMEOUT))
    lines: list[NamespaceLine] = []
    after = Place()
    while True:
        page = await _page(agents, quota, after)
        lines += page.items
        if not page.more:
            return _OfSeed(lines, page.not_current)
        if len(lines) >= MOST_LINES:
            raise Failed(f"its agent lists more than {MOST_LINES} namespaces")
        after = page.items[-1].place


async def _page(agents: Agents, quota: MasterQuota, after: Place) -> NamespacesPage:
    """Raises Failed."""
    path = namespaces_page.path(quota.metadata.name, after, MOST)
    answers = await agents.ask(path, timeout=TIMEOUT, max_answer=MAX_PAGE)
    for answer in answers:
        if answer.content is not None:
            page = namespaces_page.read(answer.content, quota.metadata.uid, after, MOST)
            if page is None:
                raise Failed(f"what {answer.agent} answers cannot be read")
            return page
    problems = [f"{answer.agent}: {answer.problem}" for answer in answers if answer.problem]
    raise Failed("; ".join(problems) or "no agent there that leads knows the quota")
