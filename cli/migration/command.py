"""`seedquota migrate`: prints what quotas of other systems are here, for `kubectl apply -f -`."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Callable, Iterable
from typing import Any

from cli.fitting.command import text_of
from cli.migration import kkp, manifests, unikorn
from cli.migration.manifests import Json, Translated
from cli.outcome import Printed

_EXAMPLES = """\
examples:
  kubectl get resourcequotas.kubermatic.k8c.io,kubermaticsettings -o yaml | seedquota migrate kkp -
  seedquota migrate unikorn export.yaml > quotas.yaml
  kubectl apply --dry-run=server -f quotas.yaml

The command reads only files, and no cluster. Comments at the beginning of the output list what cannot be translated.
Read them first. The command does not know which objects exist already. `kubectl diff -f` shows what would change. If
you do not know what a limit would refuse, try it with `enforcement: warn`.
Exit status: 0 done, 1 failed, 3 done, but something could not be translated.
"""
_KKP = (
    "ResourceQuotas and the default quota of a KubermaticSetting of Kubermatic, kubermatic.k8c.io/v1. Names of "
    "projects do not change: they are the ids of Kubermatic's Projects."
)
_UNIKORN = (
    "Organizations, Projects, Quotas and QuotaMetadata of Unikorn's identity service, "
    "identity.unikorn-cloud.org/v1alpha1. Names do not change: they are ids. Of its types, only `clusters` "
    "is translated."
)


def declare(commands: Any) -> None:
    parser = commands.add_parser(
        "migrate",
        help="print the quotas of other systems as manifests",
        description=__doc__,
        epilog=_EXAMPLES,
    )
    systems = parser.add_subparsers(metavar="SYSTEM", required=True)
    for name, said, translate in (("kkp", _KKP, kkp.translated), ("unikorn", _UNIKORN, unikorn.translated)):
        one = systems.add_parser(
            name,
            help=said.partition(",")[0],
            description=said,
            epilog=_EXAMPLES,
        )
        one.add_argument("files", metavar="FILE", nargs="+", help="YAML or JSON, also a List; - is stdin")
        one.set_defaults(run=run, translate=translate)


async def run(options: argparse.Namespace) -> Printed:
    translate: Callable[[Iterable[Json]], Translated] = options.translate
    found: list[Json] = []
    for file in options.files:
        found += manifests.documents(await asyncio.to_thread(text_of, file), file)
    return manifests.printed(translate(found))
