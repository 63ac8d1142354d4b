"""Every page of the reference, by file name, and what makes it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from devcluster.reference import conditions, fields, flags, messages, metrics

DIRECTORY = Path(__file__).parents[2] / "docs" / "reference"

_INDEX = """\
# Reference

`python -m devcluster.reference` writes these pages from the code and the CRDs. A test fails if they differ.

- [Fields](fields.md): every kind, its columns, fields and rules
- [Conditions](conditions.md): every condition with its reasons
- [Messages](messages.md): refusals, warnings and Events
- [Flags and exit status](flags.md): every program and command
- [Metrics](metrics.md): every metric of both programs
- Values of the charts: [seedquota-master](../../charts/seedquota-master/README.md#values),
  [seedquota-seed](../../charts/seedquota-seed/README.md#values),
  [seedquota-crds](../../charts/seedquota-crds/README.md#values)

These pages are written by hand:

- [Commands](commands.md) that show quotas, seeds and problems
- [What a Machine costs](providers.md): the fields that count for each provider
- [HTTP API](http-api.md): routes, errors, rights
- [What each quota does with each resource](quota-matrix.md), with the messages
- [What happens when objects change](object-changes.md)
- [Guarantees](guarantees.md), their [assumptions](assumptions.md) and their [verification](verification.md)
- The [protocol](protocol.md), and [security](security.md)
- [Measurements](bench.md)
"""


MADE: Mapping[str, Callable[[], str]] = {
    "README.md": lambda: _INDEX,
    "fields.md": fields.page,
    "conditions.md": conditions.page,
    "messages.md": messages.page,
    "flags.md": flags.page,
    "metrics.md": metrics.page,
}
