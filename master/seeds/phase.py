"""How a connection to a seed stands: the reasons of the condition Connected."""

from __future__ import annotations

from enum import Enum

from common.api import cluster_identity

AGENT_SILENT_AFTER = 90.0
"""Seconds without a word of it from which a seed's agent may be dead; seed/controllers/seed_status.py gives three."""


class Phase(Enum):
    CONNECTING = "Connecting"
    CONNECTED = "Connected"
    UNREACHABLE = "Unreachable"
    UNAUTHORIZED = "Unauthorized"
    INVALID_KUBECONFIG = "InvalidKubeconfig"
    CLUSTER_CHANGED = cluster_identity.CHANGED
    DUPLICATE_CLUSTER = cluster_identity.DUPLICATE
    OTHER_MASTER = "OtherMaster"
