"""What quotas used over the last thirty days, resource by resource. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import NamedTuple

from markupsafe import Markup

from common.quota.names import in_order
from common.quota.quantity import UNIT
from master.history import forecast
from master.history.forecast import DAY, Point
from master.history.store import BUCKET
from master.page.plots.line import line
from master.page.views import amounts


class Plot(NamedTuple):
    """`forecast`: when it is full if it goes on so; empty: nobody can tell. `days`: of how many something is known."""

    resource: str
    svg: Markup
    forecast: str
    days: int


def plots(points: Mapping[str, Sequence[Point]], now: datetime) -> list[Plot]:
    return [_plot(name, points[name], now.timestamp()) for name in in_order(points)]


def _plot(name: str, points: Sequence[Point], now: float) -> Plot:
    def label(amount: float) -> str:
        return amounts.amount(name, round(amount * UNIT)).text

    seconds = forecast.full_in(points)
    said = forecast.words(seconds) if seconds is not None else ""
    last = points[-1]
    title = f"{name} over 30 days: last {label(last.used)} of {label(last.limit)}{f'; {said}' if said else ''}"
    known = len({int(point.time // DAY) for point in points})
    return Plot(name, line(points, now, BUCKET, label, title), said, known)
