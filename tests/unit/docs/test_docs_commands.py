"""Protects what the documentation tells people to type and to apply: every command that needs no cluster runs, with
the exit code and the output that the page shows; what is not run says why; every part of an InferenceService that a
page shows is one that the operator takes. (Commands that need a cluster: tests/cluster.)"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from support import docs_blocks
from support.docs_blocks import CHECKOUT, Shell, blocks, fenced, first_missing

from pagefleet_operator.domain.spec.parse import Spec, parse
from pagefleet_operator.domain.spec.schema.spec import SPEC

HERE = docs_blocks.of("here")
NOT_RUN = [block for listed in docs_blocks.of("no-run").values() for block in listed]


@pytest.mark.parametrize("page", HERE)
def test_commands_that_need_no_cluster_run(page: str, tmp_path: Path) -> None:
    with Shell(tmp_path, {}) as shell:
        for block in HERE[page]:
            shell.run(block)


def test_blocks_that_are_not_run_say_why(record_property: pytest.RecordProperty) -> None:
    """And where they are `make TARGET`, the target exists."""
    assert NOT_RUN
    for block in NOT_RUN:
        record_property(block.name, block.reason)
        assert len(block.reason.split()) >= 3, f"{block.name}: {block.reason!r} is no reason"
        for target in re.findall(r"^make ([a-z-]+)", block.text, re.MULTILINE):
            assert re.search(rf"^{target}:", (CHECKOUT / "Makefile").read_text(), re.MULTILINE), block.name


def test_a_wrong_page_is_found(tmp_path: Path) -> None:
    """The runner fails for a command that fails, for output that is not there, and for a marker that is none."""

    def run(shell: Shell, text: str) -> None:
        for block in blocks("page.md", text):
            shell.run(block)

    with Shell(tmp_path, {}) as shell:
        run(shell, "```console here\n$ false\n$ echo $?\n1\n$ echo a 7cae2c12; echo b\na 1c688403\n...\nb\n```\n")
        run(shell, "<!-- here\nleft=3\n-->\n```sh here\ntrue\ntest $left = 3\n```\n")
        for wrong in ("false", "$ echo b\na", "$ echo b; echo a\na\nb", "$ false\n$ true"):
            with pytest.raises(AssertionError, match=r"page\.md:1"):
                run(shell, f"```console here\n{wrong}\n```\n")
        with pytest.raises(AssertionError, match="exit code 1"):
            run(shell, "```sh here\nfalse\ntrue\n```\n")
    for marker in ("", "any-output", "somewhere", "no-run", "no-run:", "here: why"):
        with pytest.raises(ValueError, match=r"page\.md:1"):
            blocks("page.md", f"```sh {marker}\ntrue\n```\n")
    assert first_missing(("1 of 2", "held 3s"), "1 of 2\nx\nheld 14m2s\n") is None


def parts() -> Iterator[tuple[str, dict[str, Any]]]:
    """Return (place, spec) of each YAML block that is an InferenceService or a part of one's spec."""
    for page, text in docs_blocks.pages().items():
        for line, language, _, body in fenced(page, text):
            if language != "yaml":
                continue
            for document in yaml.safe_load_all(body):
                if not isinstance(document, dict):
                    continue
                if str(document.get("apiVersion")).startswith("pagefleet.io/") or set(document) == {"spec"}:
                    yield f"{page}:{line}", document["spec"]
                elif set(document) <= set(SPEC["properties"]):
                    yield f"{page}:{line}", document


PARTS = list(parts())


@pytest.mark.parametrize(("where", "spec"), PARTS, ids=[where for where, _ in PARTS])
def test_every_part_of_a_spec_is_one_that_the_operator_takes(where: str, spec: dict[str, Any]) -> None:
    listed = parse({"model": {"source": "hf://org/model"}, **spec})
    assert isinstance(listed, Spec), f"{where}: {listed.message}"


@pytest.mark.parametrize("path", sorted((CHECKOUT / "examples").glob("*.yaml")), ids=lambda path: path.stem)
def test_every_example_is_documented_and_taken(path: Path) -> None:
    assert f"({path.name})" in (CHECKOUT / "examples/README.md").read_text()
    for document in yaml.safe_load_all(path.read_text()):
        assert document["kind"] == "InferenceService"
        listed = parse(document["spec"])
        assert isinstance(listed, Spec), listed.message
    assert path.read_text().startswith("# "), "an example begins with what it is for"


def test_the_pages_are_there() -> None:
    """A collector that finds nothing would pass."""
    assert HERE
    assert len(docs_blocks.of("fleet")) >= 1
    assert len(docs_blocks.of("plane")) >= 3
    assert len(PARTS) >= 8
