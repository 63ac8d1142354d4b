"""What the pages of docs/how-to show: commands, and what they print."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path

CONFIRMATION = "its machines are gone"

_PAGES = Path(__file__).parents[1] / "docs" / "how-to"
_VARIES = (
    (r"\d{4}-\d\d-\d\dT[\d:]+Z", "TIME"),
    (r"https://[\w.:-]+", "URL"),
    (r"cpu=\w+,memory=\w+", "AMOUNT"),
    (r"user clusters: \d+", "user clusters: N"),
    (r"(?m)^(eu-\d +\w+ +True +)\d+ +\d+", r"\1N N"),
    (r"eu-\d", "SEED"),
    (rf'": {CONFIRMATION}\n', '": '),
    (r"(?m) +[\dhms]+$", " AGE"),
    (r"decision \w+", "decision ID"),
    (r"\s+", " "),  # the pages break long lines
)


def commands(page: str, begins: str) -> str:
    """The block of commands of the page that begins so."""
    text = (_PAGES / page).read_text()
    fenced = re.findall(r"^ *```sh\n(.*?)^ *```$", text, re.MULTILINE | re.DOTALL)
    indented = re.findall(r"(?:^ {4,}\S.*\n)+", text, re.MULTILINE)
    (found,) = (block for each in (*fenced, *indented) if (block := textwrap.dedent(each)).startswith(begins))
    return found


def outputs(page: str, command: str) -> list[str]:
    """What the page shows that the command prints: once for each time that the page has the command."""
    pattern = rf"^( +)\$ {re.escape(command)}\n((?:\1[^$\n].*\n)*)"
    found = list(re.finditer(pattern, (_PAGES / page).read_text(), re.MULTILINE))
    assert found, f"{page} does not have {command}"
    return ["\n".join(line.removeprefix(each[1]) for line in each[2].splitlines()) for each in found]


def is_shown(said: str, page: str, command: str) -> None:
    """Whatever differs in each installation does not count. `...` stands for anything."""
    shown = [form(text) for text in outputs(page, command)]
    parts = ([re.escape(part.strip()) for part in text.split("...")] for text in shown)
    assert any(re.fullmatch("(?s:.*)".join(each), form(said)) for each in parts), (said, shown)


def form(text: str) -> str:
    for pattern, name in _VARIES:
        text = re.sub(pattern, name, text)
    return text.strip()
