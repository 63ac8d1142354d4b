"""The use of one resource over time, and its limit, as SVG. Pure."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import NamedTuple

from markupsafe import Markup

from master.history.forecast import DAY, Point

WIDTH, HEIGHT = 720, 180
LEFT, RIGHT, TOP, BOTTOM = 70, 8, 10, 24
DAYS = 30
LINES = 3  # across, beside that of nothing
STRIPS = {"refused": 8, "refused-unknown": 3}  # high, below the lowest of them
NARROWEST = 3.0


class Mark(NamedTuple):
    """A limit that changed: when, and to what."""

    time: float
    limit: float


class Span(NamedTuple):
    """Unix times, and what is said of the time between them. `kind`: `refused` or `refused-unknown`."""

    begin: float
    end: float
    kind: str
    text: str


def line(
    points: Sequence[Point],
    until: float,
    bucket: float,
    label: Callable[[float], str],
    title: str,
    spans: Sequence[Span] = (),
) -> Markup:
    """`until`: Unix time at the right edge, thirty days after the left one. `bucket`: seconds of which a point is, from
    its time on: where more is between two of them, nothing is known, and the line has a gap. `label`: how an amount is
    written. `title`: for who does not see it. `spans`: shown below the line."""
    begin = until - DAYS * DAY
    shown = [point for point in points if begin <= point.time <= until]
    most = max((max(point.used, point.limit) for point in shown), default=0.0) or 1.0

    def x(time: float) -> float:
        return round(LEFT + (time - begin) / (until - begin) * (WIDTH - LEFT - RIGHT), 1)

    def y(amount: float) -> float:
        return round(HEIGHT - BOTTOM - amount / (most * 1.05) * (HEIGHT - TOP - BOTTOM), 1)

    parts = [
        Markup('<svg class="plot" role="img" viewBox="0 0 {} {}" aria-label="{}">').format(WIDTH, HEIGHT, title),
        *(_across(y, most * number / LINES, label) for number in range(LINES + 1)),
        *(_day(x(until - days * DAY), until - days * DAY) for days in (28, 21, 14, 7, 0)),
    ]
    for known in runs(shown, bucket):
        run = [*known, known[-1]._replace(time=min(known[-1].time + bucket, until))]
        used = " ".join(f"{x(point.time)},{y(point.used)}" for point in run)
        parts.append(
            Markup('<polygon class="area-used" points="{},{} {} {},{}"/>').format(
                x(run[0].time), y(0), used, x(run[-1].time), y(0)
            )
        )
        parts.append(Markup('<polyline class="line-used" points="{}"/>').format(used))
        parts.append(Markup('<path class="line-limit" d="{}"/>').format(_steps(run, x, y)))
    for mark in changes(shown):
        text = f"limit changed to {label(mark.limit)}"
        parts.append(
            Markup('<line class="mark" x1="{0}" x2="{0}" y1="{1}" y2="{2}"><title>{3}</title></line>').format(
                x(mark.time), TOP, HEIGHT - BOTTOM, text
            )
        )
    for span in spans:
        if span.end > begin and span.begin < until:
            left, right = x(max(span.begin, begin)), x(min(span.end, until))
            width = max(round(right - left, 1), NARROWEST)
            parts.append(
                Markup('<rect class="{}" x="{}" width="{}" y="{}" height="{}"><title>{}</title></rect>').format(
                    span.kind, left, width, HEIGHT - BOTTOM + 1, STRIPS[span.kind], span.text
                )
            )
    return Markup("").join((*parts, Markup("</svg>")))


def runs(points: Sequence[Point], bucket: float) -> list[list[Point]]:
    """Those without a gap between them."""
    found: list[list[Point]] = []
    for point in points:
        if found and point.time - found[-1][-1].time <= bucket * 1.5:
            found[-1].append(point)
        else:
            found.append([point])
    return found


def changes(points: Sequence[Point]) -> list[Mark]:
    return [
        Mark(after.time, after.limit) for before, after in itertools.pairwise(points) if before.limit != after.limit
    ]


def _steps(run: Sequence[Point], x: Callable[[float], float], y: Callable[[float], float]) -> str:
    """A limit is one value until it is another."""
    path, before = [f"M{x(run[0].time)},{y(run[0].limit)}"], run[0]
    for point in run[1:]:
        path.append(f"H{x(point.time)}")
        if point.limit != before.limit:
            path.append(f"V{y(point.limit)}")
        before = point
    return "".join(path)


def _across(y: Callable[[float], float], amount: float, label: Callable[[float], str]) -> Markup:
    return Markup(
        '<line class="grid" x1="{0}" x2="{1}" y1="{2}" y2="{2}"/><text x="{3}" y="{4}" text-anchor="end">{5}</text>'
    ).format(LEFT, WIDTH - RIGHT, y(amount), LEFT - 6, y(amount) + 4, label(amount))


def _day(place: float, time: float) -> Markup:
    day = datetime.fromtimestamp(time, UTC).strftime("%b %-d")
    anchor = "end" if place > WIDTH - 40 else "middle"
    return Markup('<text x="{}" y="{}" text-anchor="{}">{}</text>').format(place, HEIGHT - 6, anchor, day)
