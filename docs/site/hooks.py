"""What MkDocs is told about this repository: pages that lie outside docs/, links to files, markers of code blocks.

A link from a page to a file of the repository leads to a copy of that file in the site (`source/...`), so that the
site is whole without the repository; a link to a folder becomes its text. The words after a code block's language say
how its commands are tested (tests/support/docs_blocks.py); they are taken off, and so are comments.
"""

from __future__ import annotations

import os
import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files, InclusionLevel

REPOSITORY = Path(__file__).resolve().parents[2]
OUTSIDE = {
    "README.md": "project/readme.md",
    "ARCHITECTURE.md": "project/architecture.md",
    "CHANGELOG.md": "project/changelog.md",
    "CONTRIBUTING.md": "project/contributing.md",
    "SECURITY.md": "project/security.md",
    "examples/README.md": "project/examples.md",
    "bench/README.md": "project/bench.md",
}
LINK = re.compile(r"(?<!!)\[([^\]\n]*(?:\n[^\]\n]*)?)\]\(([^)\s#]+)(#[^)\s]*)?\)")
IMAGE = re.compile(r"!\[([^\]]*)\]\(([^)\s]+)()\)")
FENCE = re.compile(r"^(\s*(?:```|~~~)(?:sh|console))[ \t]+[^\n]*$", re.MULTILINE)

HIDDEN = re.compile(r"^<!--.*?^-->\n", re.MULTILINE | re.DOTALL)


def on_files(files: Files, config: Any) -> Files:
    """Adds the pages outside docs/ and the files that pages link to."""
    for origin, uri in OUTSIDE.items():
        files.append(File.generated(config, uri, abs_src_path=str(REPOSITORY / origin)))
    pages = {file.src_uri: file for file in files.documentation_pages()}
    linked = {target for uri in pages for target in _linked(uri, _text(uri))}
    for target in sorted(linked):
        copied = File.generated(config, _copy(target), abs_src_path=str(REPOSITORY / target))
        copied.inclusion = InclusionLevel.INCLUDED
        files.append(copied)
    return files


def on_nav(nav: Any, config: Any, files: Files) -> Any:
    """Pages that the navigation does not name come under "More"."""
    from mkdocs.structure.nav import Section
    from mkdocs.structure.pages import Page

    left = [file for file in files.documentation_pages() if file.page is None or file.page not in nav.pages]
    if left:
        pages = [file.page or Page(None, file, config) for file in left]
        more = Section("More", pages)
        for page in pages:
            page.parent = more
        nav.items.append(more)
        nav.pages.extend(pages)
    return nav


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    uri = page.file.src_uri

    def link(found: re.Match[str]) -> str:
        text, target, anchor = found.group(1), found.group(2), found.group(3) or ""
        if ":" in target:
            return found.group(0)
        path = _resolved(uri, target)
        shown = "!" if found.re is IMAGE else ""
        if (REPOSITORY / path).is_dir():
            return text
        return f"{shown}[{text}]({posixpath.relpath(_uri(path), posixpath.dirname(uri) or '.')}{anchor})"

    return FENCE.sub(r"\1", IMAGE.sub(link, LINK.sub(link, HIDDEN.sub("", markdown))))


def _origin(uri: str) -> str:
    """Where in the repository a page of the site is written."""
    return next((origin for origin, made in OUTSIDE.items() if made == uri), f"docs/{uri}")


def _text(uri: str) -> str:
    return (REPOSITORY / _origin(uri)).read_text()


def _resolved(uri: str, target: str) -> str:
    """The repository path that a link of a page means."""
    return os.path.normpath(posixpath.join(posixpath.dirname(_origin(uri)), target))


def _uri(path: str) -> str:
    """Where in the site a file of the repository is."""
    if path in OUTSIDE:
        return OUTSIDE[path]
    return path.removeprefix("docs/") if path.startswith("docs/") else _copy(path)


def _copy(path: str) -> str:
    return f"source/{path}"


def _linked(uri: str, text: str) -> set[str]:
    """Files outside docs/ that a page links to and that are no pages."""
    targets = {_resolved(uri, found.group(2)) for kind in (LINK, IMAGE) for found in kind.finditer(text)}
    return {
        path
        for path in targets
        if ":" not in path and not path.startswith("docs/") and path not in OUTSIDE and (REPOSITORY / path).is_file()
    }
