"""Runs a program of compile cases, and bounds its results (kernels_compile.py, device_compile_cases.py)"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

TESTS = Path(__file__).resolve().parents[1]  # programs import `support` from here
SHARED = 227 * 1024  # bytes that one program may take on compute capability 9.0
LESS_SHARED = 99 * 1024  # on 8.6, 8.9 and 12.0, the least of those that are supported
SPILLED = (
    192  # bytes of registers that a prompt's attention may spill: 256 rows do, and were faster on an H200 than fewer
)


def answers(program: Path, *cases: str, capability: str = "90") -> dict[str, Any]:
    """Return the results by case. The program is a process of its own, because this one runs Triton's interpreter."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["CAPABILITY"] = capability
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, (str(TESTS), environment.get("PYTHONPATH"))))
    done = subprocess.run([sys.executable, program, *cases], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    results: dict[str, Any] = json.loads(done.stdout)
    return results
