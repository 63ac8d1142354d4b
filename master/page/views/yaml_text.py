"""An object as `kubectl get -o yaml` shows it. Pure."""

from __future__ import annotations

import msgspec
import yaml

from common.kube.client.meta import Object
from common.kube.client.resource import Resource


def yaml_text(kind: Resource[Object], found: Object) -> str:
    """What this program reads of it: fields that it does not know are not there."""
    content = msgspec.to_builtins(found)
    whole = {"apiVersion": f"{kind.group}/{kind.version}", "kind": kind.kind, **content}
    return yaml.safe_dump(whole, sort_keys=False, allow_unicode=True)
