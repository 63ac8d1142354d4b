"""What the master's caches promise to a term that begins."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from common.kube.client.api_client import Cluster
from common.kube.client.errors import Unavailable
from master.cache.informers import Caches


async def test_a_term_does_not_begin_from_caches_that_cannot_be_listed() -> None:
    cluster: Any = SimpleNamespace(name="master")
    caches = Caches(cast(Cluster, cluster), "seedquota")
    with pytest.raises(Unavailable, match="seeds not listed within"):
        await caches.refresh(0.0)
