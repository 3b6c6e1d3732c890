"""Runs Triton kernels in Triton's interpreter: the switch must be set before triton is imported."""

from __future__ import annotations

import os

os.environ["TRITON_INTERPRET"] = "1"
