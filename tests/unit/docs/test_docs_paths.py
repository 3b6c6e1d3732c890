"""Protects the paths that the documentation names: every `folder/module.py` in it is a file of the repository, from the root
or from the package that the text is about."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[3]
PATH = re.compile(r"(?<![\w/.:<{*-])(?:[\w.-]+/)+[\w.-]+\.py\b")
# Named because it must not exist.
FORBIDDEN = {"operator/__init__.py"}


def pages() -> list[Path]:
    top = [
        CHECKOUT / name
        for name in ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "SECURITY.md", "bench/README.md")
    ]
    return [*top, *sorted((CHECKOUT / "docs").rglob("*.md"))]


def tracked() -> list[str]:
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard", "*.py"], cwd=CHECKOUT, capture_output=True, check=True
    )
    return [f"/{path}" for path in listed.stdout.decode().split() if (CHECKOUT / path).is_file()]


def named() -> Iterator[tuple[str, str]]:
    for page in pages():
        for path in PATH.findall(page.read_text()):
            yield str(page.relative_to(CHECKOUT)), path


def test_every_module_that_the_documentation_names_exists() -> None:
    places, files = list(named()), tracked()
    assert len(places) > 30
    missing = [
        f"{page}: {path}"
        for page, path in places
        if path not in FORBIDDEN and not any(file.endswith(f"/{path}") for file in files)
    ]
    assert missing == []


def test_what_must_not_exist_does_not() -> None:
    assert [path for path in FORBIDDEN if (CHECKOUT / path).exists()] == []
