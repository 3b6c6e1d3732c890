"""Protects that the compiled CPU operations give the same bits for every instruction set: for those that this processor has, and
for ARM's NEON, compiled by a cross compiler and run by qemu's emulation of a processor."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from support.engine.compiled_operations import EACH_INSTRUCTIONS, NEEDS_COMPILED
from support.engine.every_operation import results
from support.engine.foreign import DRIVER, ForeignLibrary, Memory

from pagefleet_kernels.compile import INSTRUCTIONS, build, here
from pagefleet_kernels.cpu import native

pytestmark = NEEDS_COMPILED
NEON = next(one for one in INSTRUCTIONS if one.name == "neon")
COMPILER, EMULATOR, LIBRARIES = "aarch64-linux-gnu-g++", "qemu-aarch64", "/usr/aarch64-linux-gnu"


@pytest.fixture(scope="module")
def fastest() -> dict[str, torch.Tensor]:
    torch.set_num_threads(1)
    return results(native.Native(2))


def assert_same_bits(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    assert found.keys() == expected.keys()
    assert [name for name in found if not torch.equal(found[name], expected[name])] == []


@pytest.mark.parametrize("instructions", EACH_INSTRUCTIONS)
def test_this_processor_s_instruction_sets_give_the_same_bits(
    instructions: str, fastest: dict[str, torch.Tensor]
) -> None:
    assert_same_bits(results(native.Native(2, instructions)), fastest)


@pytest.fixture
def emulated(tmp_path: Path) -> Iterator[tuple[ForeignLibrary, Memory]]:
    if NEON in here():
        pytest.skip("this processor runs NEON itself: the other tests here do")
    if absent := [program for program in (COMPILER, EMULATOR) if shutil.which(program) is None]:
        reason = f"{' and '.join(absent)} not found (make cross): untested are the CPU operations for ARM"
        pytest.fail(reason) if os.environ.get("CI") else pytest.skip(reason)
    operations, calls = tmp_path / NEON.library.name, tmp_path / "calls"
    build(COMPILER, NEON, operations)
    subprocess.run([COMPILER, "-std=c++17", "-O1", "-Wall", "-Wextra", "-Werror", "-o", calls, DRIVER], check=True)
    memory = Memory()
    foreign = ForeignLibrary([EMULATOR, "-L", LIBRARIES, str(calls), str(operations)], memory)
    try:
        yield foreign, memory
    finally:
        foreign.close()


def test_neon_gives_the_same_bits(emulated: tuple[ForeignLibrary, Memory], fastest: dict[str, torch.Tensor]) -> None:
    foreign, memory = emulated
    with memory:
        found = results(native.Native(2, library=foreign))
    assert_same_bits(found, fastest)
