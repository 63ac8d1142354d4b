"""Shows how many more fit on each seed: with the capacity that the seed holds, and with the capacity that it could
get."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

import msgspec

from cli import cloud_accounts, consumers, figures, quotas, reading, terminal
from cli.cloud_accounts import Account
from cli.connection import add_cluster, connected, connected_to, context_namespace
from cli.fitting import asking, files
from cli.fitting.command import add_replicas, text_of
from cli.limits import changes
from cli.outcome import DONE, STALE, Denied, Failed, Printed
from cli.seeds import fleet, on_seed
from cli.terminal import Column, add_output
from common.api.types import PROJECTS, SEEDS, Seed
from common.kube.client.api_client import Cluster
from common.quota import names, resources
from common.quota.quantity import QuantityError
from common.quota.resources import ResourceList
from master.quotas import placing, staleness
from master.quotas.placing import Place, Shaped

HELP = "show how many more fit on each seed"
EXAMPLES = """\
examples:
  seedquota where --subject project/alpha cpu=8 memory=16Gi
  seedquota where --subject project/alpha cpu=8 memory=16Gi --replicas 4
  seedquota where -f pool-a.yaml --cluster-context c1 --replicas 4
  seedquota where --subject project/alpha cpu=8 --seed eu-1   # with what the cloud has room for there

