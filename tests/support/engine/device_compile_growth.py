"""Serves random steps after those that an engine computes before it serves, and prints the kernels that only then compile.

Run as a program it works like kernels_compile.py: launches are compiled and not run. It prints JSON: how many kernels the first
steps compile, and the names of later ones.
"""

from __future__ import annotations

import json
import random
import sys
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from support.engine.device_compile_cases import LLAMA, MAX_POSITIONS, QWEN, executor
from support.engine.kernels_compile import Absent
from triton.runtime import driver
from triton.runtime.jit import JITFunction

from pagefleet_engine.core.requests import EngineConfig
from pagefleet_engine.model.checkpoint.config import ModelConfig
from pagefleet_engine.runner.device.steps.executor import Executor
from pagefleet_engine.runner.device.steps.memory import first_steps
from pagefleet_engine.runner.device.steps.sizes import graph_sizes, padded
from pagefleet_engine.runner.device.steps.step import DeviceStep
from pagefleet_kernels.launch import plan

SEQUENCES, TOKENS, STEPS = 64, 2048, 60
CONFIG = EngineConfig("random", max_num_seqs=SEQUENCES, max_num_batched_tokens=TOKENS, max_chunk_tokens=1024)
NARROW = {"hidden_size": 256, "intermediate_size": 256}  # for speed: nothing of attention follows from them


def random_step(chosen: random.Random) -> DeviceStep:
    """A step as a scheduler makes them: single tokens, chunks of prompts and what a cached prefix left of one."""
    counts, left = list[int](), TOKENS
    for _ in range(chosen.randint(1, SEQUENCES)):
        count = min(
            left, chosen.choice((1, 1, chosen.randint(2, 16), chosen.randint(17, 80), chosen.randint(81, 1024)))
        )
        if count:
            counts.append(count)
            left -= count
    starts = [chosen.choice((0, chosen.randrange(MAX_POSITIONS - count))) for count in counts]
    seats = np.arange(len(counts), dtype=np.int32)
    return DeviceStep(
        np.zeros(sum(counts), np.int32), np.array(counts, np.int32), np.array(starts, np.int32), seats, seats
    )


def serve(made: Executor, model: ModelConfig) -> None:
    for size in graph_sizes(SEQUENCES):
        nobody = np.empty(0, np.int32)
        made.single(torch.from_numpy(padded(DeviceStep(nobody, nobody, nobody, nobody, nobody), size)))
    for step in first_steps(CONFIG, MAX_POSITIONS, model):
        made.launch(step)


@torch.inference_mode()
def main() -> None:
    launch, seen, answers = JITFunction.run, set[tuple[str, str]](), dict[str, Any]()

    def record(self: Any, *arguments: Any, warmup: bool = False, **options: Any) -> Any:
        compiled = launch(self, *arguments, warmup=True, **options)
        seen.add((self.__name__, compiled.hash))
        return compiled

    driver.set_active(Absent())
    JITFunction.run = record
    plan.CPU_PROCESSORS = 132  # an H200's: the splits of its launches
    for name, model in (("llama", replace(LLAMA, **NARROW)), ("qwen3", replace(QWEN, **NARROW))):
        made = executor(model, False, torch.bfloat16)
        serve(made, model)
        before, chosen = set(seen), random.Random(5)
        for _ in range(STEPS):
            made.launch(random_step(chosen))
        answers[name] = {"compiled": len(before), "later": sorted(kernel for kernel, _ in seen - before)}
    json.dump(answers, sys.stdout)


if __name__ == "__main__":
    main()
