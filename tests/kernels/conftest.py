"""Runs Triton kernels in Triton's interpreter, or on the GPU where PAGEFLEET_KERNELS_ON is `cuda`: there the tests' tensors are made
on it. The interpreter's switch must be set before triton is imported.
Holds the compiled operations, for each instruction set of this machine."""

from __future__ import annotations

import os
from collections.abc import Iterator

os.environ["TRITON_INTERPRET"] = "0" if os.environ.get("PAGEFLEET_KERNELS_ON") == "cuda" else "1"

import pytest
import torch
from support.engine.compiled_operations import EACH_INSTRUCTIONS

from pagefleet_kernels.cpu import native


@pytest.fixture(autouse=True)
def device() -> Iterator[None]:
    torch.set_default_device(None if os.environ["TRITON_INTERPRET"] == "1" else "cuda")
    yield
    torch.set_default_device(None)


@pytest.fixture(scope="module", params=EACH_INSTRUCTIONS)
def compiled(request: pytest.FixtureRequest) -> native.Native:
    torch.set_num_threads(1)  # on products this small two threads spend their time waiting for each other
    return native.Native(2, request.param)
