"""A dry run that asks how many of an object fit: it says so by an annotation, as `seedquota fits` does. Pure.

It is decided as one object that needs as much as all of them, and answered by seed/webhooks/fits.py. Nothing is stored
and nothing is reserved. Without a dry run the annotation means nothing.
"""

from __future__ import annotations

import re

from common.api.labels import FITS_ANNOTATION
from common.kube.client.meta import ObjectMeta
from common.quota.resources import ResourceList

MOST = 999_999

_COUNT = re.compile("[1-9][0-9]{0,5}")


def asked(metadata: ObjectMeta, *, dry_run: bool) -> int:
    """How many; 0 for a request that does not ask this."""
    text = metadata.annotations.get(FITS_ANNOTATION, "") if dry_run else ""
    return int(text) if _COUNT.fullmatch(text) else 0


def together(need: ResourceList, metadata: ObjectMeta, *, dry_run: bool) -> ResourceList:
    """What all that are asked for need."""
    count = asked(metadata, dry_run=dry_run)
    return {name: amount * count for name, amount in need.items()} if count > 1 else need
