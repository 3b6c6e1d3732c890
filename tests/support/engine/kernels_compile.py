"""Compiles the launches of the kernels' wrappers for an NVIDIA GPU that need not be there.

Run as a program it prints JSON: for each case the PTX of each kernel, in order, shortened to what tests look for. The
wrappers run on CPU tensors; the launch itself is replaced by Triton's own warm-up, which stops after compiling. Launches are
cut up as on a GPU of the compute capability CAPABILITY (a variable of the environment) without a table of its own.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton.runtime.jit import JITFunction

from pagefleet_kernels.launch.tables import defaults
from pagefleet_kernels.tune import in_force

CAPABILITY = int(os.environ.get("CAPABILITY", "90"))
TOOL = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
SIGNS = ("wgmma.mma_async", "mma.sync", "cp.async.wait_group", "ld.global.v4")


class Absent:
    """A driver that has a target and nothing else."""

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", CAPABILITY, 32)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int = 0) -> int:
        return 0


def resources(compiled: Any) -> dict[str, int]:
    """Return the registers and the bytes of stack (spilled registers) of a thread, from the machine code."""
    with tempfile.NamedTemporaryFile() as file:
        file.write(compiled.asm["cubin"])
        file.flush()
        text = subprocess.run([TOOL, "-res-usage", file.name], capture_output=True, text=True, check=True).stdout
    return {name.lower(): int(value) for name, value in re.findall(r"(REG|STACK):(\d+)", text)}


def main(cases: Mapping[str, Callable[[], object]]) -> None:
    launch, launches = JITFunction.run, []

    def record(self: Any, *arguments: Any, warmup: bool = False, **options: Any) -> Any:
        compiled = launch(self, *arguments, warmup=True, **options)
        counts = {sign: compiled.asm["ptx"].count(sign) for sign in SIGNS}
        launches.append({"name": self.__name__, "shared": compiled.metadata.shared, **counts, **resources(compiled)})
        return compiled

    driver.set_active(Absent())
    JITFunction.run = record
    answers: dict[str, Any] = {}
    for name in sys.argv[1:] or cases:
        launches.clear()
        try:
            with in_force(defaults(divmod(CAPABILITY, 10))):
                cases[name]()
            answers[name] = list(launches)
        except Exception as error:
            answers[name] = repr(error)[-2000:]
    json.dump(answers, sys.stdout)


if __name__ == "__main__":
    from support.engine.kernels_compile_cases import CASES

    torch.manual_seed(0)
    main(CASES)
