"""Every kernel beside the GPU's own limits: `python bench/kernels_gpu.py [--quick] [--check]`, under eight minutes.

Measures the copy bandwidth and the matmul rate first, then each kernel: correct against its reference on a smaller
case of the same kind, then timed, as a ratio of those. Peers (torch SDPA, cuBLAS) run in the same process. Writes
bench/results/<gpu>.json; --check ends with status 1 if a ratio misses its figure or a result is wrong; status 2: no GPU.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from gpubench.measure import Report, error, limits, needs_gpu, seconds
from torch.nn import functional

from pagefleet_kernels.attention.page_copy import page_copy_triton
from pagefleet_kernels.attention.paged_attention import paged_attention_reference, paged_attention_triton
from pagefleet_kernels.attention.rope_write import rope_write_reference, rope_write_triton
from pagefleet_kernels.gated import gated_reference, gated_triton
from pagefleet_kernels.quantised.awq_gemm import awq_gemm_reference, awq_gemm_triton
from pagefleet_kernels.quantised.fp8_gemm import fp8_gemm_reference, fp8_gemm_triton
from pagefleet_kernels.quantised.fp8_quantise import fp8_quantise_reference, fp8_quantise_triton
from pagefleet_kernels.rms_norm import rms_norm_reference, rms_norm_triton
from pagefleet_kernels.sample import sample_reference, sample_triton

BF16, FP8 = torch.bfloat16, torch.float8_e4m3fn
HEADS, KV_HEADS, DIM, PAGE = 32, 8, 128, 16  # Llama-3-8B's
HIDDEN, INNER, VOCABULARY = 4096, 14336, 128_256
COLD = 512 * 2**20  # bytes of inputs to rotate through, beyond any L2
REPLAYS = 9


def timed(make: Callable[[], tuple[Any, ...]], run: Callable[..., object], bytes_: float) -> float:
    """Seconds of run(*make()), over as many made inputs as it takes to be beyond the L2."""
    sets = [make() for _ in range(max(1, min(32, int(COLD / bytes_))))]
    return seconds([partial(run, *given) for given in sets], REPLAYS)


def attention_case(sequences: int, new: int, context: int, dtype: torch.dtype = BF16) -> tuple[Any, ...]:
    pages = -(-context // PAGE)
    tables = torch.randperm(sequences * pages, device="cuda").to(torch.int32).view(sequences, pages)
    keys, values = (
        torch.randn(sequences * pages, PAGE, KV_HEADS, DIM, device="cuda", dtype=BF16).to(dtype) for _ in range(2)
    )
    starts = torch.arange(sequences + 1, device="cuda", dtype=torch.int32) * new
    lengths = torch.full((sequences,), context, device="cuda", dtype=torch.int32)
    q = torch.randn(sequences * new, HEADS, DIM, device="cuda", dtype=BF16)
    return q, keys, values, tables, starts, lengths, DIM**-0.5, new


def attention(report: Report, quick: bool) -> None:
    for dtype in (BF16, FP8):
        small = [attention_case(3, new, 1328, dtype) for new in (1, 129)]
        wrong = [error(paged_attention_triton(*one), paged_attention_reference(*one)) for one in small]
        kind = "fp8" if dtype is FP8 else "bf16"
        for batch in (64,) if quick else (1, 16, 64, 128, 256):
            for context in (1024,) if quick else (1024, 4096, 8192):
                bytes_ = 2 * batch * context * KV_HEADS * DIM * dtype.itemsize + 4 * batch * HEADS * DIM
                taken = timed(partial(attention_case, batch, 1, context, dtype), paged_attention_triton, bytes_)
                goal = 0.85 if batch >= 64 and dtype is BF16 else 0.0
                report.add(f"decode {kind} batch {batch} context {context}", taken, bytes_, error=wrong[0], target=goal)
        for length in (2048,) if quick else (2048, 8192):
            given = attention_case(1, length, length, dtype)
            flops = 2.0 * length * length * HEADS * DIM
            taken = seconds([partial(paged_attention_triton, *given)], REPLAYS)
            q, k, v = (torch.randn(1, HEADS, length, DIM, device="cuda", dtype=BF16) for _ in range(3))
            peer = seconds([partial(functional.scaled_dot_product_attention, q, k, v, is_causal=True)], REPLAYS)
            goal = 0.5 if length == 8192 and dtype is BF16 else 0.0
            report.add(f"prefill {kind} {length}", taken, flops=flops, error=wrong[1], target=goal,
                       peer=f"torch SDPA bf16 {flops / peer / 1e12:.0f} TFLOP/s")  # fmt: skip


def elementwise(report: Report, quick: bool) -> None:
    rows = 2048 if quick else 16384
    wide: dict[str, Any] = {"device": "cuda", "dtype": BF16}

    def normed(count: int) -> tuple[Any, ...]:
        x, residual = (torch.randn(count, HIDDEN, **wide) for _ in range(2))
        return x, torch.rand(HIDDEN, **wide), 1e-5, residual

    def gated(count: int) -> tuple[Any, ...]:
        return (torch.randn(count, 2 * INNER, **wide),)

    def plain(count: int) -> tuple[Any, ...]:
        return (torch.randn(count, HIDDEN, **wide),)

    def roped(count: int) -> tuple[Any, ...]:
        q, k, v = torch.randn(count, HEADS + 2 * KV_HEADS, DIM, **wide).split((HEADS, KV_HEADS, KV_HEADS), 1)
        angles = torch.rand(8192, DIM // 2, device="cuda")
        slots = torch.randperm(count, device="cuda").to(torch.int32)
        caches = [torch.empty(count, KV_HEADS, DIM, **wide) for _ in range(2)]
        return q, k, v, angles.cos(), angles.sin(), torch.arange(count, device="cuda") % 8192, slots, *caches

    cases: list[tuple[str, Callable[..., Any], Callable[..., Any], Callable[[int], tuple[Any, ...]], float]] = [
        ("rms_norm + residual", rms_norm_triton, rms_norm_reference, normed, 8 * HIDDEN),
        ("gated", gated_triton, gated_reference, gated, 6 * INNER),
        ("rope + page write", rope_write_triton, rope_write_reference, roped, DIM * (4 * HEADS + 8 * KV_HEADS + 4)),
        ("fp8 quantise per token", fp8_quantise_triton, fp8_quantise_reference, plain, 3 * HIDDEN),
    ]
    for name, run, reference, make, row_bytes in cases:
        given = make(77)
        answered, expected = run(*given), reference(*given)
        first, other = (x[0] if isinstance(x, tuple) else x for x in (answered, expected))
        taken = timed(partial(make, rows), run, rows * row_bytes)
        report.add(f"{name} [{rows}]", taken, rows * row_bytes, error=error(first.float(), other.float()), target=0.85)
    pool = torch.randn(4096 if quick else 16384, PAGE, KV_HEADS, DIM, **wide)
    half = len(pool) // 2
    order = torch.randperm(len(pool), device="cuda")
    copied = seconds([lambda: page_copy_triton(pool, order[:half], pool, order[half:])], REPLAYS)
    wrong = error(pool[order[half:]], pool[order[:half]])
    report.add("page copy", copied, 2.0 * half * pool[0].nbytes, error=wrong, target=0.85)


def products(report: Report, quick: bool) -> None:
    columns = HIDDEN if quick else INNER

    def unquantised(rows: int) -> tuple[Any, ...]:
        x, weight = (torch.randn(n, HIDDEN, device="cuda", dtype=BF16) for n in (rows, columns))
        return x, weight

    def awq(rows: int) -> tuple[Any, ...]:
        words = [torch.randint(-(2**31), 2**31 - 1, (n, columns // 8), dtype=torch.int32, device="cuda")
                 for n in (HIDDEN, HIDDEN // 128)]  # fmt: skip
        scales = torch.rand(HIDDEN // 128, columns, device="cuda", dtype=torch.float16) * 0.01
        return torch.randn(rows, HIDDEN, device="cuda", dtype=torch.float16), *words, scales

    def fp8(rows: int) -> tuple[Any, ...]:
        x, weight = (torch.randn(n, HIDDEN, device="cuda").to(FP8) for n in (rows, columns))
        return x, torch.rand(rows, device="cuda"), weight, torch.rand(columns, device="cuda"), BF16

    def fp8_scaled(rows: int) -> tuple[Any, ...]:
        x, x_scales, weight, scales, _ = fp8(max(16, rows))  # it takes no fewer rows
        return x, weight.t(), x_scales[:, None], scales[None]

    def scaled_mm(x: Any, weight: Any, x_scales: Any, scales: Any) -> torch.Tensor:
        return torch._scaled_mm(x, weight, scale_a=x_scales, scale_b=scales, out_dtype=BF16)

    cases: list[tuple[str, Callable[..., Any], Callable[..., Any], Callable[[int], tuple[Any, ...]], float]] = [
        ("awq", awq_gemm_triton, awq_gemm_reference, awq, HIDDEN * columns * (0.5 + 2.5 / 128)),
        ("fp8 W8A8", fp8_gemm_triton, fp8_gemm_reference, fp8, HIDDEN * columns),
    ]
    for name, run, reference, make, weight_bytes in cases:
        for rows in (1, 64) if quick else (1, 16, 64, 2048):
            given = make(rows)
            wrong = error(run(*given), reference(*given))
            bytes_ = weight_bytes + rows * (HIDDEN + columns) * 2
            taken = timed(partial(make, rows), run, bytes_)
            dense = timed(partial(unquantised, rows), functional.linear, 2.0 * HIDDEN * columns)
            peer = f"cuBLAS bf16 {dense * 1e6:.1f} us"
            if run is fp8_gemm_triton:
                scaled = timed(partial(fp8_scaled, rows), scaled_mm, weight_bytes)
                peer += f", torch._scaled_mm {scaled * 1e6:.1f} us"
            flops = 2.0 * rows * HIDDEN * columns if rows > 256 else 0.0  # of bf16's rate, which is half of FP8's
            report.add(f"{name} {rows} x {HIDDEN} x {columns}", taken, bytes_, flops, error=wrong, peer=peer)


def sampling_case(batch: int, k: int, p: float) -> tuple[Any, ...]:
    def every(value: float, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        return torch.full((batch,), value, dtype=dtype, device="cuda")

    logits = torch.randn(batch, VOCABULARY, device="cuda") * 3
    positions = torch.arange(batch, device="cuda")
    return logits, every(0.8), every(k, torch.int32), every(p), every(0.0), every(7, torch.int64), positions


def sampling(report: Report, quick: bool) -> None:
    for batch in (64,) if quick else (1, 64, 256):
        for k, p in ((0, 1.0), (50, 0.9)):
            given = sampling_case(256, k, p)
            other = (sample_triton(*given) != sample_reference(*given)).float().mean()  # of the rows
            bytes_ = 4.0 * batch * VOCABULARY
            taken = timed(partial(sampling_case, batch, k, p), sample_triton, bytes_)
            report.add(f"sample batch {batch} top-k {k} top-p {p}", taken, bytes_, error=float(other))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer and smaller cases, about a minute")
    parser.add_argument(
        "--check", action="store_true", help="status 1 if a ratio misses its figure or a result is wrong"
    )
    options = parser.parse_args()
    needs_gpu()
    begun = time.monotonic()
    torch.manual_seed(0)
    report = limits(options.quick)
    print("columns: time, rate, ratio of the limit, target ratio, relative error against the reference, a peer")
    for part in (attention, elementwise, products, sampling):
        part(report, options.quick)
        torch.cuda.empty_cache()
        written = report.write()
    print(f"{written} written after {time.monotonic() - begun:.0f} s")
    missed = [row.name for row in report.rows if not row.met]
    if missed:
        print("missed: " + "; ".join(missed))
    raise SystemExit(1 if options.check and missed else 0)


if __name__ == "__main__":
    main()
