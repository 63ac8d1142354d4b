"""What the pages name exists: files, sections, terms."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
FOLDERS = {path.name for path in ROOT.iterdir() if path.is_dir() and not path.name.startswith(".")}
FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)\s]+)\)")
NAME = re.compile(r"`([\w./*-]+)`")


def shown(page: Path) -> str:
    return str(page.relative_to(ROOT))


def without_fences(page: Path) -> str:
    return FENCE.sub("", page.read_text())


def anchors(page: Path) -> set[str]:
    """As GitHub makes them of headings."""
    titles = re.findall(r"^#+ (.+)$", without_fences(page), re.MULTILINE)
    plain = [re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", title) for title in titles]
    return {re.sub(r"[^\w\- ]", "", title.lower()).strip().replace(" ", "-") for title in plain}


@pytest.mark.parametrize("page", PAGES, ids=shown)
def test_every_file_that_a_page_names_exists(page: Path) -> None:
    missing = []
    for name in NAME.findall(without_fences(page)):
        if name.partition("/")[0] in FOLDERS and "/" in name:
            found = list(ROOT.glob(name.rstrip("/")))
        elif name.endswith(".py"):
            found = list((ROOT / "tests").rglob(name))
        else:
            continue
        if not found:
            missing.append(name)
    assert missing == []


@pytest.mark.parametrize("page", PAGES, ids=shown)
def test_every_link_leads_somewhere(page: Path) -> None:
    missing = []
    for link in LINK.findall(without_fences(page)):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            missing.append(link)
    assert missing == []


def test_every_page_can_be_reached_from_the_readme() -> None:
    reached, waiting = set(), [ROOT / "README.md"]
    while waiting:
        page = waiting.pop()
        if page in reached:
            continue
        reached.add(page)
        links = [link.partition("#")[0] for link in LINK.findall(without_fences(page)) if not re.match("[a-z]+:", link)]
        waiting += [(page.parent / link).resolve() for link in links if link.endswith(".md")]
    assert [shown(page) for page in PAGES if page.is_relative_to(ROOT / "docs") and page not in reached] == []


def test_the_glossary_defines_each_term_once() -> None:
    terms = [
        term
        for line in (ROOT / "docs" / "glossary.md").read_text().splitlines()
        if line.startswith("| ") and not line.startswith("| term |")
        for term in line.split("|")[1].strip().split(", ")
    ]
    assert len(terms) > 40
    assert sorted({term for term in terms if terms.count(term) > 1}) == []


@pytest.mark.parametrize("page", ["ARCHITECTURE.md"])
def test_the_picture_and_the_table_fit_a_page_each(page: str) -> None:
    text = (ROOT / page).read_text()
    pictures = re.findall(r"^```.*?^```$", text, re.MULTILINE | re.DOTALL)
    tables = re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE)
    assert pictures
    assert tables
    assert all(len(part.splitlines()) <= 60 for part in [*pictures, *tables])


WORN = re.compile(
    r"put right|puts right|\bmend(s|ed)?\b|stands? on\b|let(s)? past|\bis told\b|\bare told\b", re.IGNORECASE
)


@pytest.mark.parametrize("page", PAGES, ids=shown)
def test_the_words_are_plain(page: Path) -> None:
    """The docs use none of these phrases."""
    text = "\n".join(line for line in without_fences(page).splitlines() if not line.startswith("| `--"))
    assert [found[0] for found in WORN.finditer(text)] == []


def test_the_index_lists_every_page() -> None:
    """But for the indexes of folders, and the decisions, which have their own."""
    index = ROOT / "docs" / "README.md"
    listed = {(index.parent / link.partition("#")[0]).resolve() for link in LINK.findall(index.read_text())}
    pages = [page for page in PAGES if page.is_relative_to(index.parent) and page.name != "README.md"]
    assert [shown(page) for page in pages if page not in listed and page.parent.name != "decisions"] == []


def test_every_page_that_a_program_or_a_chart_names_exists() -> None:
    named = {
        (shown(path), name)
        for folder in ("charts", "cli", "common", "devcluster", "image", "master", "seed", "tests")
        for path in sorted((ROOT / folder).rglob("*"))
        if path.suffix in {".py", ".yaml", ".tpl", ".txt", ".json", ".md"}
        for name in re.findall(r"\bdocs/[\w./-]+\.md\b", path.read_text())
    }
    assert len(named) > 40
    assert sorted(each for each in named if not (ROOT / each[1]).exists()) == []
