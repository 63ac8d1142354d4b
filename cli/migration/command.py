"""`seedquota migrate`: prints what quotas of other systems are here, for `kubectl apply -f -`."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Callable, Iterable, Sequence

import msgspec

from cli.fitting.command import text_of
from cli.migration import kkp, manifests, namespaces, unikorn
from cli.migration.manifests import Json, Translated
from cli.outcome import Printed

HELP = "print the quotas of other systems as manifests"
EXAMPLES = """\
examples:
  kubectl get resourcequotas.kubermatic.k8c.io,kubermaticsettings -o yaml | seedquota migrate kkp -
  seedquota migrate unikorn export.yaml > quotas.yaml
  oc get clusterresourcequotas -o yaml | seedquota migrate openshift --enforcement warn - > quotas.yaml
  kubectl get hierarchicalresourcequotas -A -o yaml | seedquota migrate hnc -
  kubectl get tenants,globalresourcequotas -o yaml | seedquota migrate capsule -
  kubectl get projects.management.cattle.io -A -o yaml | seedquota migrate rancher -
  kubectl apply --dry-run=server -f quotas.yaml

The command reads only files, and no cluster. Comments at the beginning of the output list what cannot be translated.
Read them first. The command does not know which objects exist already. `kubectl diff -f` shows what would change. With
`--enforcement warn` the quotas refuse nothing: they count, and warn of what they would refuse.
Exit status: 0 done, 1 failed, 3 done, but something could not be translated.
"""
_KKP = (
    "ResourceQuotas and the default quota of a KubermaticSetting of Kubermatic, kubermatic.k8c.io/v1. Names of "
    "projects do not change: they are the ids of Kubermatic's Projects."
)
_UNIKORN = (
    "Organizations, Projects, Quotas, QuotaMetadata and Allocations of Unikorn's identity service, "
    "identity.unikorn-cloud.org/v1alpha1. Names do not change: they are ids. Of its types, `clusters`, `servers` and "
    "`gpus` are translated."
)
_SYSTEMS: Sequence[tuple[str, Callable[[Iterable[Json]], Translated], str]] = (
    ("kkp", kkp.translated, _KKP),
    ("unikorn", unikorn.translated, _UNIKORN),
    *namespaces.SYSTEMS,
)


def declare(parser: argparse.ArgumentParser) -> None:
    systems = parser.add_subparsers(metavar="SYSTEM", required=True)
    for name, translate, said in _SYSTEMS:
        one = systems.add_parser(
            name,
            help=said.partition(",")[0],
            description=said,
            epilog=EXAMPLES,
        )
        one.add_argument("files", metavar="FILE", nargs="+", help="YAML or JSON, also a List; - is stdin")
        one.add_argument(
            "--enforcement", choices=["deny", "warn"], default="deny", help="of all quotas [default: %(default)s]"
        )
        one.set_defaults(run=run, translate=translate)


async def run(options: argparse.Namespace) -> Printed:
    translate: Callable[[Iterable[Json]], Translated] = options.translate
    found: list[Json] = []
    for file in options.files:
        found += manifests.documents(await asyncio.to_thread(text_of, file), file)
    done = translate(found)
    if options.enforcement != "deny":
        objects = [manifests.with_enforcement(each, options.enforcement) for each in done.objects]
        done = msgspec.structs.replace(done, objects=objects)
    return manifests.printed(done)
