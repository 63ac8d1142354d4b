from __future__ import annotations

import msgspec
import pytest

from common.kube.client.meta import ObjectMeta
from seed.machines.deployments import Deployment
from seed.webhooks.review import Scale


@pytest.mark.parametrize("number", [2**63, -(2**63) - 1, 10**4000], ids=["too large", "too small", "4001 digits"])
@pytest.mark.parametrize("kind", [Deployment, Scale])
def test_a_number_that_no_api_server_has_is_not_read(kind: type[Deployment | Scale], number: int) -> None:
    with pytest.raises(msgspec.ValidationError, match=r"spec\.replicas"):
        msgspec.json.decode(f'{{"metadata": {{}}, "spec": {{"replicas": {number}}}}}', type=kind)


def test_every_number_that_an_api_server_has_is_read() -> None:
    assert msgspec.json.decode(f'{{"generation": {2**63 - 1}}}', type=ObjectMeta).generation == 2**63 - 1
