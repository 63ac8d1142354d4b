"""Draws the results that docs/reference/bench.md has: `python -m tests.bench.recorded` after a change of its table."""

from __future__ import annotations

import re
from pathlib import Path

from tests.bench import plot
from tests.bench.plot import Ratios

DOCS = Path(__file__).parents[2] / "docs"
IMAGES, NAME = DOCS / "images", "measurements"
TITLE = "Admissions a second on 2 cores, as a ratio to the peer of the same run"
PEERS = {"stores": "to the API server, 1 replica", "spread": "to 1 user cluster"}  # where a line does not name it
_HEAD = "| | admitted/s | p50 ms | p99 ms | ratio |\n"


def recorded() -> Ratios:
    """Of the table of admissions. A line that is its own peer is left out."""
    table = (DOCS / "reference" / "bench.md").read_text().partition(_HEAD)[2].partition("\n\n")[0]
    lines = []
    for line in table.splitlines()[1:]:
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        name = re.sub(r" \(one write alone:.*\)", "", cells[0].replace("`", ""))
        if cells[-1] != "1":
            peer = PEERS.get(name.partition(":")[0])
            lines.append((f"{name} ({peer})" if peer else name, float(cells[-1])))
    return Ratios(TITLE, lines)


if __name__ == "__main__":
    print(plot.write(IMAGES, NAME, recorded()))
