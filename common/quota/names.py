"""Names of resources: which are valid, how many one Machine may take, and which of them an account keeps. Pure.

Names come from tenants. Each object that an API server stores and each message is bounded: so are its names.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Mapping
from functools import lru_cache

from common.quota import guarantees, surge
from common.quota.resources import ResourceList

BASE = frozenset({"cpu", "memory", "storage", "machines", "clusters"})
"""Accounts always keep these: what is used of one that a quota comes to limit is known at that moment."""

PLAIN = ("cpu", "memory", "storage", "machines", "clusters", "servers", "gpus")
"""The names without a slash that a quota of a project or organization can limit: its CRD refuses others."""

OF_NO_CLUSTER = frozenset({"clusters"})
"""What a project has on a seed itself, in none of its clusters. So are the types that Allocations have."""

DEVICES = frozenset({"nvidia.com/gpu", "amd.com/gpu", "google.com/tpu", "habana.ai/gaudi", "aws.amazon.com/neuron"})
"""What clouds' types of machines have. Where a Machine names its devices itself, as in KubeVirt, there are others."""

INSTANCES = "instances."
"""Begins the names that count Machines by their type. Each Machine has at most one."""

_SHOWN_FIRST = ("cpu", "memory", "storage", "machines", "clusters")

MAX_NAME = 253 + 1 + 63
MAX_DEVICES = 16  # names of one Machine beside those
FURTHER = 8  # names that an account keeps of each source although its quota does not limit them ...
FURTHER_CHARACTERS = 512  # ... in so many characters
MAX_COUNTERS = 160  # names in counters, which only grow: twice as many as a quota and its surge can have at a time
MAX_HELD = 256  # names in what the ledger of a master says of one seed, as its schema has it

_LONGEST_TYPE = 63 - len(INSTANCES)
_NOT_OF_TYPES = re.compile(r"[^a-z0-9._-]+")

# A part of a domain may be longer than DNS has it (k8s.io/apimachinery/pkg/util/validation, IsDNS1123Subdomain).
_PREFIX = re.compile(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*")
_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")


def is_valid(name: str) -> bool:
    """A qualified name of Kubernetes, as `nvidia.com/gpu`, that begins no counter's name (surge.py, guarantees.py)."""
    return len(name) <= MAX_NAME and _is_valid(name)


@lru_cache(maxsize=4096)
def _is_valid(name: str) -> bool:
    return is_qualified(name) and not name.startswith((surge.PREFIX, guarantees.PREFIX))


def is_qualified(name: str) -> bool:
    """A qualified name of Kubernetes, such as the key of a label."""
    prefix, slash, rest = name.rpartition("/")
    if slash and not (len(prefix) <= 253 and _PREFIX.fullmatch(prefix)):
        return False
    return is_label_value(rest) and rest != ""


def is_label_value(value: str) -> bool:
    return value == "" or _NAME.fullmatch(value) is not None


def of_instances(machine_type: str) -> str:
    """The name that counts Machines of this type: in lower case, each run of other characters than letters, digits,
    `-`, `_` and `.` is `-`, and what is longer than a name may be is cut off. Types that have one name then count
    together. Empty where nothing is left of it."""
    text = _NOT_OF_TYPES.sub("-", machine_type.lower()).strip("._-")[:_LONGEST_TYPE].rstrip("._-")
    return f"{INSTANCES}{text}" if text else ""


def of_machines(name: str) -> bool:
    """Whether it may be a name of what Machines have, by its form."""
    return name in BASE or "/" in name or name.startswith(INSTANCES)


def unknown(names: Iterable[str]) -> str:
    """Why no quota of a project or organization can limit one of them, in the words of its CRD. Empty: each can be."""
    wrong = next((name for name in names if name not in PLAIN and not of_machines(name)), None)
    if wrong is None:
        return ""
    return (
        f"{wrong} is an unknown resource; known are {', '.join(PLAIN)}, names with a slash such as nvidia.com/gpu, and "
        f"{INSTANCES}TYPE with a machine type in lower case"
    )


def kept(amounts: ResourceList, limits: Container[str], further: int = 0) -> ResourceList:
    """What an account keeps of them: what its quota limits or has limited, the base names, and up to `further` others,
    which are no types of Machines.

    Names of a surge stay, also of one that the quota does not have any more: a claim on that is refused by its name.
    """
    if all(name in BASE or name in limits for name in amounts):
        return amounts
    found = {
        name: amount
        for name, amount in amounts.items()
        if name in BASE or name in limits or name.startswith(surge.PREFIX)
    }
    return {**found, **{name: amounts[name] for name in _few(amounts, found, further)}}


def _few(names: Iterable[str], without: Container[str], most: int) -> list[str]:
    """The first of them, so that they stay the same while nothing of them comes or goes."""
    few: list[str] = []
    characters = FURTHER_CHARACTERS
    for name in names:
        if len(few) == most or characters < 0:
            break
        if name not in without and not name.startswith(INSTANCES) and (characters := characters - len(name)) >= 0:
            few.append(name)
    return few


def in_order(names: Mapping[str, object]) -> list[str]:
    """As people are shown them."""
    return [name for name in _SHOWN_FIRST if name in names] + sorted(name for name in names if name not in _SHOWN_FIRST)
