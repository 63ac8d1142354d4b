"""What a CustomResourceDefinition says of itself."""

from __future__ import annotations

import msgspec
import pytest

from common.kube.controller.discovery import Crd


@pytest.mark.parametrize(
    ("status", "established"),
    [
        ('{"conditions": [{"type": "Established", "status": "True"}]}', True),
        ('{"conditions": [{"type": "Established", "status": "False"}]}', False),
        ('{"conditions": null}', False),  # as the API server stores it at first
        ("{}", False),
    ],
)
def test_it_is_served_once_it_is_established(status: str, established: bool) -> None:
    raw = b'{"metadata": {"name": "machines.cluster.x-k8s.io"}, "status": %s}' % status.encode()
    assert msgspec.json.decode(raw, type=Crd).established is established
