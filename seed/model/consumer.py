"""Whose quotas an object counts against."""

from __future__ import annotations

import msgspec

from common.api.types import UserCluster


class Consumer(msgspec.Struct, frozen=True):
    """What the quota cache matches quotas with.

    `project`: the project that the object is of; the project's organization is read from the cache each time, since it
    may change. `cluster`: the key of the user cluster that the object is in, empty for what is not in one.
    `quota`: the name of the one quota that counts it, for what is in namespaces.
    """

    project: str
    cluster: str = ""
    quota: str = ""


def consumer_of(user_cluster: UserCluster) -> Consumer:
    """What is in a user cluster counts against the quotas of its project."""
    return Consumer(user_cluster.spec.project, user_cluster.metadata.key)
