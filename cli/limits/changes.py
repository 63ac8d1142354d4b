"""What is to change in a list of limits, and what of it is used beyond. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import msgspec

from cli import terminal
from cli.outcome import Failed
from cli.terminal import Column
from common.kube.client.errors import Invalid
from common.quota import resources
from common.quota.quantity import QuantityError
from common.quota.resources import ResourceList

UNLIMITED = "unlimited"
OVER = "Nothing is removed, and nothing more is admitted until use has fallen."

_CHANGE = re.compile(r"(?P<name>[^=]+?)(=(?P<amount>.+)|(?P<removed>-))")

Changes = Mapping[str, str | None]
"""Limits by resource, as they are written. None removes the limit."""


class Changed(msgspec.Struct, frozen=True):
    """One limit before and after, in one unit. `over`: used beyond the new limit; empty if nothing is."""

    before: str
    after: str
    used: str
    over: str


def parsed(words: Sequence[str]) -> Changes:
    """Of `cpu=128` and `storage-`. Raises Failed."""
    found: dict[str, str | None] = {}
    for word in words:
        match = _CHANGE.fullmatch(word)
        if match is None:
            raise Failed(
                f"{word!r} is no limit: write RESOURCE=AMOUNT, such as cpu=128, or RESOURCE- to remove a limit"
            )
        name, amount = match["name"], match["amount"]
        if name in found:
            raise Failed(f"{name} is named twice")
        try:
            resources.parse({name: amount} if amount is not None else {})
        except QuantityError as error:
            raise Failed(str(error)) from None
        found[name] = amount
    return found


def refused(error: Invalid) -> Failed:
    """What the API server found wrong."""
    found = [cause.message.removeprefix('Invalid value: "object": ') for cause in error.causes]
    return Failed("; ".join(found) or error.message)


def compared(before: ResourceList, after: ResourceList, used: ResourceList, names: Sequence[str]) -> dict[str, Changed]:
    """Of the resources with these names."""
    found: dict[str, Changed] = {}
    for name in names:
        amounts = {
            word: amounts[name]
            for word, amounts in (("before", before), ("after", after), ("used", used))
            if name in amounts
        }
        excess = amounts.get("used", 0) - amounts.get("after", amounts.get("used", 0))
        if excess > 0:
            amounts["over"] = excess
        written = dict(zip(amounts, resources.shown(name, *amounts.values()), strict=True))
        found[name] = Changed(
            before=written.get("before", UNLIMITED),
            after=written.get("after", UNLIMITED),
            used=written.get("used", ""),
            over=written.get("over", ""),
        )
    return found


def table(found: Mapping[str, Changed], most: int | None) -> str:
    columns = [
        Column("Resource", list(found)),
        Column("Before", [each.before for each in found.values()]),
        Column("After", [each.after for each in found.values()]),
        Column("Used", [each.used or "?" for each in found.values()]),
        Column("Over", [each.over for each in found.values()]),
    ]
    return terminal.fit(columns if any(columns[-1].cells) else columns[:-1], most)[0]
