"""`python -m pagefleet_kernels.compile`: compiles the CPU operations into cpu/. Needs g++ or clang++, and no torch.

Does nothing when the library is newer than its sources. The engine never compiles anything when it starts.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).with_name("cpu")
LIBRARY, SOURCES = FOLDER / "libpagefleet_cpu.so", FOLDER / "source"
FLAGS = (
    "-std=c++17", "-O3", "-shared", "-fPIC", "-pthread", "-Wall", "-Wextra", "-Werror", "-fno-math-errno",
    "-ffp-contract=off", "-static-libstdc++", "-static-libgcc",
    "-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq", "-mavx512vnni", "-mfma", "-mf16c",
    "-Wno-maybe-uninitialized", "-Wno-uninitialized",  # GCC 12 raises them for its own intrinsics (its bug 105593)
)  # fmt: skip


def fresh() -> bool:
    files = [*SOURCES.iterdir(), Path(__file__)]
    return LIBRARY.is_file() and LIBRARY.stat().st_mtime >= max(path.stat().st_mtime for path in files)


def compiler() -> str | None:
    names = [os.environ.get("CXX", ""), "g++", "clang++", "c++"]
    return next((path for name in names if name and (path := shutil.which(name))), None)


def main() -> int:
    if platform.machine() not in ("x86_64", "AMD64"):
        sys.stderr.write("CPU operations: compiled ones exist for x86-64 only; torch's are used\n")
        return 0
    if fresh():
        return 0
    program = compiler()
    if program is None:
        sys.stderr.write("CPU operations: no C++ compiler (g++); torch's are used, several times slower\n")
        return 0
    # Into place at once: a process that has the old library open keeps it.
    unfinished = LIBRARY.with_name(f".{LIBRARY.name}.{os.getpid()}")
    try:
        subprocess.run([program, *FLAGS, "-o", str(unfinished), str(SOURCES / "ops.cpp")], check=True)
        unfinished.replace(LIBRARY)
    finally:
        unfinished.unlink(missing_ok=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
