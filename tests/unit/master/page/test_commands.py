"""The commands and calls that pages name are those that there are."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from cli.__main__ import parser
from master.apiserver.routes import ROUTES

PAGE = Path(__file__).parents[4] / "master/page"
_COMMAND = re.compile(r'"kubectl seedquota ([^"]+)"')
COMMANDS = sorted({found for file in PAGE.glob("*.py") for found in _COMMAND.findall(file.read_text())})

_CALL = re.compile(r'"(GET|POST|PUT|DELETE) (/[^"?]*)')
CALLS = sorted({found for file in PAGE.glob("*.py") for found in _CALL.findall(file.read_text())})


@pytest.mark.parametrize("command", COMMANDS)
def test_the_command_line_takes_what_a_page_names(command: str) -> None:
    kind = re.sub(r"\{kind\}", "project", command)
    written = re.sub(r"\{[^}]*subject_kind\}", "project", kind)
    named = re.sub(r"\{[^}]+\}", "alpha", written)
    parser().parse_args(shlex.split(named.replace("RESOURCE=LIMIT", "cpu=1").replace("RESOURCE=AMOUNT", "cpu=1")))


def test_there_are_some() -> None:
    assert {command.split()[0] for command in COMMANDS} >= {"consumers", "describe", "fits", "set", "top", "where"}


@pytest.mark.parametrize(("method", "path"), CALLS)
def test_the_http_api_has_the_route_that_a_page_names(method: str, path: str) -> None:
    def without_names(text: str) -> str:
        return re.sub(r"\{[^}]*\}+", "{}", text)

    assert without_names(path) in {without_names(route.path) for route in ROUTES if route.method == method}


def test_there_are_calls_of_each_kind_of_object() -> None:
    named = {path.split("/")[3] for _, path in CALLS}
    assert named >= {"decisions", "defaults", "fits", "organizations", "quotas", "seeds"}
