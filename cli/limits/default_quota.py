"""Shows or changes the default quota of projects or organizations that have no quota of their own."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from cli import reading, terminal
from cli.connection import add_cluster, connected
from cli.limits import changes
from cli.limits.changes import Changes
from cli.limits.set_quota import ATTEMPTS, add_write_flags
from cli.outcome import DONE, Failed, Printed
from cli.terminal import Column, add_output
from common.api.labels import SETTINGS
from common.api.types import QUOTA_SETTINGS, DefaultQuota, Defaults, QuotaSettings
from common.kube.client.api_client import Cluster
from common.kube.client.errors import AlreadyExists, Conflict, Forbidden, Invalid
from common.quota import resources
from common.quota.names import in_order
from master.cache.objects import MASTER_QUOTAS, MasterQuota
from master.quotas import limit_changes
from master.quotas.limit_changes import Changed, compared

KINDS = ("project", "organization")
MOST = 8  # quotas that are named

HELP = "show, set or remove the quota of those that have none of their own"
EXAMPLES = """\
examples:
  seedquota default show
  seedquota default set project cpu=16 memory=64Gi
  seedquota default set organization cpu=200 --dry-run=server
  seedquota default set project storage-   # other limits stay
  seedquota default unset project          # the quotas that follow it go

Projects and organizations that exist get it, too. It is in QuotaSettings on the master, which has more fields.
Exit status: 0 done, 1 failed.
"""


class Followed(msgspec.Struct, frozen=True):
    """A default quota, and the quotas that follow it. No `quota`: there is no default."""

    kind: str
    quota: dict[str, str | int]
    enforcement: str
    followers: int
    over: dict[str, str] = {}
    """Followers that use more, by name."""


def declare(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(metavar="ACTION", required=True)
    one = _action(
        actions,
        "show",
        show,
        "Shows the default quotas, and how many quotas follow each of them.",
        "print the default quotas",
    )
    add_output(one, "table", "json", "yaml")
    said = "Creates a default quota or changes its limits. The quotas that follow it change with it."
    one = _action(actions, "set", set_default, said, "change the default quota of projects or organizations")
    one.add_argument("kind", choices=KINDS, help="project or organization")
    one.add_argument("limits", metavar="RESOURCE=AMOUNT", nargs="+", help="a limit, or RESOURCE- to remove it")
    add_write_flags(one)
    said = (
        "Removes a default quota and the quotas that follow it. A project or organization without another quota is "
        "unlimited."
    )
    one = _action(actions, "unset", unset, said, "remove the default quota of projects or organizations")
    one.add_argument("kind", choices=KINDS, help="project or organization")
    add_write_flags(one)


def _action(actions: Any, name: str, run: Callable[..., Any], said: str, what: str) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = actions.add_parser(name, help=what, description=said, epilog=EXAMPLES)
    add_cluster(parser)
    parser.set_defaults(run=run)
    return parser


async def show(options: argparse.Namespace) -> Printed:
    async with connected(options, "master") as master:
        settings = await reading.one(master, QUOTA_SETTINGS, SETTINGS)
        quotas = await reading.every(master, MASTER_QUOTAS)
    defaults = settings.spec.defaults if settings is not None else Defaults()
    found = [followed(kind, _of(defaults, kind), quotas) for kind in KINDS]
    if options.output != "table":
        return Printed(reading.written({"items": found}, options.output), DONE)
    return Printed(table(found, terminal.width()), DONE)


async def set_default(options: argparse.Namespace) -> Printed:
    wanted, dry_run = changes.parsed(options.limits), options.dry_run == "server"
    async with connected(options, "master") as master:
        quotas = await reading.every(master, MASTER_QUOTAS)
        before, after = await _write(master, options.kind, {"quota": wanted}, dry_run=dry_run)
    found = followed(options.kind, after, quotas)
    had = resources.parse(before.quota) if before is not None else {}
    has = resources.parse(after.quota) if after is not None else {}
    changed = compared(had, has, {}, in_order(wanted))
    result = "created" if before is None else "unchanged" if had == has else "changed"
    return _said(options, found, result, changed, dry_run=dry_run)


async def unset(options: argparse.Namespace) -> Printed:
    dry_run = options.dry_run == "server"
    async with connected(options, "master") as master:
        settings = await reading.one(master, QUOTA_SETTINGS, SETTINGS)
        if settings is None or _of(settings.spec.defaults, options.kind) is None:
            return Printed(f"there is no default quota for {options.kind}s", DONE)
        quotas = await reading.every(master, MASTER_QUOTAS)  # before those that follow it go
        before, _ = await _write(master, options.kind, None, dry_run=dry_run)
    found = followed(options.kind, before, quotas)
    return _said(options, found, "removed", {}, dry_run=dry_run)


async def _write(
    master: Cluster, kind: str, default: Mapping[str, Changes] | None, *, dry_run: bool
) -> tuple[DefaultQuota | None, DefaultQuota | None]:
    """Before and after. Compare-and-set: nothing that somebody else writes at the same time is lost. Raises Failed."""
    found = await reading.one(master, QUOTA_SETTINGS, SETTINGS)
    reading.refuse_copies(master, [found] if found is not None else [], "QuotaSettings")
    try:
        for _ in range(ATTEMPTS):
            try:
                return await _written(master, found, kind, default, dry_run=dry_run)
            except (Conflict, AlreadyExists):
                now = await reading.one(master, QUOTA_SETTINGS, SETTINGS)
            if _default(now, kind) != _default(found, kind):
                raise Failed(
                    f"somebody else has just changed the default quota of {kind}s: nothing was written; try again"
                )
            found = now
    except Forbidden as error:
        raise Failed(reading.no_right(QUOTA_SETTINGS, "create" if found is None else "patch", error)) from None
    except Invalid as error:
        raise changes.refused(error) from None
    raise Failed("QuotaSettings change all the time: try again")


async def _written(
    master: Cluster, found: QuotaSettings | None, kind: str, default: Mapping[str, Changes] | None, *, dry_run: bool
) -> tuple[DefaultQuota | None, DefaultQuota | None]:
    """Raises ApiError, Failed."""
    defaults = {kind: default}
    if found is not None:
        metadata = {"resourceVersion": found.metadata.resource_version}
        patch = {"metadata": metadata, "spec": {"defaults": defaults}}
        after = await master.merge_patch(QUOTA_SETTINGS, SETTINGS, patch, dry_run=dry_run)
        return _default(found, kind), _default(after, kind)
    limits = {name: amount for name, amount in (default or {}).get("quota", {}).items() if amount is not None}
    if not limits:
        raise Failed(f"there is no default quota for {kind}s, so there is no limit to remove")
    body = {"metadata": {"name": SETTINGS}, "spec": {"defaults": {kind: {"quota": limits}}}}
    return None, _default(await master.create(QUOTA_SETTINGS, body, dry_run=dry_run), kind)


def _default(settings: QuotaSettings | None, kind: str) -> DefaultQuota | None:
    return _of(settings.spec.defaults, kind) if settings is not None else None


def _of(defaults: Defaults, kind: str) -> DefaultQuota | None:
    return defaults.project if kind == "project" else defaults.organization


def followed(kind: str, default: DefaultQuota | None, quotas: Sequence[MasterQuota]) -> Followed:
    """Raises QuantityError."""
    following = limit_changes.followers(kind, quotas)
    over = limit_changes.over_with(resources.parse(default.quota) if default is not None else {}, following)
    return Followed(
        kind=kind,
        quota=dict(default.quota) if default is not None else {},
        enforcement=default.enforcement if default is not None else "",
        followers=len(following),
        over={name: resources.text(excess) for name, excess in over.items()},
    )


def table(found: Sequence[Followed], most: int | None) -> str:
    columns = [
        Column("FOR", [each.kind for each in found]),
        Column("LIMITS", [_limits(each) or "none" for each in found]),
        Column("ENFORCEMENT", [each.enforcement for each in found], goes=1),
        Column("FOLLOWED-BY", [str(each.followers) for each in found]),
    ]
    return terminal.fit(columns, most)[0]


def _limits(found: Followed) -> str:
    return ",".join(f"{name}={found.quota[name]}" for name in in_order(found.quota))


def _said(
    options: argparse.Namespace, found: Followed, result: str, changed: dict[str, Changed], *, dry_run: bool
) -> Printed:
    if options.output != "table":
        plain = {"result": result, "dryRun": dry_run, "resources": changed, "default": found}
        return Printed(reading.written(plain, options.output), DONE)
    return Printed(text(found, result, changed, terminal.width(), dry_run=dry_run), DONE)


def text(found: Followed, result: str, changed: Mapping[str, Changed], most: int | None, *, dry_run: bool) -> str:
    lines = [f"default quota of {found.kind}s {result}{' (server dry run)' if dry_run else ''}"]
    if changed:
        lines.append(_without_use(changed, most))
    quotas = f"{found.followers} quota{'' if found.followers == 1 else 's'}"
    if result == "removed":
        goes = "would go" if dry_run else "goes" if found.followers == 1 else "go"
        lines.append(f"{quotas} that followed it {goes}.")
    elif result != "created":
        lines.append(f"{quotas} {'follow' if found.followers != 1 else 'follows'} it.")
    if result != "removed" and found.over:
        named = [f"seedquota/{name} by {amount}" for name, amount in list(found.over.items())[:MOST]]
        more = [f"and {len(found.over) - MOST} more"] if len(found.over) > MOST else []
        lines.append(f"More is used already in {'; '.join([*named, *more])}. {changes.OVER}")
    return "\n".join(terminal.wrapped(line, most) if "\n" not in line else line for line in lines)


def _without_use(changed: Mapping[str, Changed], most: int | None) -> str:
    columns = [
        Column("Resource", list(changed)),
        Column("Before", [each.before for each in changed.values()]),
        Column("After", [each.after for each in changed.values()]),
    ]
    return terminal.fit(columns, most)[0]
