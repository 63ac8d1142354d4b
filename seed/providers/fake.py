"""Fake: the size in the spec as Kubernetes quantities, for tests and the demo; nothing is ever created.

`cpu`, `memory` and `storage`, and any field with a slash is a device by its qualified name (`nvidia.com/gpu`). Without
`storage` the disk is unknown, as with a template. machine-controller's own fake provider
(pkg/cloudprovider/provider/fake/provider.go) reads only `passValidation`, which costs nothing.
"""

from __future__ import annotations

from itertools import islice

from common.quota.names import MAX_DEVICES
from seed.providers.size import Footprint, footprint, template_disk
from seed.providers.spec import Spec

NAME = "fake"


def size(spec: Spec) -> Footprint:
    devices = islice((name for name in spec.names() if "/" in name), MAX_DEVICES + 1)  # one more tells of more
    return footprint(
        NAME,
        cpu=spec.quantity("cpu"),
        memory=spec.quantity("memory"),
        storage=spec.quantity("storage") if spec.has("storage") else template_disk("storage"),
        devices={name: spec.quantity(name) for name in devices},
    )
