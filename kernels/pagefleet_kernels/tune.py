"""`python -m pagefleet_kernels.tune [--folder DIR]`: measures launches on this GPU and writes its table (see tables.py).

Every entry is tried with other tiles, warps and stages on a shape it is used for, as replays of a CUDA graph. The
fastest is stored, or the default where no other is 3 % faster. Ends with status 2 where there is no GPU.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import torch

from pagefleet_kernels.attention.paged_attention import paged_attention_triton
from pagefleet_kernels.launch import plan
from pagefleet_kernels.launch.language import triton
from pagefleet_kernels.launch.tables import SHIPPED, Attention, Gemm, Tables, dumped, file_name, tables
from pagefleet_kernels.quantised.awq_gemm import awq_gemm_triton
from pagefleet_kernels.quantised.fp8_gemm import fp8_gemm_triton

Entry = TypeVar("Entry", Attention, Gemm)
GAIN = 0.97
GROUP, KV_HEADS, PAGE, INNER = 4, 8, 16, 4096
# Part of the table: sequences, new tokens of each, context.
PHASES = {"decode": (64, 1, 2048), "short": (16, 16, 2048), "long": (1, 4096, 4096)}


def attention_choices(entry: Attention) -> Iterator[Attention]:
    """Return other ways to cut the same rows. One that does not fit the GPU fails when it is tried."""
    for tile, warps, stages, resident in itertools.product((32, 64, 128), (4, 8), (3, 4, 5), (1, 2, 4)):
        yield replace(entry, tile=tile, warps=warps, stages=stages, resident=resident)


def gemm_choices(entry: Gemm) -> Iterator[Gemm]:
    for columns, depth, warps, stages, resident in itertools.product(
        (32, 64, 128, 256), (64, 128, 256), (4, 8), (3, 4, 5), (1, 2, 3)
    ):
        yield replace(entry, columns=columns, depth=depth, warps=warps, stages=stages, resident=resident)


def best(entry: Entry, choices: Iterator[Entry], seconds: Callable[[Entry], float | None]) -> Entry:
    """The fastest of the choices; `entry` itself unless one is clearly faster. `seconds` None: it cannot run."""
    usual = seconds(entry)
    fastest, least = entry, float("inf") if usual is None else usual * GAIN
    for choice in choices:
        taken = seconds(choice)
        if taken is not None and taken < least:
            fastest, least = choice, taken
    return fastest


@contextmanager
def in_force(changed: Tables) -> Iterator[None]:
    """Launches are planned by `changed`."""
    before = plan.tables
    plan.tables = lambda device: changed
    try:
        yield
    finally:
        plan.tables = before


def measured(changed: Tables, run: Callable[[], object]) -> float | None:
    """Seconds of one run, replayed; None when the GPU cannot hold the launch."""
    with in_force(changed):
        try:
            run()
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                run()
        except (triton.runtime.errors.OutOfResources, triton.compiler.errors.CompilationError, ValueError):
            return None
    taken: list[float] = []
    for _ in range(7):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        taken.append(begin.elapsed_time(end) / 1000)
    return statistics.median(taken)


def tuned(start: Tables, dims: tuple[int, ...] = (64, 128)) -> Tables:
    """The table of this GPU: attention for the head sizes of today's models, and all products."""
    made = start
    for part, (sequences, new, context) in PHASES.items():
        for dim in dims:
            run = _attention(sequences, new, context, dim)
            made = _with(made, part, dim, attention_choices, run)
    for rows in made.weight_only:
        made = _with(made, "weight_only", rows, gemm_choices, _awq(rows))
    for rows in made.fp8:
        made = _with(made, "fp8", rows, gemm_choices, _fp8(rows))
    return made


def _with(made: Tables, part: str, key: int, choices: Any, run: Callable[[], object]) -> Tables:
    table: Mapping[int, Any] = getattr(made, part)

    def changed(entry: Any) -> Tables:
        return replace(made, **{part: {**table, key: entry}})

    entry = best(table[key], choices(table[key]), lambda one: measured(changed(one), run))
    sys.stdout.write(f"{part:12}{key:4}  {entry}\n")
    sys.stdout.flush()
    return changed(entry)


def _attention(sequences: int, new: int, context: int, dim: int) -> Callable[[], object]:
    pages, wide = context // PAGE, {"device": "cuda", "dtype": torch.bfloat16}
    keys, values = (torch.randn(sequences * pages, PAGE, KV_HEADS, dim, **wide) for _ in range(2))  # type: ignore[call-overload]
    order = torch.randperm(sequences * pages, device="cuda").to(torch.int32).view(sequences, pages)
    q = torch.randn(sequences * new, GROUP * KV_HEADS, dim, **wide)  # type: ignore[call-overload]
    starts = torch.arange(sequences + 1, device="cuda", dtype=torch.int32) * new
    lengths = torch.full((sequences,), context, device="cuda", dtype=torch.int32)
    return lambda: paged_attention_triton(q, keys, values, order, starts, lengths, dim**-0.5, new)


def _awq(rows: int) -> Callable[[], object]:
    weight, zeros = (
        torch.randint(-(2**31), 2**31 - 1, (n, INNER // 8), dtype=torch.int32, device="cuda")
        for n in (INNER, INNER // 128)
    )
    scales = torch.rand(INNER // 128, INNER, device="cuda", dtype=torch.float16)
    x = torch.randn(rows, INNER, device="cuda", dtype=torch.float16)
    return lambda: awq_gemm_triton(x, weight, zeros, scales)


def _fp8(rows: int) -> Callable[[], object]:
    x, weight = (torch.randn(n, INNER, device="cuda").to(torch.float8_e4m3fn) for n in (rows, INNER))
    scales = torch.rand(rows, device="cuda"), torch.rand(INNER, device="cuda")
    return lambda: fp8_gemm_triton(x, scales[0], weight, scales[1], torch.bfloat16)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=SHIPPED, help="where the table goes")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        sys.stderr.write("There is no GPU here: nothing was tuned.\n")
        return 2
    options.folder.mkdir(parents=True, exist_ok=True)
    path = options.folder / file_name(torch.cuda.get_device_name())
    path.write_text(dumped(tuned(tables(torch.device("cuda", 0)))))
    sys.stdout.write(f"{path} written\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
