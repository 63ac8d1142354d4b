"""Label selectors of which no two pick the same. Pure.

An API server calls a webhook once for each of its entries whose selector picks the namespace. Of two calls about one
creation one may be refused and the other admitted: nothing is created then, and what was reserved keeps others out. So
each namespace is picked by one entry, of those that ask about the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, TypeVar

import msgspec

from common.api.label_selector import LabelRequirement, LabelSelector

Region = tuple[LabelRequirement, ...]
"""What meets all of it. Of each label it says as little as possible, and something can meet it."""

EVERYTHING: Final[Region] = ()

MOST_REQUIREMENTS: Final = 1_000  # in all of them together: an API server evaluates them at each write

RuleT = TypeVar("RuleT")

_NOT: Final = {"In": "NotIn", "NotIn": "In", "Exists": "DoesNotExist", "DoesNotExist": "Exists"}


def region(requirements: Iterable[LabelRequirement]) -> Region | None:
    """None if nothing can meet all of it."""
    of_key: dict[str, list[LabelRequirement]] = {}
    for each in requirements:
        of_key.setdefault(each.key, []).append(each)
    found: list[LabelRequirement] = []
    for key, several in of_key.items():
        shortest = several if len(several) == 1 else _shortest(key, several)
        if shortest is None:
            return None
        found += shortest
    return tuple(found)


def requirements_of(selector: LabelSelector) -> list[LabelRequirement]:
    labels = [LabelRequirement(key, "In", (value,)) for key, value in sorted(selector.match_labels.items())]
    return [*labels, *selector.match_expressions]


def apart(
    entries: Sequence[tuple[Region, frozenset[RuleT]]], most: int
) -> list[tuple[Region, frozenset[RuleT]]] | None:
    """The same rules for the same labels, and no rule twice for any. None if that takes more than `most` regions."""
    found: list[tuple[Region, frozenset[RuleT]]] = []
    requirements = 0
    for place, rules in sorted(entries, key=lambda entry: (len(entry[0]), msgspec.json.encode(entry[0]))):
        rest = [(place, rules)]
        for known, there in found:
            rest = [piece for each in rest for piece in _beside(*each, known, there)]
            if len(found) + len(rest) > most:
                return None
        found += rest
        requirements += sum(len(left) for left, _ in rest)
        if requirements > MOST_REQUIREMENTS:
            return None
    return found


def _beside(
    place: Region, rules: frozenset[RuleT], known: Region, there: frozenset[RuleT]
) -> list[tuple[Region, frozenset[RuleT]]]:
    """What is left of an entry beside one that is there already."""
    if not rules & there or _differ(place, known):
        return [(place, rules)]
    new = [each for each in known if each not in place]
    if (both := region((*place, *new))) is None:
        return [(place, rules)]
    pieces: list[tuple[Region, frozenset[RuleT]]] = []
    met = place
    for each in new:
        if (outside := region((*met, _negated(each)))) is not None:
            pieces.append((outside, rules))
        met = (*met, each)
    if more := rules - there:
        pieces.append((both, more))
    return pieces


def _differ(one: Region, other: Region) -> bool:
    """Most are of different owners, or one is there without the other: that is seen at once."""
    for each in one:
        for beside in other:
            if each.key == beside.key and each.operator == "In":
                common = set(each.values).intersection(beside.values)
                if beside.operator == "In" and not common:
                    return True
                if beside.operator == "NotIn" and len(common) == len(each.values):
                    return True
    return False


def _negated(requirement: LabelRequirement) -> LabelRequirement:
    """NotIn is met, too, where there is no such label."""
    return LabelRequirement(requirement.key, _NOT[requirement.operator], requirement.values)


def _shortest(key: str, several: Sequence[LabelRequirement]) -> list[LabelRequirement] | None:
    allowed: set[str] | None = None
    refused: set[str] = set()
    operators = {each.operator for each in several}
    for each in several:
        if each.operator == "In":
            allowed = set(each.values) if allowed is None else allowed & set(each.values)
        elif each.operator == "NotIn":
            refused |= set(each.values)
    if "DoesNotExist" in operators:
        return None if operators & {"In", "Exists"} else [LabelRequirement(key, "DoesNotExist")]
    if allowed is not None:
        left = tuple(sorted(allowed - refused))
        return [LabelRequirement(key, "In", left)] if left else None
    found = [LabelRequirement(key, "Exists")] if "Exists" in operators else []
    return [*found, LabelRequirement(key, "NotIn", tuple(sorted(refused)))] if refused else found
