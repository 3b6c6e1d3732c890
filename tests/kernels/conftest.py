"""Runs Triton kernels in Triton's interpreter: the switch must be set before triton is imported. Holds the compiled operations."""

from __future__ import annotations

import os

os.environ["TRITON_INTERPRET"] = "1"

import pytest
import torch

from pagefleet_kernels.cpu import native


@pytest.fixture(scope="module")
def compiled() -> native.Native:
    torch.set_num_threads(1)  # on products this small two threads spend their time waiting for each other
    return native.Native(2)
