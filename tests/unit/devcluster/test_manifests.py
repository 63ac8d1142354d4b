from __future__ import annotations

from pathlib import Path

import pytest

from devcluster.manifests import ManifestError, load


def test_files_and_directories_load_in_order_without_empty_documents(tmp_path: Path) -> None:
    directory = tmp_path / "d"
    directory.mkdir()
    (directory / "b.yaml").write_text("kind: B\n---\n---\nkind: C\n")
    (directory / "a.yaml").write_text("kind: A\n")
    (directory / "notes.txt").write_text("not: loaded\n")
    (tmp_path / "z.yaml").write_text("kind: Z\n")
    assert [manifest["kind"] for manifest in load(tmp_path / "z.yaml", directory)] == ["Z", "A", "B", "C"]


@pytest.mark.parametrize("text", ["- a\n- b\n", "just text\n", "a: [\n"])
def test_what_is_no_object_is_refused_by_the_name_of_its_file(tmp_path: Path, text: str) -> None:
    (tmp_path / "bad.yaml").write_text(text)
    with pytest.raises(ManifestError, match=r"bad\.yaml"):
        load(tmp_path)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ManifestError, match=r"none\.yaml"):
        load(tmp_path / "none.yaml")
