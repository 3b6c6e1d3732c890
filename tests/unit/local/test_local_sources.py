"""Protects what is stored under a hash of sources (images, campaigns, mutants): another source is never taken for the same."""

from __future__ import annotations

from pathlib import Path

from pagefleet_local.base.sources import digest, python_files


def test_a_hash_changes_with_names_and_contents(tmp_path: Path) -> None:
    first = tmp_path / "a/one.py"
    first.parent.mkdir()
    first.write_text("one = 1\n")
    (tmp_path / "a/notes.txt").write_text("no source")
    assert python_files(tmp_path) == [first]
    before = digest(python_files(tmp_path), tmp_path)
    assert digest(python_files(tmp_path), tmp_path) == before
    first.write_text("one = 2\n")
    changed = digest(python_files(tmp_path), tmp_path)
    renamed = digest(python_files(first.rename(tmp_path / "a/two.py").parent), tmp_path)
    assert len({before, changed, renamed}) == 3
