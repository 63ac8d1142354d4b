"""When webhooks are withdrawn: only while the run of terms lasts in which that was asked."""

from __future__ import annotations

import pytest

from common.api.labels import UNINSTALL_ANNOTATION
from common.kube.controller.leader_election import SINCE_ANNOTATION
from seed.registration.health import webhook_serving
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


def test_it_is_the_worst_that_can_be_said_of_a_seed() -> None:
    clusters = {"a/1": PROOF, "a/2": PROOF.__class__(False, "CanaryAdmitted")}
    assert webhook_serving(clusters).reason == "Uninstalled"
