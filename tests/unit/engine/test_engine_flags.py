"""Protects the table of the command line's flags: it is what the engine's configuration and the contract's page say."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

import pytest

from pagefleet_contract.engine_options import FLAG_FIELDS
from pagefleet_engine.core.requests import EngineConfig
from pagefleet_engine.flags import BY_NAME, FLAGS, Kind

PAGE = Path(__file__).resolve().parents[3] / "docs" / "reference" / "contract" / "engine.md"
# Fields of EngineConfig that other flags or several of them fill.
MADE = {"prefix_caching", "adapters", "nodes", "long_prompt_tokens"}


def rows() -> dict[str, list[str]]:
    """Return the rows of the page's first two tables by flag: the cells behind the flag's own."""
    cells: dict[str, list[str]] = {}
    text = PAGE.read_text().split("### Flags in spec.engine.args")[0]
    for line in text.splitlines():
        if line.startswith("| `--"):
            first, *others = (cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1])
            for name in re.findall(r"--[a-z-]+", first):
                cells.setdefault(name, []).extend(others)
    return cells


def test_the_contracts_page_has_every_flag_and_no_other() -> None:
    text = PAGE.read_text().split("### Flags in spec.engine.args")[0]
    assert set(re.findall(r"`?(--[a-z][a-z-]+)", text)) == set(BY_NAME)


@pytest.mark.parametrize("name", sorted(rows()))
def test_the_contracts_page_names_the_field_behind_a_flag(name: str) -> None:
    field, (source, *_) = FLAG_FIELDS.get(name), rows()[name]
    words = re.findall(r"`([A-Za-z.]+)", source)
    if field:
        assert any(word.startswith(field) or word in field for word in words), source
    else:
        assert "engine.args" in source or "operator" in source or "engine.nodes" in source


@pytest.mark.parametrize("name", [flag.name for flag in FLAGS if "cuda" in flag.devices or flag.defaults])
def test_the_contracts_page_says_what_differs_on_a_gpu(name: str) -> None:
    flag, cells = BY_NAME[name], rows()[name]
    if flag.defaults:
        assert cells[-1] == str(flag.defaults["cuda"]) and str(flag.defaults["cpu"]) in cells[1]
    else:
        assert tuple(re.findall(r"`([a-z0-9]+)`", cells[-1])) == flag.devices["cuda"]


def test_every_setting_of_the_engine_has_a_flag() -> None:
    assert {field.name for field in fields(EngineConfig)} - MADE == {flag.dest for flag in FLAGS} & {
        field.name for field in fields(EngineConfig)
    }


def test_a_default_is_one_of_the_values() -> None:
    for flag in FLAGS:
        assert flag.default is None or not flag.values or flag.default in flag.values, flag.name
        assert flag.kind is not Kind.SWITCH or (flag.default is None and not flag.values), flag.name
