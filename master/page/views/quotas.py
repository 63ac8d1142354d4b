"""The list of quotas: a row for each, searched, filtered, sorted and cut into pages. Pure, but for the rows kept."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NamedTuple
from urllib.parse import urlencode

from common.kube.client.meta import Object
from common.kube.controller.store import Change
from common.quota.quantity import QuantityError
from common.runtime.pieces import in_pieces
from master.cache.informers import subject_of
from master.cache.objects import MasterQuota
from master.page.views import bars, conditions
from master.page.views.bars import Bar, Level, Standing
from master.quotas.override_conditions import raised_until

PER_PAGE = 50
LONGEST_SEARCH = 253  # characters: of the longest name

STATES = ("near", "full", "over", "stale", "unenforced", "unknown")
KINDS = ("project", "organization", "namespaces")
ORDERS = ("peak", "name")

_ORDER: Mapping[Level, int] = {"over": 4, "full": 3, "near": 2, "fine": 1, "unknown": 0}


@dataclass(frozen=True)
class Row:
    """`nearest`: the resource nearest to its limit; None: nothing is counted. `states`: those of STATES that it is in.
    `enforced`: True, False or Unknown. `raised_until`: when the first of its raises ends; empty: no limit is raised."""

    name: str
    kind: str
    subject: str
    quota: MasterQuota
    nearest: Standing | None
    level: Level
    states: frozenset[str]
    stale: tuple[tuple[str, str], ...]
    enforced: str
    warns: bool
    raised_until: str

    @cached_property
    def _drawn(self) -> tuple[tuple[Bar, ...], str]:
        """The bars, and why there are none. Of thousands of rows, a page shows a few."""
        try:
            return tuple(bars.of_quota(self.quota)), ""
        except (QuantityError, ValueError) as wrong:
            return (), str(wrong)

    @property
    def bars(self) -> tuple[Bar, ...]:
        return self._drawn[0]

    @property
    def error(self) -> str:
        return self._drawn[1]

    @property
    def peak(self) -> Bar | None:
        return next((bar for bar in self.bars if self.nearest is not None and bar.name == self.nearest.name), None)

    @cached_property
    def rank(self) -> tuple[int, int, str]:
        percent = _percent(self.nearest) if self.nearest is not None else -1
        return -_ORDER[self.level] if self.level == "over" else 0, -percent, self.name


class Rows:
    """One row for each quota, made again only when the quota has changed: there may be ten thousand. `changed` is for
    `Caches.listen`: who looks first does not wait for all of them."""

    def __init__(self) -> None:
        self._rows: dict[str, tuple[MasterQuota, Row]] = {}

    def changed(self, _plural: str, change: Change[Object]) -> None:
        if isinstance(change.new, MasterQuota):
            self._of(change.new)
        elif isinstance(change.old, MasterQuota):
            self._rows.pop(change.old.metadata.name, None)

    async def of(self, quotas: Sequence[MasterQuota]) -> list[Row]:
        """Others run in between."""
        rows = [self._of(quota) async for quota in in_pieces(quotas)]
        if len(self._rows) > len(quotas):
            names = {row.name for row in rows}
            self._rows = {name: kept for name, kept in self._rows.items() if name in names}
        return rows

    def _of(self, quota: MasterQuota) -> Row:
        kept = self._rows.get(quota.metadata.name)
        if kept is None or kept[0] is not quota:
            kept = self._rows[quota.metadata.name] = quota, row(quota)
        return kept[1]


@dataclass(frozen=True)
class Filter:
    """What the address of the page asks for."""

    search: str = ""
    kind: str = ""
    state: str = ""
    order: Literal["peak", "name"] = "peak"
    page: int = 1

    def query(self, **changed: str | int) -> str:
        """Of the address, with some of it changed; what is usual is left out. A change begins with the first page."""
        asked: dict[str, str | int] = {
            "q": self.search, "kind": self.kind, "state": self.state, "sort": self.order, "page": 1
        }  # fmt: skip
        asked |= changed
        usual = {"q": "", "kind": "", "state": "", "sort": "peak", "page": 1}
        return urlencode({name: value for name, value in asked.items() if value != usual[name]})


class Listed(NamedTuple):
    """One page of those that match."""

    filter: Filter
    rows: Sequence[Row]
    matching: int
    total: int
    pages: int


def read_filter(query: Mapping[str, str]) -> Filter:
    """What is not understood is as if it were not there: the address is typed by people."""
    page = query.get("page", "")
    kind, state = query.get("kind", ""), query.get("state", "")
    return Filter(
        search=query.get("q", "").strip()[:LONGEST_SEARCH],
        kind=kind if kind in KINDS else "",
        state=state if state in STATES else "",
        order="name" if query.get("sort") == "name" else "peak",
        page=int(page) if page.isascii() and page.isdecimal() and 0 < len(page) < 7 else 1,
    )


def listed(rows: Sequence[Row], wanted: Filter) -> Listed:
    text = wanted.search.lower()
    found = [
        row
        for row in rows
        if wanted.kind in ("", row.kind)
        and (not wanted.state or wanted.state in row.states)
        and (not text or text in row.name.lower() or text in row.subject.lower())
    ]
    found.sort(key=(lambda row: (0, 0, row.name)) if wanted.order == "name" else (lambda row: row.rank))
    pages = max(-(-len(found) // PER_PAGE), 1)
    page = min(max(wanted.page, 1), pages)
    begin = (page - 1) * PER_PAGE
    kept = Filter(wanted.search, wanted.kind, wanted.state, wanted.order, page)
    return Listed(kept, found[begin : begin + PER_PAGE], len(found), len(rows), pages)


def row(quota: MasterQuota) -> Row:
    kind, subject = subject_of(quota)
    found: Sequence[Standing] = ()
    readable = True
    try:
        found = bars.standings(quota)
    except (QuantityError, ValueError):
        readable = False
    counted = [each for each in found if each.level != "unknown"]
    nearest = max(counted, key=lambda each: (each.level == "over", _percent(each)), default=None)
    level: Level = nearest.level if nearest is not None else "unknown" if found or not readable else "fine"
    stale = tuple((each.name, each.last_report_time) for each in quota.status.seeds if each.state == "Stale")
    return Row(
        name=quota.metadata.name,
        kind=kind,
        subject=subject,
        quota=quota,
        nearest=nearest,
        level=level,
        states=frozenset(_states(quota, found, level)),
        stale=stale,
        enforced=conditions.status_of(quota.status.conditions, "Enforced"),
        warns=quota.spec.get("enforcement") == "warn",
        raised_until=raised_until(quota.status),
    )


def _percent(standing: Standing) -> int:
    return standing.percent if standing.percent is not None else -1


def _states(quota: MasterQuota, found: Sequence[Standing], level: Level) -> Iterable[str]:
    """A quota that is full is near its limit, too."""
    levels = {each.level for each in found}
    if level == "unknown" or "unknown" in levels:
        yield "unknown"
    yield from levels & {"over", "full", "near"}
    if levels & {"full", "over"}:
        yield "near"
    said = quota.status.conditions
    if said and conditions.status_of(said, "UsageCurrent") != "True":
        yield "stale"
    if conditions.status_of(said, "Enforced") != "True":
        yield "unenforced"
