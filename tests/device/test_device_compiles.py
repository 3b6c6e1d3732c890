"""Protects what the interpreter does not show: every launch of the device runner, in the shapes and dtypes of real
models, compiles for an NVIDIA GPU (compute capability 9.0), fits a multiprocessor and spills few registers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.compiled import SHARED, SPILLED, answers
from support.engine.device_compile_cases import CASES

PROGRAM = Path(__file__).parents[1] / "support/engine/device_compile_cases.py"
ALWAYS = {"_kernel", "attend"}


@pytest.fixture(scope="module")
def compiled() -> dict[str, Any]:
    return answers(PROGRAM)


@pytest.mark.parametrize("name", CASES)
def test_a_step_compiles_and_fits(compiled: dict[str, Any], name: str) -> None:
    kernels = compiled[name]
    assert isinstance(kernels, list) and kernels, kernels
    assert {kernel["name"] for kernel in kernels} >= ALWAYS
    for kernel in kernels:
        assert kernel["shared"] <= SHARED, kernel
        assert kernel["stack"] <= (SPILLED if kernel["name"] == "attend" and "mixed" in name else 0), kernel
