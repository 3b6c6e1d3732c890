"""Random tensors, and the mark of tests that need the compiled CPU operations, which only CPUs with AVX-512 and VNNI run."""

from __future__ import annotations

import pytest
import torch

from pagefleet_kernels.cpu import native

_MISSING = native.missing() or ""
# A library that is not built is no reason: those tests fail.
NEEDS_AVX512 = pytest.mark.skipif(
    "lacks" in _MISSING,
    reason=f"{_MISSING}: untested are the compiled CPU operations, and the engine with them; torch's own run beside them",
)


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))
