"""Changes the limits of a project or organization. If it has no quota, the command creates one."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

import msgspec

from cli import figures, quotas, reading, terminal
from cli.connection import add_cluster, connected
from cli.limits import changes, raises
from cli.limits.changes import Changes
from cli.outcome import DONE, STALE, Failed, Printed
from cli.terminal import add_output
from common.api.labels import DEFAULT_LABEL
from common.api.types import ORGANIZATIONS, PROJECTS, SEEDS, Quantities
from common.kube.client.api_client import Cluster
from common.kube.client.errors import AlreadyExists, ApiError, Conflict, Forbidden, Invalid, NotFound
from common.quota import guarantees, resources
from common.quota.names import in_order
from common.quota.quantity import UNIT
from master.cache.objects import MASTER_QUOTAS, MasterQuota, spec_guaranteed, spec_quota
from master.quotas import staleness
from master.quotas.limit_changes import Changed, compared
from master.tenancy.default_policy import usual_name
from master.tenancy.quota_allocations import made_from

TINY = 2**20 * UNIT  # bytes: no machine and no pod is that small
ATTEMPTS = 10  # the master writes the status all the time
FITS = "The condition LimitsFit of the quota says whether the guarantee fits the quota of the organization."

HELP = "change the limits of a project or organization"
EXAMPLES = """\
examples:
  seedquota set project/alpha cpu=128 memory=512Gi
  seedquota set project/alpha cpu=48 --dry-run=server   # what would be used beyond it
  seedquota set organization/acme nvidia.com/gpu=16 storage-
  seedquota set seedquota/owner-ann pods=100            # by its name: of kind namespaces, or one of several
  seedquota set project/alpha cpu=128 --until 7d --reason launch   # raises it for a week
  seedquota set project/alpha guaranteed.cpu=16         # keeps them of the organization's limit for it

