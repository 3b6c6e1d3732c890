"""Protects readers from figures that nobody can check: a section of README or docs/ that states a measured time or rate names
the program that measures it, and that program exists."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.docs_blocks import CHECKOUT

PAGES = sorted([CHECKOUT / "README.md", *(CHECKOUT / "docs").rglob("*.md")])
# Times of less than a second, and rates: nobody declares them, they are measured. What is declared stands in code.
FIGURE = re.compile(r"\d[\d,.]* (?:ms|µs|requests/s|tok/s|tokens/s|MiB/h)\b")
CODE = re.compile(r"^```.*?^```|^ {4}.*?$|`[^`]*`", re.MULTILINE | re.DOTALL)
PROGRAM = re.compile(r"\b(?:bench|tests)/[\w/]+\.py\b|\bmake (?P<target>[a-z-]+)")


def sections(text: str) -> Iterator[tuple[str, str]]:
    """The heading and the text of each section."""
    for section in re.split(r"^(?=#+ )", text, flags=re.MULTILINE):
        yield section.split("\n", 1)[0], section


def unchecked(text: str) -> list[str]:
    """The headings of the sections with a figure and without the program that makes it."""
    return [
        heading
        for heading, section in sections(text)
        if FIGURE.search(CODE.sub("", section)) and not any(map(exists, PROGRAM.finditer(section)))
    ]


def exists(program: re.Match[str]) -> bool:
    target = program["target"]
    if target is None:
        return (CHECKOUT / program[0]).exists()
    return re.search(rf"^{target}:", (CHECKOUT / "Makefile").read_text(), re.MULTILINE) is not None


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(CHECKOUT)))
def test_figures_name_the_program_that_measures_them(page: Path) -> None:
    assert unchecked(page.read_text()) == []


def test_a_figure_without_a_program_is_found() -> None:
    assert unchecked("## A\n\nIt takes 3 ms.\n\n## B\n\n`bench/gateway.py` says 3 ms.\n\n## C\n\nSet `3 ms`.\n") == [
        "## A"
    ]
    assert unchecked("## A\n\nIt takes 3 ms (`bench/nothing.py`, `make nothing`).\n") == ["## A"]
