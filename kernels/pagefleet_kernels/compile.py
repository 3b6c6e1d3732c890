"""`python -m pagefleet_kernels.compile`: compiles the CPU operations into cpu/, once for each instruction set of this machine's
architecture. Needs g++ or clang++, and no torch.

Does nothing where a library is newer than its sources. The engine never compiles anything when it starts.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path

FOLDER = Path(__file__).with_name("cpu")
SOURCES = FOLDER / "source"
FLAGS = (
    "-std=c++17", "-O3", "-shared", "-fPIC", "-pthread", "-fvisibility=hidden", "-Wall", "-Wextra", "-Werror",
    "-fno-math-errno", "-ffp-contract=off", "-static-libstdc++", "-static-libgcc",
    "-Wno-maybe-uninitialized", "-Wno-uninitialized",  # GCC 12 raises them for its own intrinsics (its bug 105593)
)  # fmt: skip


@dataclass(frozen=True)
class Instructions:
    """A set of a processor's instructions."""

    name: str
    machine: str  # of `uname -m`
    needed: frozenset[str]  # as /proc/cpuinfo names them
    flags: tuple[str, ...]  # of the compiler

    @property
    def library(self) -> Path:
        return FOLDER / f"libpagefleet_cpu.{self.name}.so"


# The fastest first.
INSTRUCTIONS = (
    Instructions(
        "avx512", "x86_64", frozenset({"avx512f", "avx512bw", "avx512vl", "avx512dq", "avx512_vnni", "fma", "f16c"}),
        ("-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq", "-mavx512vnni", "-mfma", "-mf16c"),
    ),
    Instructions("avx2", "x86_64", frozenset({"avx2", "fma", "f16c"}), ("-mavx2", "-mfma", "-mf16c")),
    # Loads that are moved up before what is computed need registers, and there are none left.
    Instructions(
        "neon", "aarch64", frozenset({"asimd", "asimddp"}), ("-march=armv8.2-a+dotprod", "-fno-schedule-insns"),
    ),
)  # fmt: skip
# What a process can be told to use: auto takes native, the fastest compiled ones, and else torch's reference.
KINDS = ("auto", "native", "reference", *(one.name for one in INSTRUCTIONS))


def here() -> list[Instructions]:
    """Return the instruction sets of this machine's architecture, whether this processor has them or not."""
    machine = {"AMD64": "x86_64", "arm64": "aarch64"}.get(platform.machine(), platform.machine())
    return [one for one in INSTRUCTIONS if one.machine == machine]


@cache
def features() -> frozenset[str]:
    """Return what instructions this processor has, as /proc/cpuinfo names them; none where the system is not Linux."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return frozenset()
    return frozenset(next((line for line in lines if line.startswith(("flags", "Features"))), "").split())


def fresh(library: Path) -> bool:
    files = [*SOURCES.iterdir(), Path(__file__)]
    return library.is_file() and library.stat().st_mtime >= max(path.stat().st_mtime for path in files)


def compiler() -> str | None:
    names = [os.environ.get("CXX", ""), "g++", "clang++", "c++"]
    return next((path for name in names if name and (path := shutil.which(name))), None)


def build(program: str, instructions: Instructions, library: Path) -> None:
    """Raises CalledProcessError when the compiler fails."""
    # Into place at once: a process that has the old library open keeps it.
    unfinished = library.with_name(f".{library.name}.{os.getpid()}")
    command = [program, *FLAGS, *instructions.flags, "-o", str(unfinished), str(SOURCES / "ops.cpp")]
    try:
        subprocess.run(command, check=True)
        unfinished.replace(library)
    finally:
        unfinished.unlink(missing_ok=True)


def main() -> int:
    if not here():
        sys.stderr.write(f"CPU operations: there are no compiled ones for {platform.machine()}; torch's are used\n")
        return 0
    stale = [one for one in here() if not fresh(one.library)]
    if not stale:
        return 0
    program = compiler()
    if program is None:
        sys.stderr.write("CPU operations: no C++ compiler (g++); torch's are used, several times slower\n")
        return 0
    with ThreadPoolExecutor() as threads:
        list(threads.map(lambda one: build(program, one, one.library), stale))
    return 0


if __name__ == "__main__":
    sys.exit(main())
