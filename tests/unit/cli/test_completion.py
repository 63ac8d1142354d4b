"""What shells and kubectl are told that a command may become."""

from __future__ import annotations

import subprocess
import sys

import pytest

from cli import completion
from cli.__main__ import COMMANDS, parser


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["des"], ["describe"]),
        (["seed", ""], ["add", "drain", "list", "lost", "remove"]),
        (["seed", "l"], ["list", "lost"]),
        (["default", "set", ""], ["organization", "project"]),
        (["default", "set", "project", ""], []),
        (["top", "--sort", ""], ["name", "peak"]),
        (["top", "-o", "j"], ["json"]),
        (["top", "--over", "80", "--org"], ["--organization"]),
        (["describe", "project-alpha", ""], []),
        (["no-such-command", "x"], []),
    ],
)
def test_commands_flags_and_their_values_are_completed(words: list[str], expected: list[str]) -> None:
    assert completion.suggestions(parser(), words) == expected


def test_every_command_is_offered_and_kubectl_is_told_when_files_may_follow() -> None:
    assert len(completion.suggestions(parser(), [])) == len(COMMANDS)
    assert completion.for_kubectl(["t"], parser()) == "top\n:4"
    assert completion.for_kubectl(["fits", "-f", ""], parser()) == ":0"


def test_bash_completes_by_the_script_that_is_printed() -> None:
    call = f"{sys.executable} -m cli"
    script = (
        f'seedquota() {{ {call} "$@"; }}\nsource <(seedquota completion bash)\n'
        'COMP_WORDS=(seedquota seed l); COMP_CWORD=2; _seedquota; echo "${COMPREPLY[@]}"'
    )
    answer = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True)
    assert answer.stdout == "list lost\n", answer.stderr
