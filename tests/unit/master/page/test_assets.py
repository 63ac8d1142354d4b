"""The files that pages name."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

import master.page
from master.page.assets import assets

PAGE = Path(master.page.__file__).parent
VENDOR = PAGE / "static" / "vendor"


def test_scripts_of_others_are_as_they_were_published() -> None:
    said = dict(reversed(line.split("  ")) for line in (VENDOR / "SHA512SUMS").read_text().splitlines())
    there = {file.name: hashlib.sha512(file.read_bytes()).hexdigest() for file in VENDOR.glob("*.js")}
    assert there == said
    assert len(list(VENDOR.glob("LICENSE-*"))) == len(there)


def test_a_first_view_is_small() -> None:
    assert sum(len(asset.compressed) for asset in assets().values()) < 40_000


def test_nothing_in_a_template_needs_what_the_policy_forbids() -> None:
    """Styles, scripts and handlers in attributes are not run, and nothing comes from another host."""
    for template in (PAGE / "templates").glob("*.html"):
        text = template.read_text()
        assert not re.search(
            r"\sstyle=|<style|<script(?! defer src)|\son[a-z]+=|hx-on|hx-vals=.js|\|\s*safe|https?://", text
        )
