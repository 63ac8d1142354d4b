"""Very large lists and watches that are valid, and agree with each other: what an API server may hold. No I/O.

Bytes are formatted from a few templates, which costs far less than to read them.
"""

from __future__ import annotations

import itertools
import json
import random
import re
from collections.abc import Callable, Sequence
from urllib.parse import parse_qs, urlsplit

MOST_OF_BURST = 24 * 2**20  # bytes of events in one piece
_COLLECTION = re.compile(r"/(?:api|apis/[^/]+)/[^/]+/(?:namespaces/[^/]+/)?([a-z]+)$")

_versions = itertools.count(10**9)


class Kind:
    """Objects 0 to `count` - 1, over so many namespaces (0: it has none). An object is a variant of one template:
    lists have the first. A variant is what stands in its metadata beside its name, and what stands beside those."""

    def __init__(self, count: int, places: int, *variants: tuple[bytes, bytes], name: bytes = b"o") -> None:
        self.count, self.places, self.variants, self.name = count, places, variants, name

    def one(self, number: int, variant: int = 0) -> bytes:
        metadata, rest = self.variants[variant]
        place = b'"namespace":"n%d",' % (number % self.places) if self.places else b""
        return b'{"metadata":{"name":"%b%d",%b"uid":"u-%b-%d","resourceVersion":"%d"%b}%b}' % (
            *(self.name, number, place, self.name, number),
            *(next(_versions), metadata, rest),
        )

    def page(self, query: dict[str, str], real: bytes, chance: random.Random) -> bytes:
        """`real`: the page that the API server would send. What is there stands in the first one, sometimes larger."""
        begin, limit = int(query.get("continue", 0)), int(query.get("limit", self.count))
        items: list[bytes] = []
        if not begin:
            for item in json.loads(real).get("items") or ():
                if "status" in item and chance.random() < 0.5:
                    item["status"] |= LARGE_STATUS
                items.append(json.dumps(item).encode())
        items = items[:limit]
        end = min(begin + limit - len(items), self.count)
        items += map(self.one, range(begin, end))
        more = b"%d" % end if end < self.count else b""
        head = b'{"metadata":{"resourceVersion":"%d","continue":"%b"},"items":[' % (next(_versions), more)
        return b"%b%b]}" % (head, b",".join(items))

    def burst(self, chance: random.Random) -> bytes:
        """Events in one piece, after which all are there again."""
        size = len(self.one(0)) + 40
        span = min(chance.choice([1, 2_000, 20_000, 50_000]), MOST_OF_BURST // size, self.count)
        begin = chance.randrange(self.count - span + 1)
        change = chance.randrange(len(self.variants))
        objects = range(begin, begin + span)
        if chance.random() < 0.3:  # one of them, again and again
            return b"".join(_event(b"MODIFIED", self.one(0, number % len(self.variants))) for number in objects)
        if chance.random() < 0.5:
            return b"".join(_event(b"MODIFIED", self.one(number, change)) for number in objects)
        gone = b"".join(_event(b"DELETED", self.one(number)) for number in objects)
        return gone + b"".join(_event(b"ADDED", self.one(number)) for number in objects)


def _event(of: bytes, found: bytes) -> bytes:
    return b'{"type":"%b","object":%b}\n' % (of, found)


class World:
    def __init__(self, kinds: dict[str, Kind]) -> None:
        self._kinds = kinds

    def asked(self, method: str, path: str) -> tuple[Kind, dict[str, str]] | None:
        """Which kind is listed or watched by this, and the query; None: one object, or no kind of this world."""
        split = urlsplit(path)
        found = _COLLECTION.fullmatch(split.path)
        query = {name: values[0] for name, values in parse_qs(split.query).items()}
        if method != "GET" or found is None or found[1] not in self._kinds or "fieldSelector" in query:
            return None
        return self._kinds[found[1]], query

    def __str__(self) -> str:
        return ", ".join(
            f"{kind.count} {plural} of {len(kind.one(0))} bytes over {kind.places}"
            for plural, kind in self._kinds.items()
        )


def _texts(count: int, size: int = 40) -> bytes:
    return b",".join(b'"t%d":"%b"' % (number, b"v" * size) for number in range(count))


def _amounts(count: int) -> dict[str, str]:
    return {f"r{number}.example.com/things": "1" for number in range(count)}


LARGE_STATUS = {
    "localUsage": _amounts(5_000),
    "globalUsage": _amounts(5_000),
    "account": {"used": _amounts(5_000)},
    "conditions": [
        {"type": f"C{number}", "status": "True", "reason": "R", "message": "m" * 500} for number in range(500)
    ],
}


def tenant(chance: random.Random) -> World:
    """Namespaces of which all or one have nearly all pods, and leave and come by their labels."""
    pick: Callable[[Sequence[int]], int] = chance.choice
    namespaces = pick([1, 50, 5_000, 30_000, 40_000])
    owned = [b',"labels":{"owner":"%b"%b}' % (owner, more) for owner in (b"ann", b"bob") for more in [_more(chance)]]
    containers, places = pick([1, 1, 3, 30]), pick([1, namespaces])
    pods = [
        (
            b',"labels":{%b},"ownerReferences":[%b]' % (_texts(pick([0, 20])), _owners(pick([0, 1, 20]))),
            b',"spec":{"containers":[%b]},"status":{"phase":"Running"}' % b",".join([_container(cpu)] * containers),
        )
        for cpu in (1, 2)
    ]
    machine = (
        b',"spec":{"providerSpec":{"value":{"cloudProvider":"fake","cloudProviderSpec":'
        b'{"cpu":"%b","memory":"1Gi","storage":"1Gi","x":{%b}}}}}'
    )
    sized = _texts(pick([0, 0, 50]))
    return World(
        {
            "namespaces": Kind(namespaces, 0, *((labels, b"") for labels in owned), name=b"n"),
            "pods": Kind(pick([50_000, 100_000, 150_000, 200_000]) // min(containers, 10), places, *pods),
            "services": Kind(
                pick([1_000, 50_000, 150_000]), places, (b"", b',"spec":{"type":"NodePort","ports":[{}]}')
            ),
            "configmaps": Kind(pick([50_000, 250_000, 600_000]), places, (b"", b""), (b',"labels":{"a":"b"}', b"")),
            "machines": Kind(
                pick([5_000, 20_000, 60_000]),
                pick([1, 100]),
                (b"", machine % (b"2", sized)),
                (b"", machine % (b"3", sized)),
            ),
        }
    )


def _more(chance: random.Random) -> bytes:
    count = chance.choice([0, 0, 30])
    return b"," + _texts(count) if count else b""


def _owners(count: int) -> bytes:
    owner = b'{"apiVersion":"apps/v1","kind":"ReplicaSet","name":"r","uid":"u%d","controller":false}'
    return b",".join(owner % number for number in range(count))


def _container(cpu: int) -> bytes:
    amounts = b'{"cpu":"%d","memory":"1Gi"}' % cpu
    return b'{"name":"c","image":"i","resources":{"requests":%b,"limits":%b}}' % (amounts, amounts)


def seed(chance: random.Random) -> World:
    """Copies of quotas that the master has not sent, with long reports, and of all else that it sends."""
    pick: Callable[[Sequence[int]], int] = chance.choice
    labels = b',"labels":{"seedquota.io/uid":"u"%b}' % _more(chance)
    names = pick([0, 3, 300])
    report = json.dumps({"localUsage": _amounts(names), "account": {"used": _amounts(names)}}).encode()
    quotas = [
        b',"spec":{"subject":{"kind":"project","name":"p"},"quota":{"cpu":"%d"}},"status":%b' % (cpu, report)
        for cpu in (1, 2)
    ]
    spec = b',"spec":{"displayName":"%b"}' % (b"d" * pick([1, 2_000]))
    return World(
        {
            "resourcequotas": Kind(
                pick([2_000, 20_000, 100_000]) // max(names // 20, 1), 0, *((labels, of) for of in quotas)
            ),
            "projects": Kind(pick([1_000, 20_000, 100_000]), 0, (labels, spec), (labels, b',"spec":{}')),
            "organizations": Kind(pick([1_000, 20_000, 100_000]), 0, (labels, spec)),
            "quotasettings": Kind(pick([1, 2_000, 20_000]), 0, (labels, b"")),
            "userclusters": Kind(
                pick([1_000, 20_000, 100_000]), pick([1, 500]), (labels, b',"spec":{"project":"alpha"}')
            ),
        }
    )
