"""A Warning Event on a user cluster."""

from __future__ import annotations

import logging

from common.api.types import UserCluster
from common.kube.client.api_client import Cluster
from common.kube.client.errors import ApiError
from common.kube.controller.events import EVENTS, event, event_name, microtime
from seed.notifications.regarding import regarding

log = logging.getLogger(__name__)

CONTROLLER = "seedquota.io/seed"


async def warn(seed: Cluster, cluster: UserCluster, *, reason: str, note: str, action: str) -> bool:
    """Whether it was written. `seed` is where it is written."""
    of = regarding(cluster)
    body = event(
        event_name(of),
        of,
        reason=reason,
        note=note,
        warning=True,
        action=action,
        controller=CONTROLLER,
        instance=seed.name,
        time=microtime(),
    )
    try:
        await seed.create(EVENTS, body)
    except (ApiError, TimeoutError) as error:
        log.info("Event not written", extra={"cluster": cluster.metadata.key, "error": str(error)})
        return False
    return True
