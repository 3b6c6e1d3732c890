"""Protects what the interpreter does not show: every launch of the device runner, in the shapes and dtypes of real
models, compiles for an NVIDIA GPU (compute capability 9.0), fits a multiprocessor and spills few registers; and that
all of them compile before an engine serves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.compiled import SHARED, SPILLED, answers
from support.engine.device_compile_cases import CASES

FOLDER = Path(__file__).parents[1] / "support/engine"
PROGRAM, GROWTH = FOLDER / "device_compile_cases.py", FOLDER / "device_compile_growth.py"
ALWAYS = {"_kernel", "attend"}


@pytest.fixture(scope="module")
def compiled() -> dict[str, Any]:
    return answers(PROGRAM)


@pytest.fixture(scope="module")
def growth() -> dict[str, Any]:
    return answers(GROWTH)


@pytest.mark.parametrize("name", CASES)
def test_a_step_compiles_and_fits(compiled: dict[str, Any], name: str) -> None:
    kernels = compiled[name]
    assert isinstance(kernels, list) and kernels, kernels
    assert {kernel["name"] for kernel in kernels} >= ALWAYS
    for kernel in kernels:
        assert kernel["shared"] <= SHARED, kernel
        assert kernel["stack"] <= (SPILLED if kernel["name"] == "attend" and "mixed" in name else 0), kernel


@pytest.mark.parametrize("model", ["llama", "qwen3"])
def test_an_engine_that_serves_compiles_nothing(growth: dict[str, Any], model: str) -> None:
    """A request would wait for the compiler: more than a second on an H200's machine."""
    assert growth[model]["later"] == [] and growth[model]["compiled"] > 10
