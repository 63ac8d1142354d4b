"""What an API server's answer to a canary proves."""

from __future__ import annotations

import msgspec
import pytest

from common.kube.client.errors import ApiError, Cause, Forbidden
from seed.admission import denial
from seed.machines.machine_controller import Machine
from seed.registration.probe import ANNOTATION, is_canary, judge

WEBHOOK = 'failed calling webhook "machines.seedquota.io": failed to call webhook: Post "https://seed:9443/machines/u/t0k3n?timeout=3s"'


def refused(webhook: str = "machines.seedquota.io") -> ApiError:
    refusal = denial.canary()
    causes = tuple(Cause(cause.reason, cause.message, cause.field) for cause in refusal.causes)
    return Forbidden(
        403,
        "Forbidden",
        f'admission webhook "{webhook}" denied the request: {refusal.text}',
        None,
        causes,
    )


@pytest.mark.parametrize(
    ("answer", "enforced", "reason"),
    [
        (refused(), True, "CanaryDenied"),
        (refused("stamp.machines.seedquota.io"), None, "NotProven"),
        (None, False, "CanaryAdmitted"),
        (ApiError(500, "InternalError", f"{WEBHOOK}: connect: connection refused"), False, "NotServing"),
        (ApiError(500, "InternalError", f"{WEBHOOK}: context deadline exceeded"), False, "NotServing"),
        (
            ApiError(
                500, "InternalError", f"{WEBHOOK}: tls: failed to verify certificate: x509: certificate has expired"
            ),
            False,
            "CertificateInvalid",
        ),
        (
            Forbidden(403, "Forbidden", 'machines is forbidden: User "sq" cannot create resource "machines"'),
            None,
            "NotProven",
        ),
        (ApiError(500, "InternalError", 'failed calling webhook "other": no'), None, "NotProven"),
        (ApiError(422, "Invalid", "spec.providerSpec: no"), None, "NotProven"),
        (
            Forbidden(403, "Forbidden", 'admission webhook "other" denied the request: exceeded quota'),
            None,
            "NotProven",
        ),
    ],
)
def test_only_our_own_refusal_proves_that_machines_are_checked(
    answer: ApiError | None, enforced: bool | None, reason: str
) -> None:
    proof = judge(answer, "machines.seedquota.io", "Machine")
    assert (proof.enforced, proof.reason) == (enforced, reason)
    assert "t0k3n" not in proof.message


def test_a_machine_that_is_really_made_is_no_canary() -> None:

    body = {"metadata": {"name": "m", "annotations": {ANNOTATION: "true"}}, "spec": {}}
    machine = msgspec.convert(body, Machine)
    assert is_canary(machine.metadata, dry_run=True)
    assert not is_canary(machine.metadata, dry_run=False)


def test_a_refusal_for_asking_too_often_proves_as_much() -> None:
    """A tenant who asks without a pause leaves a canary no room, and cannot make what is proven look unproven."""
    refusal = denial.too_often(500)
    causes = tuple(Cause(cause.reason, cause.message, cause.field) for cause in refusal.causes)

    def answered(webhook: str) -> ApiError:
        message = f'admission webhook "{webhook}" denied the request: {refusal.text}'
        return ApiError(refusal.code, refusal.reason, message, refusal.retry_seconds, causes)

    assert judge(answered("machines.seedquota.io"), "machines.seedquota.io", "Machine").enforced
    assert judge(answered("of-the-tenant"), "machines.seedquota.io", "Machine").enforced is None
