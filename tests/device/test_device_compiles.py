"""Protects what the interpreter does not show: every launch of the device runner, in the shapes and dtypes of real
models, compiles for an NVIDIA GPU (compute capability 9.0), fits a multiprocessor and spills no register."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from device_compile_cases import CASES

SHARED = 227 * 1024
PROGRAM = Path(__file__).parents[1] / "device_compile_cases.py"
ALWAYS = {"_kernel", "attend"}


@pytest.fixture(scope="module")
def compiled() -> dict[str, Any]:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run([sys.executable, PROGRAM], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    answers: dict[str, Any] = json.loads(done.stdout)
    return answers


@pytest.mark.parametrize("name", CASES)
def test_a_step_compiles_and_fits(compiled: dict[str, Any], name: str) -> None:
    kernels = compiled[name]
    assert isinstance(kernels, list) and kernels, kernels
    assert {kernel["name"] for kernel in kernels} >= ALWAYS
    for kernel in kernels:
        assert kernel["shared"] <= SHARED, kernel
        assert kernel["stack"] == 0, kernel
