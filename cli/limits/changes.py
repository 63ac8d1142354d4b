"""What is to change in a list of limits, as it is asked for and as it is shown. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from cli import terminal
from cli.outcome import Failed
from cli.terminal import Column
from common.kube.client.errors import Invalid
from common.quota import resources
from common.quota.quantity import QuantityError
from master.quotas.limit_changes import Changed

OVER = "Nothing is removed, and nothing more is admitted until use has fallen."

_CHANGE = re.compile(r"(?P<name>[^=]+?)(=(?P<amount>.+)|(?P<removed>-))")

Changes = Mapping[str, str | None]
"""Limits by resource, as they are written. None removes the limit."""


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


def table(found: Mapping[str, Changed], most: int | None) -> str:
    columns = [
        Column("Resource", list(found)),
        Column("Before", [each.before for each in found.values()]),
        Column("After", [each.after for each in found.values()]),
        Column("Used", [each.used or "?" for each in found.values()]),
        Column("Over", [each.over for each in found.values()]),
    ]
    return terminal.fit(columns if any(columns[-1].cells) else columns[:-1], most)[0]
