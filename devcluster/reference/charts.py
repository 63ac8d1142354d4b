"""The README of each chart: what stands in its values.yaml, below what people wrote."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import yaml

from devcluster.charts import NAMES
from devcluster.objects import CHARTS
from devcluster.reference.markdown import code, table

_HEADING = "## Values\n"
_SAID = "`python -m devcluster.reference` writes this table from `values.yaml`. A test fails if they differ.\n"
_KEY = re.compile(r"( *)([A-Za-z]\w*):(.*)")


def readmes() -> dict[str, str]:
    """By the chart's name."""
    return {name: _readme(name) for name in NAMES}


def _readme(chart: str) -> str:
    written = (CHARTS / chart / "README.md").read_text().partition(_HEADING)[0]
    rows = _rows((CHARTS / chart / "values.yaml").read_text())
    return "\n".join([written + _HEADING, _SAID, table(("value", "default", "what it is"), rows), ""])


def _rows(text: str) -> Iterator[tuple[str, str, str]]:
    """A value's comment is what stands directly above it. A value that has others below it is shown if it has one."""
    values = yaml.safe_load(text)
    path: list[str] = []
    comment: list[str] = []
    for line in text.splitlines():
        if line.strip().startswith("#"):
            comment.append(line.strip().removeprefix("#").strip())
            continue
        if key := _KEY.fullmatch(line):
            del path[len(key[1]) // 2 :]
            path.append(key[2])
            value = values
            for name in path:
                value = value[name]
            if key[3].strip():
                yield code(".".join(path)), code(json.dumps(value)), " ".join(comment)
            elif comment:
                yield code(".".join(path)), "", " ".join(comment)
        comment = []
