"""The kernels compile for an NVIDIA GPU (to PTX and machine code), which the interpreter does not show."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

COMPILE = """
import sys
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from pagefleet_kernels import paged_attention, rms_norm, rope_write, silu_mul

half = sys.argv[2]
integers = lambda names: {name: "i32" for name in names.split()}
pointers = lambda names, kind=half: {name: "*" + kind for name in names.split()}
sources = {
    "rms_norm": (
        rms_norm._kernel,
        pointers("x residual weight hidden y")
        | integers("x_row x_column residual_row residual_column weight_column y_row width") | {"eps": "fp32"},
        {"ADDS": True, "BLOCK": 1024},
    ),
    "silu_mul": (
        silu_mul._kernel,
        pointers("gate_up out") | integers("in_row in_column out_row inner"),
        {"BLOCK": 1024},
    ),
    "rope_write": (
        rope_write._kernel,
        pointers("q k v") | pointers("cos sin", "fp32") | pointers("keys values") | pointers("positions", "i64")
        | pointers("slots", "i32") | pointers("out")
        | integers("q_token q_head q_dim k_token k_head k_dim v_token v_head v_dim cos_row cos_column sin_row "
                   "sin_column keys_slot keys_head keys_dim values_slot values_head values_dim heads half"),
        {"BLOCK": 32},
    ),
    "paged_attention": (
        paged_attention._kernel,
        pointers("q keys values") | pointers("block_tables query_starts kv_lens", "i32") | pointers("out")
        | integers("q_token q_head q_dim k_page k_token k_head k_dim v_page v_token v_head v_dim table_row "
                   "table_column heads sequences") | {"scale_log2": "fp32"} | integers("head_dim"),
        {"GROUP": 3, "PAGE": 16, "ROWS": 16, "TILE": 64, "DIM": 64, "WIDEN": False},
    ),
}
kernel, signature, constants = sources[sys.argv[1]]
signature |= {name: "constexpr" for name in constants}
compiled = triton.compile(ASTSource(kernel, signature, constants), target=GPUTarget("cuda", 90, 32))
print(len(compiled.asm["ptx"]))
"""


@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
@pytest.mark.parametrize("op", ["rms_norm", "silu_mul", "rope_write", "paged_attention"])
def test_a_kernel_compiles(op: str, dtype: str) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run([sys.executable, "-c", COMPILE, op, dtype], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    assert int(done.stdout) > 1000
