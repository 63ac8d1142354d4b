"""What CONTRIBUTING.md and the table of ARCHITECTURE.md name exists: files, paths and make targets."""

from __future__ import annotations

import re
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "CONTRIBUTING.md").read_text()
MAKEFILE = (ROOT / "Makefile").read_text()
TARGETS = set(re.findall(r"^([a-z0-9]+):", MAKEFILE, re.MULTILINE))


def test_each_question_where_it_is_decided_is_answered_by_files_that_exist() -> None:
    page = (ROOT / "ARCHITECTURE.md").read_text()
    table = page.partition("## Where is it decided?\n")[2].partition("\n## ")[0]
    rows = [line.strip("|").split(" | ", 1) for line in table.splitlines() if line.startswith("| ")][1:]
    assert len(rows) > 50
    assert [question for question, _ in rows if not question.strip().endswith("?")] == []
    for question, files in rows:
        named = re.findall(r"`([\w./*-]+/[\w./*-]*)`", files)
        assert named, question
        assert [name for name in named if not list(ROOT.glob(name.rstrip("/")))] == [], question


def test_the_paths_that_it_names_exist() -> None:
    named = [word for word in re.findall(r"`([\w./-]+)`", PAGE) if "/" in word] + re.findall(r"\]\(([\w./-]+)\)", PAGE)
    assert len(named) > 40
    beside = {path.name for path in (ROOT / "tests" / "integration").iterdir()}
    written = [path for path in named if not path.startswith(".venv/")]  # what is there is made by tests
    assert [path for path in written if not (ROOT / path).exists() and path.strip("/") not in beside] == []


def test_the_make_targets_that_it_names_exist_and_help_lists_all_that_there_are() -> None:
    assert set(re.findall(r"`make ([a-z0-9]+)", PAGE)) - TARGETS == set()
    helped = set(re.findall(r'@echo "make ([a-z0-9]+) ', MAKEFILE))
    assert helped == TARGETS - {"help"}


def test_the_hooks_of_a_commit_are_local_and_are_parts_of_make_lint() -> None:
    lint = MAKEFILE.partition("\nlint:")[2].partition("\n\n")[0]
    repositories = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    assert [found["repo"] for found in repositories] == ["local"]
    hooks = repositories[0]["hooks"]
    assert [hook["id"] for hook in hooks] == ["ruff-check", "ruff-format", "mypy"]
    for hook in hooks:
        assert hook["language"] == "system", "another language downloads at the first commit"
        assert hook["entry"].replace(".venv/bin", "$(BIN)") in lint
