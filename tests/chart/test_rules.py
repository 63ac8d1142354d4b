"""The charts' rules for Prometheus, read by Prometheus' own parser."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from devcluster import binaries
from devcluster.charts import MASTER, SEED
from devcluster.objects import CHARTS


@pytest.fixture(scope="module")
async def parser() -> Path:
    return (await binaries.ensure(["prometheus-rules"]))["prometheus-rules"]


def complaints(parser: Path, rules: str) -> str:
    done = subprocess.run([parser], input=rules, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode != 0) == bool(done.stderr), done
    return done.stderr


@pytest.mark.parametrize("chart", [MASTER, SEED])
def test_prometheus_takes_the_rules(parser: Path, chart: str) -> None:
    assert complaints(parser, (CHARTS / chart / "files" / "alerts.yaml").read_text()) == ""


@pytest.mark.parametrize(
    ("written", "instead", "complaint"),
    [("max by", "maximum by", "could not parse expression"), ("{{ $labels.", "{{ $etiketten.", "undefined variable")],
)
def test_a_mistake_in_an_expression_or_a_text_is_found(
    parser: Path, written: str, instead: str, complaint: str
) -> None:
    rules = (CHARTS / MASTER / "files" / "alerts.yaml").read_text()
    assert written in rules
    assert complaint in complaints(parser, rules.replace(written, instead, 1))
