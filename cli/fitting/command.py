"""Shows whether objects fit into their quotas, and how many of them fit. It creates and reserves nothing."""

from __future__ import annotations

import argparse
import asyncio
import sys
from pathlib import Path

from cli import reading, terminal
from cli.connection import add_cluster, connected, context_namespace
from cli.fitting import answer, asking, files
from cli.outcome import Failed, Printed
from cli.terminal import add_output
from seed.admission.fits import MOST
from seed.previews.objects import Manifest

HELP = "show whether objects in a file fit into their quotas, and how many"
EXAMPLES = """\
examples:
  seedquota fits -f pool-a.yaml --context c1                 # a MachineDeployment, in its user cluster
  seedquota fits -f pool-a.yaml --context c1 --replicas 10
  kubectl get deploy web -o yaml | seedquota fits -f - --replicas 10
  seedquota fits -f pod.yaml -n web -o wide                  # with what is used and free

It asks the API server by dry runs, with your rights: you need those to create and edit the objects, and the pods and
claims that they make. What exists costs its difference. Of Machines, and of Cluster API's on the seed, it asks the
seed's webhook; so the answer is what would be admitted now, and may be another one later.
Exit status: 0 fits, 1 failed, 2 does not fit, 3 it cannot be told now.
"""


def declare(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-f", "--filename", metavar="FILE", required=True, help="YAML or JSON, also a List; - is stdin")
    add_replicas(parser, "number of pieces, instead of the number in the file")
    parser.add_argument(
        "-n", "--namespace", help="namespace of objects that name none; not set: that of the context, or `default`"
    )
    add_cluster(parser, "the cluster in which the objects would be created")
    add_output(parser, "text", "wide", "json", "yaml")
    parser.set_defaults(run=run)


def add_replicas(parser: argparse.ArgumentParser, what: str) -> None:
    parser.add_argument("--replicas", type=_count, metavar="NUMBER", help=what)


def _count(raw: str) -> int:
    if not (raw.isascii() and raw.isdecimal() and 0 < int(raw) <= MOST):
        raise argparse.ArgumentTypeError(f"{raw!r} is no number from 1 to {MOST}")
    return int(raw)


async def run(options: argparse.Namespace) -> Printed:
    manifests = files.read(await asyncio.to_thread(text_of, options.filename))
    for each in manifests:
        _in_namespace(each, options.namespace)
    namespace = options.namespace or context_namespace(options.kubeconfig, options.context)
    found: list[answer.Told] = []
    async with connected(options, "cluster") as cluster:
        for each in manifests:
            found += [answer.told(one) for one in await asking.ask(cluster, each, namespace, options.replicas)]
    status = answer.status(found)
    if options.output in ("json", "yaml"):
        return Printed(reading.written({"items": found}, options.output), status)
    if options.output == "wide":
        return Printed(answer.table(found, None), status)
    return Printed(answer.lines(found, terminal.width()), status)


def text_of(filename: str) -> str:
    """Raises Failed."""
    try:
        return sys.stdin.read() if filename == "-" else Path(filename).read_text()
    except OSError as error:
        raise Failed(f"{filename} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise Failed(f"{filename} is no text") from None


def _in_namespace(manifest: Manifest, namespace: str | None) -> None:
    if namespace is not None and manifest.namespace not in ("", namespace):
        raise Failed(f"{manifest.shown} is in namespace {manifest.namespace}: ask for it without -n {namespace}")
