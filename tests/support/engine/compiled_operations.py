"""Random tensors, and the tests' parameters that need compiled CPU operations, for which a CPU can lack the instructions."""

from __future__ import annotations

import pytest
import torch

from pagefleet_kernels.compile import here
from pagefleet_kernels.cpu import library


def _needs(why: str | None, untested: str) -> pytest.MarkDecorator:
    """Return the mark that skips where the CPU lacks instructions. A library that is not built is no reason: tests fail."""
    return pytest.mark.skipif(
        "lacks" in (why or ""), reason=f"{why}: untested are the compiled CPU operations {untested}"
    )


NEEDS_COMPILED = _needs(library.missing(), "and the engine with them; torch's own run beside them")
# One parameter for each instruction set of this machine's architecture.
EACH_INSTRUCTIONS = [
    pytest.param(one.name, marks=_needs(library.lacking(one), f"for {one.name}; those for others run"))
    for one in here()
]


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))
