"""What a release says of itself. tests/chart/test_charts.py has the charts' versions."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from master.reporting.seed_conditions import skewed
from tests import last_release

ROOT = Path(__file__).parents[2]
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]


def test_the_changelog_tells_of_the_version_after_what_is_not_released() -> None:
    sections = re.findall(r"^## \[(.+)\](?: - (\d{4}-\d\d-\d\d))?$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert sections[0] == ("Unreleased", "")
    assert sections[1][0] == VERSION and sections[1][1]


def test_the_last_release_is_at_most_one_minor_version_away(tmp_path: Path) -> None:
    if why := last_release.missing():
        pytest.skip(why)
    assert not skewed(VERSION, last_release.unpack(tmp_path / "last"))
