"""How accounts name the sources that they count. Ledgers and reports have the text; the parts are read here alone."""

from __future__ import annotations

MACHINES = "machines"
CLUSTERS = "clusters"
ALLOCATIONS = "allocations"
NAMESPACES = "namespaces"

OWN_API_SERVER = "seed"  # the key of the seed's own API server, as that of a UserCluster is `namespace/name`


class SourceKey(str):
    """`SourceKey(text)` reads what a ledger has. A source of Machines is named as its user cluster, `namespace/name`;
    the others begin with their kind and a colon, which no name of a namespace has.

    It is equal to its text, which keys the maps of an account. What is written has `text`: msgspec encodes no other.
    """

    __slots__ = ("cluster", "kind", "project", "quota")
    kind: str
    project: str  # whose clusters or Allocations it is; empty for the others
    quota: str  # the uid of the quota whose namespaces it is; empty for the others
    cluster: str  # the user cluster's key, or OWN_API_SERVER, that Machines or namespaces are in

    def __new__(cls, text: str) -> SourceKey:
        text = str(text)  # also where it is a key already
        made = super().__new__(cls, text)
        kind, colon, rest = text.partition(":")
        made.project = made.quota = made.cluster = ""
        if not colon or "/" in kind:
            made.kind, made.cluster = MACHINES, text
        elif kind == NAMESPACES:
            made.kind = kind
            made.quota, _, made.cluster = rest.partition(":")
        else:
            made.kind, made.project = kind, rest
        return made

    @classmethod
    def of_project(cls, kind: str, project: str) -> SourceKey:
        """What a project has of the kind on the seed itself."""
        return cls(f"{kind}:{project}")

    @classmethod
    def of_namespaces(cls, quota_uid: str, cluster: str) -> SourceKey:
        """What a quota's namespaces of one cluster have. What is counted there differs from quota to quota."""
        return cls(f"{NAMESPACES}:{quota_uid}:{cluster}")

    @property
    def text(self) -> str:
        return str(self)

    @property
    def shown(self) -> str:
        """For people who read of it beside the quota's name."""
        return self.cluster or self.text
