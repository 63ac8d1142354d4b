"""What `doctor` has found so far, and how it is printed."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import msgspec

from cli import terminal
from cli.doctor.findings import Finding
from cli.outcome import Failed
from common.api import conditions
from common.api.conditions import count
from common.kube.client.errors import ApiError


class Report(msgspec.Struct):
    """`not_checked`: what, and why. `looked_at`: how many of what. `beyond`: what is not looked at in this way. `seed`:
    which all of it is about; empty: the master."""

    findings: list[Finding] = []
    not_checked: list[str] = []
    looked_at: Counter[str] = msgspec.field(default_factory=Counter)
    beyond: list[str] = []
    seed: str = ""

    @asynccontextmanager
    async def part(self, what: str) -> AsyncIterator[None]:
        """Of a part that fails the others know nothing."""
        try:
            yield
        except (ApiError, Failed) as error:
            self.not_checked.append(f"{what}: {error}")


class Whole(msgspec.Struct, frozen=True, rename="camel"):
    """For programs."""

    items: list[Finding]
    not_checked: list[str]
    beyond: list[str]


def whole(reports: Sequence[Report]) -> Whole:
    items = [each for report in reports for each in _findings(report)]
    not_checked = [_of(report.seed, why) for report in reports for why in report.not_checked]
    return Whole(items, not_checked, [_of(report.seed, what) for report in reports for what in report.beyond])


def text(reports: Sequence[Report], most: int | None) -> str:
    """By seed; what is the same of several seeds is said once."""
    lines: list[str] = []
    by_seed: dict[str, list[Finding]] = {}
    for report in reports:
        for each in _findings(report):
            by_seed.setdefault(each.seed, []).append(each)
    for seed, found in by_seed.items():
        lines += [f"seed {seed}:"] if seed else []
        lines += [line for each in found for line in _lines(each, most)]
    lines += [_together("not checked", why, seeds, most) for why, seeds in _same("not_checked", reports).items()]
    lines += [_together("not looked at", what, seeds, most) for what, seeds in _same("beyond", reports).items()]
    number = sum(map(len, by_seed.values()))
    wrong = count(number, "finding") if number else "nothing is wrong"
    looked_at = sum((report.looked_at for report in reports), Counter[str]())
    what = ", ".join(count(looked_at[thing], thing) for thing in dict.fromkeys(_things(reports)))
    lines.append(terminal.wrapped(f"{wrong}; looked at {what}", most, "  "))
    return "\n".join(lines)


def _findings(report: Report) -> list[Finding]:
    return [msgspec.structs.replace(each, seed=each.seed or report.seed) for each in report.findings]


def _lines(found: Finding, most: int | None) -> list[str]:
    indent = "  " if found.seed else ""
    said, cure = found.text(), f"  cure: {found.cure}"
    return [terminal.wrapped(f"{indent}{line}", most, f"{indent}  ") for line in (said, cure)]


def _same(field: str, reports: Sequence[Report]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for report in reports:
        for why in getattr(report, field):
            found.setdefault(why, []).append(report.seed)
    return found


def _together(head: str, what: str, seeds: Sequence[str], most: int | None) -> str:
    named = [seed for seed in seeds if seed]
    where = f" on {conditions.some(named)}" if named else ""
    return terminal.wrapped(f"{head}{where}: {what}", most, "  ")


def _of(seed: str, what: str) -> str:
    return f"seed {seed}: {what}" if seed else what


def _things(reports: Sequence[Report]) -> list[str]:
    return [thing for report in reports for thing in report.looked_at]
