"""What quotas used over the last thirty days, resource by resource, and how often they refused. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import NamedTuple

from markupsafe import Markup

from common.quota.names import in_order
from common.quota.quantity import UNIT
from master.history import forecast
from master.history.forecast import DAY, Point
from master.history.refusals import Refusals
from master.history.store import BUCKET
from master.page.plots.line import line
from master.page.views import amounts, refusals


class Plot(NamedTuple):
    """`forecast`: when it is full if it goes on so; empty: nobody can tell. `days`: of how many something is known.
    `refused`: how often for want of the resource; empty: that is not known to have been."""

    resource: str
    svg: Markup
    forecast: str
    days: int
    refused: str


class Past(NamedTuple):
    """`refused`: how often, for whatever reason, in a sentence. Empty: nothing of all this is kept."""

    plots: Sequence[Plot]
    refused: str


NOTHING = Past((), "")


def past(points: Mapping[str, Sequence[Point]], refused: Refusals, now: datetime) -> Past:
    found = [_plot(name, points[name], refused, now) for name in in_order(points)]
    return Past(found, refusals.sentence(refused, now) if found or refused.counts else "")


def _plot(name: str, points: Sequence[Point], refused: Refusals, now: datetime) -> Plot:
    def label(amount: float) -> str:
        return amounts.amount(name, round(amount * UNIT)).text

    seconds, counts = forecast.full_in(points), refusals.of_resource(refused, name)
    said, refused_said = forecast.words(seconds) if seconds is not None else "", refusals.said(counts)
    last = points[-1]
    title = f"{name} over 30 days: last {label(last.used)} of {label(last.limit)}"
    title = "; ".join(each for each in (title, said, refused_said) if each)
    known = len({int(point.time // DAY) for point in points})
    svg = line(points, now.timestamp(), BUCKET, label, title, refusals.spans(refused, counts, now))
    return Plot(name, svg, said, known, refused_said)
