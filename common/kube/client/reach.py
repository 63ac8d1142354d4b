"""How the API servers of user clusters are reached: others choose their hosts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from common.kube.client.networks import Networks

RequestHook = Callable[[str, str, int, float], None]


@dataclass(frozen=True)
class Reach:
    """`on_request`: see Connection."""

    networks: Networks
    on_request: RequestHook | None = None


DEFAULT = Reach(Networks())
ANYWHERE = Reach(Networks(("0.0.0.0/0", "::/0")))  # where whoever runs the program chooses the hosts
