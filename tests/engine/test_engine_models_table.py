"""Protects docs/models.md: its table names the families of the registry, and it claims no parity that a test does not compare."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from support.engine import backend_models, device_engine, files

from pagefleet_engine.model.families import registry
from pagefleet_engine.model.families.family import Family

PAGE = Path(__file__).resolve().parents[2] / "docs/models.md"


def rows() -> dict[str, list[str]]:
    """The cells after the first one of each row, by `model_type`."""
    lines = [
        line.strip("|").split("|")
        for line in PAGE.read_text().splitlines()
        if line.startswith("| `") and not line.startswith("| `model_type`")
    ]
    return {cells[0].strip().strip("`"): [cell.strip() for cell in cells[1:]] for cells in lines}


def test_the_table_has_the_families_of_the_registry_in_their_order() -> None:
    assert list(rows()) == registry.model_types()


@pytest.mark.parametrize("family", registry.FAMILIES, ids=lambda family: family.model_type)
def test_a_row_says_what_is_so(family: Family) -> None:
    _, gguf, gpus, parity = rows()[family.model_type]
    assert gguf == ("yes" if family.gguf else "as `llama`" if family.model_type == "mistral" else "no")
    on_cpu = {config.model_type for config in files.FAMILIES.values()}
    on_device = {config.model_type for config, _ in device_engine.FAMILIES.values()}
    places = {"CPU": on_cpu, "device": on_device}
    assert parity == ", ".join(place for place, types in places.items() if family.model_type in types)
    shared = {device_engine.FAMILIES[name][0].model_type for name in device_engine.PARALLEL}
    refused = {"olmo2"}  # tests/device/test_device_parallel.py
    name = family.model_type
    assert gpus == ("tested" if name in shared else "refused" if name in refused else "untested")


def test_the_models_that_are_said_to_run_through_transformers_are_compared() -> None:
    sentence = PAGE.read_text().split("test_engine_transformers_backend.py`) for")[1].split(". ")[0]
    assert re.findall(r"`([a-z0-9_]+)`", sentence) == [one.model_type for one in backend_models.BACKEND.values()]
