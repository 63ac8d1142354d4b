"""What `doctor` has found so far, and how it is printed."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec

from cli import terminal
from cli.doctor.findings import Finding
from cli.outcome import Failed
from common.api.conditions import count
from common.kube.client.errors import ApiError


class Report(msgspec.Struct):
    """`not_checked`: what, and why. `looked_at`: how many of what."""

    findings: list[Finding] = []
    not_checked: list[str] = []
    looked_at: list[str] = []

    @asynccontextmanager
    async def part(self, what: str) -> AsyncIterator[None]:
        """Of a part that fails the others know nothing."""
        try:
            yield
        except (ApiError, Failed) as error:
            self.not_checked.append(f"{what}: {error}")


def text(report: Report, most: int | None) -> str:
    lines = []
    for each in report.findings:
        lines += [terminal.wrapped(each.text(), most, "  "), terminal.wrapped(f"  cure: {each.cure}", most, "  ")]
    lines += [terminal.wrapped(f"not checked: {each}", most, "  ") for each in report.not_checked]
    wrong = count(len(report.findings), "finding") if report.findings else "nothing is wrong"
    lines.append(terminal.wrapped(f"{wrong}; looked at {', '.join(report.looked_at)}", most, "  "))
    return "\n".join(lines)
