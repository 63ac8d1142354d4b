"""Which seeds `subject.seeds` of a quota picks. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from common.api import label_selector
from common.api.label_selector import LabelSelector


class SeedSelector(LabelSelector, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """Picks Seeds that have one of `names` and meet all the rest. Without `names`, any name will do."""

    names: tuple[str, ...] = ()


def picks(selector: SeedSelector, name: str, labels: Mapping[str, str]) -> bool:
    return (not selector.names or name in selector.names) and label_selector.matches(selector, labels)


def text(selector: SeedSelector) -> str:
    """For people: `eu-1,eu-2`, or what `kubectl -l` takes, or both."""
    return " ".join(filter(None, (",".join(selector.names), label_selector.text(selector))))
