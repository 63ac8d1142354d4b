"""`seedquota uninstall seed`: the agents remove their webhook configurations and create none until their end.

The command writes an annotation on the agents' Lease, in the release's namespace, where no tenant may write. It names
the first term of the present run. A lease that no process saw go from one holder to the next begins another run, and
then the annotation means nothing: a new installation enforces again. So does one whose replicas all restart.

The leader answers with the same text and what is left. Every status says `Uninstalled` meanwhile.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from common.api.conditions import some
from common.api.labels import UNINSTALL_ANNOTATION
from common.kube.controller.leader_election import SINCE_ANNOTATION
from seed.registration.health import Proof

REASON = "Uninstalled"
PROOF = Proof(False, "Uninstalled", "`seedquota uninstall seed` has removed the webhooks: nothing is checked there")


def asked(annotations: Mapping[str, str]) -> str:
    """What is asked in this run; empty: nothing."""
    text = annotations.get(UNINSTALL_ANNOTATION, "")
    run = annotations.get(SINCE_ANNOTATION, "")
    return text if run and text.startswith(f"{run}.") else ""


def answer(question: str, left: Sequence[str]) -> str:
    """`left`: where a configuration may still be."""
    return f"{question} {some(sorted(left))}".rstrip()
