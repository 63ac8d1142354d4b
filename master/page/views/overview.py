"""The first page: is the promise held, who is near a limit, what is out of date. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import NamedTuple

from common.api.conditions import count
from common.api.types import Seed
from master.cache.objects import MasterQuota
from master.page.views import conditions, quotas, seeds
from master.page.views.conditions import Tone
from master.page.views.quotas import Row
from master.page.views.seeds import SeedRow
from master.page.views.times import Moment, moment
from master.quotas import staleness

TOP = 12  # quotas that are shown, nearest to their limits first
NAMED = 5


class Tile(NamedTuple):
    """One answer at a glance. `link`: a path of the page with more."""

    title: str
    tone: Tone
    answer: str
    detail: str
    link: str


class StaleSeed(NamedTuple):
    name: str
    since: Moment
    quotas: int


class Overview(NamedTuple):
    """`silent`: for how long no master has reached a seed; all figures are of then. Empty: not for long."""

    tiles: Sequence[Tile]
    silent: str
    top: Sequence[Row]
    total: int
    stale: Sequence[StaleSeed]
    seeds: Sequence[SeedRow]


def overview(found: Sequence[MasterQuota], rows: Sequence[Row], known_seeds: Sequence[Seed], now: datetime) -> Overview:
    """`rows` of the quotas."""
    silent = staleness.silence_of_master(known_seeds, now)
    seed_rows = seeds.rows(known_seeds, now)
    return Overview(
        tiles=[_unless_silent(each, silent) for each in (*_of_quotas(found, rows), *of_seeds(seed_rows))],
        silent=silent,
        top=quotas.listed(rows, quotas.Filter()).rows[:TOP],
        total=len(rows),
        stale=_stale(rows, now),
        seeds=[each for each in seed_rows if each.tone != "good"],
    )


def _of_quotas(found: Iterable[MasterQuota], rows: Sequence[Row]) -> Sequence[Tile]:
    return exceeded(found, rows), enforced(rows), near(rows)


def exceeded(found: Iterable[MasterQuota], rows: Sequence[Row]) -> Tile:
    """A limit that was lowered below the use is no broken promise; use that nobody admitted may be one."""
    over = [row for row in rows if row.level == "over"]
    unknown = sum("unknown" in row.states for row in rows)
    title, link = "Over a limit", "quotas?state=over"
    if not rows:
        return Tile(title, "unknown", "No quotas yet", "Nothing is limited until there is one.", "quotas")
    if not over:
        if unknown:
            detail = f"Of {count(unknown, 'quota')} some use is not counted yet, or never."
            return Tile(title, "unknown", "0 known", detail, "quotas?state=unknown")
        return Tile(title, "good", "0", f"No use is over its limit, in {count(len(rows), 'quota')}.", link)
    names = {row.name for row in over}
    reasons = {
        (said.reason if (said := conditions.find(quota.status.conditions, "Exceeded")) is not None else "")
        for quota in found
        if quota.metadata.name in names
    }
    if reasons <= {"LimitLowered", "AdmittedWithWarning"}:
        detail = "A limit was lowered, or the use was allowed with a warning. Nothing more is admitted."
        return Tile(title, "warn", str(len(over)), detail, link)
    return Tile(title, "bad", str(len(over)), "Use that was there before, or that was not admitted here.", link)


def enforced(rows: Sequence[Row]) -> Tile:
    title = "Quotas enforced"
    if not rows:
        return Tile(title, "unknown", "None", "There is nothing to enforce.", "quotas")
    missing = [row for row in rows if "unenforced" in row.states]
    if not missing:
        warning = sum(row.warns for row in rows)
        detail = f"{count(warning, 'quota')} only warn." if warning else "On every seed, by proven webhooks."
        return Tile(title, "good", f"{len(rows)} of {len(rows)}", detail, "quotas")
    answer, link = f"{len(rows) - len(missing)} of {len(rows)}", "quotas?state=unenforced"
    if broken := [row.name for row in missing if row.enforced == "False"]:
        return Tile(title, "bad", answer, f"Not: {_some(broken)}", link)
    return Tile(title, "unknown", answer, f"Not known of {_some([row.name for row in missing])}", link)


def of_seeds(found: Sequence[SeedRow]) -> list[Tile]:
    alive = [row for row in found if row.state != "Lost"]
    if not alive:
        none = "Add one: kubectl seedquota seed add NAME --kubeconfig FILE"
        return [
            Tile("Seeds connected", "unknown", "None", none, "seeds"),
            Tile("Webhooks proven", "unknown", "Not known", "Without a seed nothing is proven.", "seeds"),
        ]
    return [
        _of_all("Seeds connected", alive, [row.connected for row in alive], "The master reaches all of them."),
        _of_all("Webhooks proven", alive, [row.webhook for row in alive], "A dry run is refused on each seed."),
    ]


def near(rows: Sequence[Row]) -> Tile:
    found = [row for row in rows if "near" in row.states]
    title, link = "Near a limit", "quotas?state=near"
    if found:
        ordered = sorted(found, key=lambda row: row.rank)
        return Tile(title, "warn", str(len(found)), _some([row.name for row in ordered]), link)
    if not rows or any("unknown" in row.states for row in rows):
        return Tile(title, "unknown", "0 known", "Not all use is known.", link)
    return Tile(title, "good", "0", "Each quota has room.", link)


def _of_all(title: str, rows: Sequence[SeedRow], tones: Sequence[Tone], all_good: str) -> Tile:
    good = sum(tone in ("good", "warn") for tone in tones)
    answer = f"{good} of {len(rows)}"
    if good == len(rows):
        return Tile(title, "good", answer, all_good, "seeds")
    missing = [row.name for row, tone in zip(rows, tones, strict=True) if tone not in ("good", "warn")]
    if "bad" in tones:
        return Tile(title, "bad", answer, f"Not: {_some(missing)}", "seeds")
    return Tile(title, "unknown", answer, f"Not known of {_some(missing)}", "seeds")


def _unless_silent(tile: Tile, silent: str) -> Tile:
    """What was good then is not known to be so now."""
    if not silent or tile.tone != "good":
        return tile
    return tile._replace(tone="unknown", detail=f"As of {silent} ago: no master has reached a seed since.")


def _stale(rows: Sequence[Row], now: datetime) -> list[StaleSeed]:
    """With the oldest of the reports, the oldest first."""
    reports: dict[str, list[str]] = {}
    for row in rows:
        for name, time in row.stale:
            reports.setdefault(name, []).append(time)
    found = [
        (min(times), StaleSeed(name, moment(min(times), now), len(times))) for name, times in sorted(reports.items())
    ]
    return [each for _, each in sorted(found, key=lambda pair: pair[0])]


def _some(names: Sequence[str]) -> str:
    rest = len(names) - NAMED
    return ", ".join(names[:NAMED]) + (f" and {rest} more" if rest > 0 else "")