What one needs is named, or asked for with a file: by a dry run in a cluster that would admit it, as `seedquota fits`.
NOW is what the seed admits without asking for anything; BY-RECALL what it can with all that is free, and that other
seeds can give back. Neither has what is guaranteed to other projects; of an organization, they are what a project
without a guarantee could have. It is read from the status of quotas on the master, which follows within seconds. ROOM
is what the account of a user cluster can have more, by the cloud's own quota: of OpenStack cores, memory and instances,
of Azure vCPUs and virtual machines of all sizes. Seeds ask for it every ten minutes; ? is not known, and the exit
status tells nothing of it.
Exit status: 0 it fits on a seed, 1 failed, 2 it fits on none, 3 it fits, and a figure may be out of date.
"""


class Found(Place, frozen=True, rename="camel"):
    """`accounts` are None where nobody asked for them."""

    accounts: Sequence[Account] | None = None


def with_accounts(place: Place, accounts: Sequence[Account] | None) -> Found:
    return Found(**msgspec.structs.asdict(place), accounts=accounts)


def declare(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "need", metavar="RESOURCE=AMOUNT", nargs="*", help="amount that one piece needs, if there is no file"
    )
    parser.add_argument("--subject", metavar="SUBJECT", help="project/NAME or organization/NAME, if there is no file")
    parser.add_argument("-f", "--filename", metavar="FILE", help="YAML or JSON with one object; - is stdin")
    add_replicas(parser, "how many pieces must fit on one seed [default 1]")
    parser.add_argument(
        "-n", "--namespace", help="namespace of an object that names none; not set: that of the context"
    )
    add_cluster(parser)
    parser.add_argument(
        "--cluster-kubeconfig",
        metavar="FILE",
        help="kubeconfig of the cluster that answers for a file; not set: that of the master",
    )
    parser.add_argument("--cluster-context", metavar="CONTEXT", help="context of the cluster that answers for a file")
    fleet.add_seeds(parser, "show what its cloud accounts have left")
    fleet.add_master_namespace(parser)
    add_output(parser, "table", "wide", "json", "yaml")
    parser.set_defaults(run=run)


async def run(options: argparse.Namespace) -> Printed:
    if bool(options.filename) == bool(options.need) or bool(options.need) != bool(options.subject):
        raise Failed("name either a file (-f), or --subject and what one needs, such as cpu=8")
    wanted = options.replicas or 1
    async with connected(options, "master") as master:
        shaped = await _of_file(options, master) if options.filename else await _of_subject(options, master)
        seeds = await reading.every(master, SEEDS)
        counted(shaped)
        asked = fleet.chosen(options, seeds)
        projects = [await consumers.projects_of(master, each.quota) for each in shaped if asked]
        namespace = options.master_namespace
        clusters, away = await on_seed.clusters_of(master, asked, namespace, set().union(*projects))
    try:
        places = placing.places(shaped, seeds)
        size = cloud_accounts.size_of_one(shaped)
        accounts = {seed: cloud_accounts.accounts(there, size) for seed, there in clusters.items()}
        found = [with_accounts(each, accounts.get(each.seed)) for each in places]
        stale = [*_stale(shaped, seeds), *away]
    except QuantityError as error:
        raise Failed(f"a quota cannot be read: {error}") from None
    fits = any(each.by_recall is None or each.by_recall >= wanted for each in found)
    status = Denied.status if not fits else STALE if stale else DONE
    if options.output in ("json", "yaml"):
        return Printed(reading.written({"replicas": wanted, "items": found, "stale": stale}, options.output), status)
    most = None if options.output == "wide" else terminal.width()
    return Printed(text(found, wanted, stale, datetime.now(UTC), most), status)


def counted(shaped: Sequence[Shaped]) -> None:
    """Raises Failed where the master has said nothing yet of a quota: then it would look unlimited."""
    unknown = sorted(each.quota.metadata.name for each in shaped if not each.quota.status.conditions)
    if unknown:
        raise Failed(f"the master has not counted yet what these quotas limit: {', '.join(unknown)}; try again later")


async def _of_subject(options: argparse.Namespace, master: Cluster) -> list[Shaped]:
    """Its quotas, and of a project those of its organization."""
    kind, _, name = options.subject.partition("/")
    if kind not in ("project", "organization") or not name:
        raise Failed(f"{options.subject!r} is no subject: write project/NAME or organization/NAME")
    size = _size(changes.parsed(options.need))
    subjects = {options.subject}
    if kind == "project":
        project = await reading.one(master, PROJECTS, name)
        if project is None:
            raise Failed(
                f"there is no project {name} on {master.server}: `seedquota top` shows quotas and their subjects"
            )
        subjects.add(f"organization/{project.spec.organization}")
    found = await quotas.every(master)
    mine = name if kind == "project" else ""
    return [Shaped(quota, size, mine) for quota in found if figures.subject_of(quota) in subjects]


def _size(need: Mapping[str, str | None]) -> ResourceList:
    found = {name: amount for name, amount in need.items() if amount is not None}
    if len(found) < len(need):
        raise Failed("write what one needs as RESOURCE=AMOUNT, such as cpu=8")
    if why := names.unknown(found):
        raise Failed(why)
    return resources.parse(found)


async def _of_file(options: argparse.Namespace, master: Cluster) -> list[Shaped]:
    """The quotas that answer for one of it, and what each counts."""
    manifests = files.read(await asyncio.to_thread(text_of, options.filename))
    if len(manifests) != 1:
        raise Failed(f"there are {len(manifests)} objects in the file: ask where one of them fits")
    kubeconfig, context = options.cluster_kubeconfig or options.kubeconfig, options.cluster_context
    namespace = options.namespace or context_namespace(kubeconfig, context)
    async with connected_to(kubeconfig, context, "cluster", options) as cluster:
        asked = await asking.ask(cluster, asking.unnamed(manifests[0]), namespace, 1)
    sizes: dict[str, ResourceList] = {}
    project = ""
    for each in asked:
        if each.answer is None or (each.answer.code and not each.answer.quotas):
            why = each.answer.message if each.answer is not None else "no quota answers for it in that cluster"
            raise Failed(f"what {each.what} needs is not known: {why}")
        project = each.answer.project or project
        for quota in each.answer.quotas:
            sizes[quota.name] = resources.add(sizes.get(quota.name, {}), resources.parse(quota.need))
    return [Shaped(await quotas.the_one(master, name), size, project) for name, size in sorted(sizes.items())]


def _stale(shaped: Sequence[Shaped], seeds: Sequence[Seed]) -> list[str]:
    now = datetime.now(UTC)
    silence = staleness.silence_of_master(seeds, now)
    found = [
        f"{each.quota.metadata.name}: {stale.text(now)}"
        for each in shaped
        for stale in staleness.stale_of(each.quota, silence)
    ]
    return list(dict.fromkeys(found))


def text(found: Sequence[Found], wanted: int, stale: Sequence[str], now: datetime, most: int | None) -> str:
    if not found:
        return "there is no seed"
    columns = [
        Column("SEED", [each.seed for each in found]),
        Column("STATE", [each.state for each in found]),
        Column("NOW", [_count(each.now) for each in found]),
        Column("BY-RECALL", [_count(each.by_recall) for each in found]),
        Column("LIMITED-BY", [each.limited_by for each in found], goes=1),
    ]
    lines = [terminal.fit(columns, most)[0]]
    if not any(each.by_recall is None or each.by_recall >= wanted for each in found):
        lines.append(f"{wanted} fit on no seed")
    if stale:
        lines.append(terminal.wrapped(f"May be out of date: {', '.join(stale)}", most, "  "))
    if any(each.accounts is not None for each in found):
        lines += ["", _rooms(found, now, most)]
    return "\n".join(lines)


def _rooms(found: Sequence[Found], now: datetime, most: int | None) -> str:
    accounts = [(each.seed, account) for each in found for account in each.accounts or ()]
    if not accounts:
        return "no user cluster of the subject is on the seeds that were asked about cloud accounts"
    columns = [
        Column("SEED", [seed for seed, _ in accounts]),
        Column("CLUSTER", [each.cluster for _, each in accounts]),
        Column("ROOM", ["?" if each.count is None else str(each.count) for _, each in accounts]),
        Column("LIMITED-BY", [f"{each.limited_by} of {each.place}" if each.limited_by else "" for _, each in accounts]),
        Column("TOLD", [staleness.age(each.as_of, now) for _, each in accounts]),
        Column("PROBLEM", [each.problem for _, each in accounts]),
    ]
    return terminal.fit(columns, most)[0]


def _count(count: int | None) -> str:
    return "unlimited" if count is None else str(count)