RESOURCE=AMOUNT sets a limit and RESOURCE- removes it, so that the resource is unlimited; other limits stay. The same
with `guaranteed.` before the resource sets and removes what is guaranteed to a project. With
--until the limit in the quota stays, and is raised until then. If somebody else changes the limits at the same time,
nothing is written.
Exit status: 0 done, 1 failed; with --dry-run also 3, a figure may be out of date.
"""


class Result(msgspec.Struct, frozen=True, rename="camel"):
    """`result` is created, changed or unchanged. `guaranteed`: what was asked to be, as it is now."""

    quota: str
    subject: str
    result: str
    dry_run: bool
    resources: dict[str, Changed]
    guaranteed: dict[str, str]
    notes: list[str]


def declare(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "subject", metavar="SUBJECT", help="project/NAME, organization/NAME, or seedquota/NAME of a quota"
    )
    parser.add_argument("limits", metavar="RESOURCE=AMOUNT", nargs="+", help="a limit, or RESOURCE- to remove it")
    parser.add_argument(
        "--until", metavar="TIME", default="", help="raise the limits until then: 2026-12-31T00:00:00Z, or 90m, 36h, 7d"
    )
    parser.add_argument("--reason", metavar="TEXT", default="", help="why they are raised, with --until")
    add_cluster(parser)
    add_write_flags(parser)
    parser.set_defaults(run=run)


def add_write_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--dry-run",
        choices=("none", "server"),
        default="none",
        help="`none`, or `server`: the API server checks the change and writes nothing [default none]",
    )
    add_output(parser, "table", "json", "yaml")


async def run(options: argparse.Namespace) -> Printed:
    asked, dry_run, now = changes.parsed(options.limits), options.dry_run == "server", datetime.now(UTC)
    wanted = {name: amount for name, amount in asked.items() if not name.startswith(guarantees.PREFIX)}
    guaranteed = {name.removeprefix(guarantees.PREFIX): amount for name, amount in asked.items() if name not in wanted}
    if guaranteed and options.until:
        raise Failed("--until raises limits alone: set what is guaranteed in a command of its own")
    if options.reason and not options.until:
        raise Failed("--reason is for limits that are raised with --until")
    until = raises.end(options.until, now) if options.until else ""
    kind, _, name = options.subject.partition("/")
    if kind not in ("project", "organization", "seedquota") or not name:
        raise Failed(
            f"{options.subject!r} is no subject: write project/NAME, organization/NAME, or seedquota/NAME of a quota"
        )
    async with connected(options, "master") as master:
        if kind == "seedquota":
            named = await quotas.the_one(master, name)
            _refuse_made(named)
            before: MasterQuota | None = named
        else:
            before = await quotas.of_subject(master, f"{kind}/{name}")
        if until:
            if before is None:
                raise Failed(f"{kind}/{name} has no quota that could be raised until a time")
            spec = raises.patched(before, wanted, until, options.reason)
        else:
            spec = {"quota": wanted, **_guarantees(before, guaranteed)}
        after = await _written(master, before, kind, name, spec, dry_run=dry_run)
        notes = await _notes(master, before, after)
        silence = staleness.silence_of_master(await _seeds(master), datetime.now(UTC))
    read: Callable[[MasterQuota], Quantities] = (lambda quota: raises.limits(quota, now)) if until else spec_quota
    result = _result(before, after, wanted, notes, read, guaranteed=guaranteed, dry_run=dry_run)
    status = STALE if dry_run and before is not None and staleness.stale_of(before, silence) else DONE
    if options.output != "table":
        return Printed(reading.written(msgspec.to_builtins(result), options.output), status)
    return Printed(text(result, terminal.width()), status)


def _refuse_made(quota: MasterQuota) -> None:
    """The master would undo the change."""
    if owner := made_from(quota):
        raise Failed(
            f"seedquota/{quota.metadata.name} is made from ResourceQuotaAllocation {owner}: change that one instead"
        )


async def _written(
    master: Cluster, before: MasterQuota | None, kind: str, name: str, spec: Mapping[str, Any], *, dry_run: bool
) -> MasterQuota:
    try:
        if before is None:
            return await _created(master, kind, name, spec, dry_run=dry_run)
        return await _changed(master, before, spec, dry_run=dry_run)
    except Forbidden as error:
        raise Failed(reading.no_right(MASTER_QUOTAS, "create" if before is None else "patch", error)) from None
    except Invalid as error:
        raise changes.refused(error) from None


def _guarantees(before: MasterQuota | None, wanted: Changes) -> dict[str, Changes | None]:
    """As a merge patch. Where none is left, the field goes: the schema refuses an empty one."""
    if not wanted:
        return {}
    left = (spec_guaranteed(before) if before is not None else {}) | dict(wanted)
    return {"guaranteed": wanted if any(amount is not None for amount in left.values()) else None}


async def _created(master: Cluster, kind: str, name: str, spec: Mapping[str, Any], *, dry_run: bool) -> MasterQuota:
    limits = _without_removed(spec["quota"])
    if not limits:
        raise Failed(f"{kind}/{name} has no quota, so there is no limit to change: name one, such as cpu=128")
    guaranteed = _without_removed(spec.get("guaranteed") or {})
    assert kind in ("project", "organization"), "a quota that is named is there"
    quota = usual_name("project" if kind == "project" else "organization", name)
    amounts = {"quota": limits, **({"guaranteed": guaranteed} if guaranteed else {})}
    body = {"metadata": {"name": quota}, "spec": {"subject": {"kind": kind, "name": name}, **amounts}}
    try:
        return await master.create(MASTER_QUOTAS, body, dry_run=dry_run)
    except AlreadyExists:
        raise Failed(
            f"seedquota/{quota} exists, and limits something else or was made just now: see "
            f"`seedquota describe {quota}`"
        ) from None


def _without_removed(wanted: Changes) -> dict[str, str]:
    return {resource: amount for resource, amount in wanted.items() if amount is not None}


async def _changed(master: Cluster, before: MasterQuota, spec: Mapping[str, Any], *, dry_run: bool) -> MasterQuota:
    name, quota = before.metadata.name, before
    for _ in range(ATTEMPTS):
        patch = {"metadata": {"resourceVersion": quota.metadata.resource_version}, "spec": spec}
        try:
            return await master.merge_patch(MASTER_QUOTAS, name, patch, dry_run=dry_run)
        except Conflict:
            quota = await quotas.the_one(master, name)
        if (quota.metadata.uid, quota.metadata.generation) != (before.metadata.uid, before.metadata.generation):
            limits = resources.text(resources.parse(spec_quota(quota)))
            raise Failed(f"somebody else has just changed seedquota/{name} to {limits}: nothing was written; try again")
    raise Failed(f"seedquota/{name} changes all the time: try again")


async def _notes(master: Cluster, before: MasterQuota | None, after: MasterQuota) -> list[str]:
    notes = []
    kind, _, name = figures.subject_of(after).partition("/")
    if before is None:
        resource: Any = PROJECTS if kind == "project" else ORGANIZATIONS
        try:
            await master.get(resource, name)
        except NotFound:
            notes.append(f"There is no {kind} {name} yet: the quota limits it once it is created.")
        except ApiError:
            pass  # whether it is there, whoever may set quotas need not be allowed to see
    elif before.metadata.labels.get(DEFAULT_LABEL) == "true" and _says(before) != _says(after):
        notes.append(f"It followed the default quota. From now on it is a quota of {kind} {name} alone.")
    return notes


def _says(quota: MasterQuota) -> tuple[Quantities, Quantities]:
    return spec_quota(quota), spec_guaranteed(quota)


async def _seeds(master: Cluster) -> Any:
    try:
        return await reading.every(master, SEEDS)
    except Failed:
        return []


def _result(
    before: MasterQuota | None,
    after: MasterQuota,
    wanted: Changes,
    notes: list[str],
    read: Callable[[MasterQuota], Quantities],
    *,
    guaranteed: Changes,
    dry_run: bool,
) -> Result:
    """`read`: the limits that were to be changed."""
    had = resources.parse(read(before)) if before is not None else {}
    has = resources.parse(read(after))
    used = resources.parse(before.status.global_usage) if before is not None else {}
    found = compared(had, has, used, in_order(wanted))
    tiny = [
        f"{name}={wanted[name]} is less than 1Mi: the unit is bytes, so write such as {name}=16Gi."
        for name in in_order(wanted)
        if resources.unit(name) == "bytes" and 0 < has.get(name, 0) < TINY
    ]
    kept = resources.parse(spec_guaranteed(after))
    same = before is not None and had == has and resources.parse(spec_guaranteed(before)) == kept
    return Result(
        quota=after.metadata.name,
        subject=figures.subject_of(after),
        result="created" if before is None else "unchanged" if same else "changed",
        dry_run=dry_run,
        resources=found,
        guaranteed={name: resources.shown(name, kept.get(name, 0))[0] for name in in_order(guaranteed)},
        notes=[
            *tiny,
            *notes,
            *([changes.OVER] if any(each.over for each in found.values()) else []),
            *([FITS] if any(kept.get(name) for name in guaranteed) else []),
        ],
    )


def text(result: Result, most: int | None) -> str:
    dry = " (server dry run)" if result.dry_run else ""
    head = f"seedquota/{result.quota} of {result.subject} {result.result}{dry}"
    guaranteed = [f"Guaranteed: {name}={amount}" for name, amount in result.guaranteed.items()]
    table = [changes.table(result.resources, most)] if result.resources else []
    return "\n".join([head, *table, *(terminal.wrapped(each, most) for each in (*guaranteed, *result.notes))])
