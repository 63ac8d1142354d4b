"""`seedquota apply` right after the definitions were created: the API server is not ready for them yet."""

from __future__ import annotations

import time
from typing import cast

import pytest

from cli import apply
from cli.outcome import Failed
from common.kube.client.api_client import Cluster
from common.kube.client.errors import ApiError, Forbidden, NotFound

SETTINGS = {"apiVersion": "seedquota.io/v1alpha1", "kind": "QuotaSettings", "metadata": {"name": "default"}}
NOT_READY = "denied request: failed to configure policy: failed to find resource referenced by paramKind"


class Master:
    server = "https://master"

    def __init__(self, *answers: ApiError) -> None:
        self.answers = list(answers)
        self.asked = 0

    async def apply(self, *_: object) -> None:
        self.asked += 1
        if self.answers:
            raise self.answers.pop(0)


async def applied(master: Master, seconds: float = 60.0) -> str:
    return await apply._apply(cast(Cluster, master), SETTINGS, time.monotonic() + seconds)


async def test_it_waits_until_the_kind_and_the_policies_about_it_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(apply, "PAUSE", 0.0)
    master = Master(NotFound(404, "NotFound", ""), Forbidden(403, "Forbidden", NOT_READY))
    assert await applied(master) == "QuotaSettings default is applied"
    assert master.asked == 3


@pytest.mark.parametrize(("message", "seconds"), [(NOT_READY, -1.0), ("users may not do this", 60.0)])
async def test_what_waiting_does_not_help_fails(message: str, seconds: float) -> None:
    with pytest.raises(Failed, match=message):
        await applied(Master(Forbidden(403, "Forbidden", message)), seconds)
