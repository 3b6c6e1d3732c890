"""Protects `bench/changes.py`: each of its patches applies to the code as it is now, as that program applies it, and works."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
PATCHES = sorted((ROOT / "bench/changes").glob("*.patch"))


@pytest.mark.parametrize("patch", PATCHES, ids=lambda path: path.stem)
def test_a_patch_applies(patch: Path) -> None:
    done = subprocess.run(
        ["git", "apply", "--check", "-C1", str(patch)], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_each_change_works_and_edits_few_files() -> None:
    done = subprocess.run(
        [sys.executable, "bench/changes.py", "--check"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout
