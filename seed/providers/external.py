"""External: somebody else makes the machine, as large as the Machine says in Kubernetes quantities.

`cpu`, `memory` and `storage`, and any field with a slash is a device by its qualified name (`nvidia.com/gpu`). Without
`storage` the disk is unknown, as with a template. machine-controller
(pkg/cloudprovider/provider/external/provider.go) reads no field of it.
"""

from __future__ import annotations

from itertools import islice

from common.quota.names import MAX_DEVICES
from seed.providers.size import Footprint, footprint, template_disk
from seed.providers.spec import Spec

NAME = "external"


def size(spec: Spec) -> Footprint:
    return written(spec, NAME)


def written(spec: Spec, provider: str) -> Footprint:
    devices = islice((name for name in spec.names() if "/" in name), MAX_DEVICES + 1)  # one more shows that it is more
    return footprint(
        provider,
        cpu=spec.quantity("cpu"),
        memory=spec.quantity("memory"),
        storage=spec.quantity("storage") if spec.has("storage") else template_disk("storage"),
        devices={name: spec.quantity(name) for name in devices},
    )
