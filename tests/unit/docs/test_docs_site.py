"""Protects the documentation's site: it builds without a warning (dead links and anchors are warnings), loads nothing
from other hosts, and shows no test's marker; the generated reference is what its sources make."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

import pytest

from pagefleet_reference.__main__ import main as reference
from pagefleet_reference.pages import pages

CHECKOUT = Path(__file__).resolve().parents[3]
LOADS = {"script": "src", "img": "src", "link": "href", "iframe": "src", "source": "src"}


class Loads(HTMLParser):
    """Addresses that a browser fetches by itself to show a page. Addresses that scripts fetch are in the theme's own bundle."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []
        self.classes: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.classes |= set((given.get("class") or "").split())
        if tag in LOADS and given.get("rel") != "canonical":
            self.found.append(given.get(LOADS[tag]) or "")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--strict", "-f", "docs/site/mkdocs.yml"]
    done = subprocess.run(
        [*command, "-d", str(folder)], cwd=CHECKOUT, capture_output=True, text=True, check=False,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def html(site: Path) -> Iterator[tuple[Path, str]]:
    paths = list(site.rglob("*.html"))
    assert len(paths) > 20
    for path in paths:
        yield path.relative_to(site), path.read_text()


def test_every_page_of_the_repository_is_in_the_site(site: Path) -> None:
    made = {str(path) for path, _ in html(site)}
    ours = {path.relative_to(CHECKOUT / "docs").with_suffix(".html") for path in CHECKOUT.glob("docs/**/*.md")}
    assert {str(path).replace("README.html", "index.html") for path in ours} <= made
    assert {"project/readme.html", "project/examples.html"} <= made
    assert (site / "source/examples/live-chat-spike.yaml").exists()


def test_nothing_is_loaded_from_elsewhere(site: Path) -> None:
    for path, text in html(site):
        loads = Loads()
        loads.feed(text)
        assert [address for address in loads.found if re.match(r"(?:[a-z]+:)?//", address)] == [], path
        assert "mermaid" not in loads.classes, f"{path}: the theme would fetch mermaid; draw an SVG"
    for sheet in site.rglob("*.css"):
        assert not re.search(r"url\([\"']?(?:https?:)?//|@import", sheet.read_text()), sheet


def test_the_tests_markers_are_not_shown(site: Path) -> None:
    for path, text in html(site):
        shown = re.sub(r"<[^>]+>", "", text)
        assert not re.search(r"```|(?:^|\n)(?:sh|console) (?:fleet|plane|here|no-run)", shown), path


def test_the_reference_is_what_its_sources_make(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = str(CHECKOUT / "docs/reference")
    assert reference(["--check", folder]) == 0, capsys.readouterr().err
    assert sorted(path.name for path in (CHECKOUT / "docs/reference").iterdir() if path.is_file()) == sorted(pages())
    assert reference([str(tmp_path)]) == 0
    (tmp_path / "crd.md").write_text("older")
    assert reference(["--check", str(tmp_path)]) == 1
    assert "crd.md is not what its source makes" in capsys.readouterr().err
