"""When webhooks are withdrawn: only while the run of terms lasts in which that was asked."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import pytest

from common.api.labels import UNINSTALL_ANNOTATION
from common.kube.client.api_client import Cluster
from common.kube.client.meta import ObjectMeta
from common.kube.controller.leader_election import SINCE_ANNOTATION
from seed.registration.configuration import WebhookConfiguration
from seed.registration.health import Proof, webhook_serving
from seed.registration.registered_webhook import RegisteredWebhook
from seed.registration.withdrawal import PROOF, answer, asked


@pytest.mark.parametrize(
    ("run", "text", "expected"),
    [
        ("7", "7.ab12", "7.ab12"),
        ("8", "7.ab12", ""),
        ("", "7.ab12", ""),
        ("", ".ab12", ""),
        ("7", "", ""),
        ("7", "70.ab12", ""),
    ],
)
def test_what_was_asked_of_an_earlier_run_means_nothing(run: str, text: str, expected: str) -> None:
    assert asked({SINCE_ANNOTATION: run, UNINSTALL_ANNOTATION: text}) == expected


def test_an_answer_names_the_question_and_what_is_left() -> None:
    assert answer("7.ab12", []) == "7.ab12"
    assert answer("7.ab12", ["b", "a", "d", "c"]) == "7.ab12 a, b, c and 1 more"


def test_what_was_proven_before_must_be_proven_anew() -> None:
    wanted = True
    told: list[Proof | None] = []
    desired = WebhookConfiguration(metadata=ObjectMeta(name="w"))
    webhook = RegisteredWebhook(
        cast(Cluster, SimpleNamespace(name="c1")),
        "a/1",
        lambda: desired,
        lambda: None,
        wanted=lambda: wanted,
        on_state=lambda: told.append(webhook.proof),
    )
    webhook.canary.proof = Proof(True, "CanaryDenied")
    webhook._told()
    wanted = False
    webhook.changed()
    assert webhook.proof == PROOF
    webhook.canary.proof = Proof(True, "CanaryDenied")  # the answer to one that was sent before
    webhook._told()
    wanted = True
    assert (webhook.proof, told) == (None, [Proof(True, "CanaryDenied"), PROOF])


def test_it_is_the_worst_that_can_be_said_of_a_seed() -> None:
    clusters = {"a/1": PROOF, "a/2": PROOF.__class__(False, "CanaryAdmitted")}
    assert webhook_serving(clusters).reason == "Uninstalled"
