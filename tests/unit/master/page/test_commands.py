"""The commands that pages name are commands that there are."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from cli.__main__ import parser

PAGE = Path(__file__).parents[4] / "master/page"
_COMMAND = re.compile(r'"kubectl seedquota ([^"]+)"')
COMMANDS = sorted({found for file in PAGE.glob("*.py") for found in _COMMAND.findall(file.read_text())})


@pytest.mark.parametrize("command", COMMANDS)
def test_the_command_line_takes_what_a_page_names(command: str) -> None:
    kind = re.sub(r"\{kind\}", "project", command)
    written = re.sub(r"\{[^}]*subject_kind\}", "project", kind)
    named = re.sub(r"\{[^}]+\}", "alpha", written)
    parser().parse_args(shlex.split(named.replace("RESOURCE=LIMIT", "cpu=1").replace("RESOURCE=AMOUNT", "cpu=1")))


def test_there_are_some() -> None:
    assert {command.split()[0] for command in COMMANDS} >= {"consumers", "describe", "fits", "set", "top", "where"}
