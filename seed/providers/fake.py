"""Fake: the size in the spec as with `external`, for tests and the demo; nothing is ever created.

machine-controller's own fake provider (pkg/cloudprovider/provider/fake/provider.go) reads only `passValidation`, which
costs nothing.
"""

from __future__ import annotations

from seed.providers.external import written
from seed.providers.size import Footprint
from seed.providers.spec import Spec

NAME = "fake"


def size(spec: Spec) -> Footprint:
    return written(spec, NAME)
