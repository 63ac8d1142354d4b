"""The plots of measurements: those of a run, and the one of the recorded results."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

from tests.bench import plot, recorded
from tests.bench.plot import Ratios

SVG = "{http://www.w3.org/2000/svg}"


def test_a_bar_is_as_many_times_as_long_as_the_peers_as_the_ratio_says(tmp_path: Path) -> None:
    ratios = Ratios("<a & b>", [("half", 0.5), ('"three"', 3.0)])
    root = ElementTree.parse(plot.write(tmp_path / "plots", "x", ratios)).getroot()
    half, three = (float(bar.attrib["width"]) for bar in root.iter(f"{SVG}rect"))
    (peer,) = root.iter(f"{SVG}line")
    one = float(peer.attrib["x1"]) - plot.LEFT
    assert (round(half / one, 2), round(three / one, 2)) == (0.5, 3.0)
    assert plot.LEFT + three + plot.RIGHT == plot.WIDTH
    texts = [text.text for text in root.iter(f"{SVG}text")]
    assert {"<a & b>", "half", '"three"', "0.50", "3.00"} <= set(texts)


def test_bars_that_are_shorter_than_the_peers_are_beside_its_whole_length() -> None:
    assert 'width="205.0"' in plot.svg(Ratios("x", [("half", 0.5)]))


def test_the_plot_of_the_documents_shows_what_their_table_says() -> None:
    """If this fails: `python -m tests.bench.recorded`."""
    ratios = recorded.recorded()
    assert (recorded.IMAGES / f"{recorded.NAME}.svg").read_text() == plot.svg(ratios)
    assert len(ratios.lines) > 3 and all(re.search(r"\(to ", name) for name, _ in ratios.lines)
