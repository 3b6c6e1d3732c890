"""What the wrappers launch compiles for an NVIDIA GPU (to machine code for compute capability 9.0), which the
interpreter does not show: it fits a multiprocessor, spills few registers, and uses the units it was written for.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.compiled import LESS_SHARED, SHARED, SPILLED, answers
from support.engine.kernels_compile_cases import CASES

PROGRAM = Path(__file__).parents[1] / "support/engine/kernels_compile.py"


@pytest.fixture(scope="module")
def compiled() -> dict[str, Any]:
    return answers(PROGRAM)


@pytest.mark.parametrize("name", CASES)
def test_a_launch_compiles_and_fits(compiled: dict[str, Any], name: str) -> None:
    kernels = compiled[name]
    assert isinstance(kernels, list) and kernels, kernels
    for kernel in kernels:
        assert kernel["shared"] <= SHARED, kernel
        allowed = SPILLED if "prefill" in name else 0
        assert kernel["stack"] <= allowed or "fp32" in name, kernel  # float32 is for checks


@pytest.mark.parametrize("name", ["prefill", "prefill 80", "prefill fp8", "mixed", "fp8 256", "awq 64"])
def test_sixty_four_rows_use_the_warpgroups_matrix_unit(compiled: dict[str, Any], name: str) -> None:
    assert compiled[name][0]["wgmma.mma_async"]


@pytest.mark.parametrize("name", ["decode fp32", "decode fp32, fp8 pages"])
def test_float32_is_not_rounded_for_the_matrix_unit(compiled: dict[str, Any], name: str) -> None:
    assert not compiled[name][0]["mma.sync"] and compiled["decode fp8"][0]["mma.sync"]


@pytest.mark.parametrize("name", ["decode", "decode fp8", "prefill", "awq 1", "fp8 1"])
def test_loops_load_ahead(compiled: dict[str, Any], name: str) -> None:
    assert compiled[name][0]["cp.async.wait_group"]


@pytest.mark.parametrize("name", ["rms_norm", "gated", "rope", "page copy", "fp8 quantise row", "decode"])
def test_loads_are_sixteen_bytes_wide(compiled: dict[str, Any], name: str) -> None:
    assert compiled[name][0]["ld.global.v4"]


@pytest.mark.parametrize(
    ("capability", "names"),
    [
        ("80", ("prefill", "awq 64")),
        ("89", ("decode window", "short prefill", "short prefill 256", "prefill", "prefill fp8", "prefill cap", "awq 64",
                "grouped gemm", "fp8 1", "fp8 256")),
    ],
)  # fmt: skip
def test_launches_fit_a_gpu_with_less_shared_memory(capability: str, names: tuple[str, ...]) -> None:
    """Of an A100, an A10 or an L4. An engine whose launch does not fit cannot start."""
    for name, kernels in answers(PROGRAM, *names, capability=capability).items():
        assert isinstance(kernels, list) and kernels, kernels
        for kernel in kernels:
            assert kernel["shared"] <= LESS_SHARED, (name, kernel)
