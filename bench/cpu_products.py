"""Times the CPU's matrix products for each instruction set of this processor, beside torch's.

    python bench/cpu_products.py [--threads 2] [--rounds 15] [--json FILE]

A figure is the time of the four products of a layer of SmolLM2-135M, each the least of all rounds: other work on the machine
makes a product longer, never shorter. The operations take turns. A round goes through six layers, so the weights come from
beyond the second-level cache, as in a step of the engine. torch uses AVX-512 where the processor has it. To see it as an
older processor would run it:

    ONEDNN_MAX_CPU_ISA=AVX2 MKL_ENABLE_INSTRUCTIONS=AVX2 ATEN_CPU_CAPABILITY=avx2 python bench/cpu_products.py
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

import torch

from pagefleet_kernels.cpu import Coded, Operations, library, operations

SHAPES = ((960, 576), (576, 576), (3072, 576), (576, 1536))  # n, k: qkv, output, gate and up, down
ROWS, LAYERS, CODES = (1, 16, 128), 6, 32
STORED = ("int8", "Q4", "float32")


def weight(stored: str, n: int, k: int) -> torch.Tensor | Coded:
    if stored != "Q4":
        return torch.randn(n, k)
    codes = torch.randint(0, 16, (n, k), dtype=torch.uint8)
    return Coded(codes, torch.randn(n, k // CODES), torch.randn(n, k // CODES), 4)


def measured(kinds: dict[str, Operations], stored: str, rounds: int) -> dict[int, dict[str, float]]:
    """Return milliseconds by the number of rows and the operations' name."""
    weights = [weight(stored, n, k) for _ in range(LAYERS) for n, k in SHAPES]
    made = {name: [kind.linear(one, None, stored == "int8") for one in weights] for name, kind in kinds.items()}
    best: dict[int, dict[str, float]] = {}
    for rows in ROWS:
        inputs = [torch.randn(rows, k) for _, k in SHAPES] * LAYERS
        least = {name: [float("inf")] * len(weights) for name in kinds}
        for _ in range(rounds):
            for name, products in made.items():
                for index, (product, x) in enumerate(zip(products, inputs, strict=True)):
                    begin = time.perf_counter()
                    product(x)
                    least[name][index] = min(least[name][index], time.perf_counter() - begin)
        best[rows] = {name: sum(seconds) * 1e3 / LAYERS for name, seconds in least.items()}
    return best


def main() -> int:
    parser = argparse.ArgumentParser(description="Time the CPU's matrix products by instruction set.")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--json", type=Path, metavar="FILE")
    flags = parser.parse_args()
    torch.set_num_threads(flags.threads)
    kinds = {name: operations(flags.threads, name) for name in (*(one.name for one in library.usable()), "reference")}
    found = {stored: measured(kinds, stored, flags.rounds) for stored in STORED}
    print("| weights | rows |", " | ".join(f"{name}, ms (reference / it)" for name in kinds), "|")
    print("|---|---|" + "---|" * len(kinds))
    for stored, by_rows in found.items():
        for rows, least in by_rows.items():
            cells = (f"{ms:.2f} ({least['reference'] / ms:.1f})" for ms in least.values())
            print(f"| {stored} | {rows} |", " | ".join(cells), "|")
    if flags.json:
        flags.json.write_text(json.dumps(found, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
