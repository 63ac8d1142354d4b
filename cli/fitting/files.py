"""Reads the objects in a user's file."""

from __future__ import annotations

import yaml

from cli.outcome import Failed
from seed.previews import objects
from seed.previews.objects import InvalidManifest, Manifest

MOST = 64  # objects in a file


def read(text: str) -> list[Manifest]:
    """Of YAML or JSON, also of a List. Raises Failed."""
    try:
        found = objects.of_documents(yaml.safe_load_all(text))
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise Failed(f"the file is no YAML: {error}") from None
    except InvalidManifest as error:
        raise Failed(str(error)) from None
    if not found:
        raise Failed("there is no object in the file")
    if len(found) > MOST:
        raise Failed(f"there are {len(found)} objects in the file: ask for {MOST} at a time")
    return found
