"""Ratios of one measurement to a peer of the same run, as an SVG file. Pure, but for `write`."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import NamedTuple

WIDTH, LEFT, RIGHT = 900, 430, 60
TOP, HEIGHT, BAR = 46, 26, 16
_STYLE = (
    "text{font:13px system-ui,sans-serif;fill:#1c2522}.title{font-weight:600;font-size:15px}.bar{fill:#24876d}"
    ".peer{stroke:#b3541e;stroke-dasharray:4 3}.peer-name{fill:#b3541e}"
    "@media(prefers-color-scheme:dark){text{fill:#e4ebe8}.bar{fill:#3fb392}.peer{stroke:#f0a26b}.peer-name{fill:#f0a26b}}"
)


class Ratios(NamedTuple):
    """`lines`: what was measured, and how many times the peer's figure its own is."""

    title: str
    lines: Sequence[tuple[str, float]]


def svg(ratios: Ratios) -> str:
    """A bar for each line, beside a mark where it would be as long as the peer's."""
    most = max([1.0, *(ratio for _, ratio in ratios.lines)])
    height = TOP + HEIGHT * len(ratios.lines) + 12

    def length(ratio: float) -> float:
        return round(ratio / most * (WIDTH - LEFT - RIGHT), 1)

    said = "; ".join(f"{name}: {ratio:.2f}" for name, ratio in ratios.lines)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img"'
        f' aria-label="{escape(ratios.title)}. {escape(said)}"><style>{_STYLE}</style>',
        f'<text class="title" x="8" y="20">{escape(ratios.title)}</text>',
    ]
    for number, (name, ratio) in enumerate(ratios.lines):
        y = TOP + HEIGHT * number
        parts += [
            f'<text x="{LEFT - 8}" y="{y + 13}" text-anchor="end">{escape(name)}</text>',
            f'<rect class="bar" x="{LEFT}" y="{y}" width="{length(ratio)}" height="{BAR}" rx="2"/>',
            f'<text x="{LEFT + length(ratio) + 6}" y="{y + 13}">{ratio:.2f}</text>',
        ]
    peer = LEFT + length(1.0)
    parts += [
        f'<line class="peer" x1="{peer}" x2="{peer}" y1="{TOP - 8}" y2="{height - 8}"/>',
        f'<text class="peer-name" x="{peer}" y="{TOP - 12}" text-anchor="middle">1: the peer</text>',
    ]
    return "\n".join([*parts, "</svg>\n"])


def write(directory: Path, name: str, ratios: Ratios) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    file = directory / f"{name}.svg"
    file.write_text(svg(ratios))
    return file
