"""Layers in one call have the bits that their operations have one after the other, and leave other layers alone."""

from __future__ import annotations

import pytest
import torch
from support.engine.compiled_operations import paged, random
from support.engine.every_operation import HIDDEN, dense_layers, layer_pages

from pagefleet_kernels.cpu import native
from pagefleet_kernels.cpu.reference import Reference


@pytest.mark.parametrize("count", [0, 1, 2])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("kind", ["float32", "int8", "codes"])
def test_layers_have_the_bits_of_their_operations(
    compiled: native.Native, kind: str, dtype: torch.dtype, count: int
) -> None:
    batch, pages = paged([(1, 70), (9, 90), (5, 5)], 16)
    own, expected = layer_pages(pages, dtype), layer_pages(pages, dtype)
    x, y = random(15, HIDDEN, seed=6), random(15, HIDDEN, seed=6)
    layers = dense_layers(compiled, kind)
    compiled.layers(layers)(x, own[:count], batch)
    # Reference.layers calls one method after the other, here those of the compiled operations.
    Reference.layers(compiled, layers)(y, expected[:count], batch)  # type: ignore[arg-type]
    assert torch.equal(x, y)
    for one, other in zip(own, expected, strict=True):
        assert torch.equal(one.keys, other.keys) and torch.equal(one.values, other.values)
    assert torch.equal(x, random(15, HIDDEN, seed=6)) == (count == 0)
