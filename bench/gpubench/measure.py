"""Shared by the GPU benchmarks: the device's own limits, timing through CUDA graphs, and the table of results.

A case is timed as replays of a graph, so that launches cost what they cost in the engine, over inputs several times
the L2 or rotated through copies; the median of several replays counts. Byte and flop counts are the floors of the
kernels' docstrings: each input read once, each output written once.
"""

from __future__ import annotations

import json
import re
import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch

WRONG = 0.02  # a relative error of the whole tensor that no rounding of bf16 or of sums of FP8 products explains
RESULTS = Path(__file__).resolve().parents[1] / "results"


def needs_gpu() -> None:
    """Ends the program with status 2 where there is no GPU: nothing can be measured, and nothing is written."""
    if not torch.cuda.is_available():
        sys.stderr.write("There is no GPU here (torch.cuda.is_available() is false): nothing was measured.\n")
        raise SystemExit(2)


def seconds(calls: Sequence[Callable[[], object]], replays: int) -> float:
    """Measure the seconds of one call. The calls do the same on different memory; they are captured once and replayed."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for call in calls:
            call()
    side.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in calls:
            call()
    graph.replay()
    taken = []
    for _ in range(replays):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        taken.append(begin.elapsed_time(end) / 1000 / len(calls))
    return float(statistics.median(taken))


@dataclass(frozen=True)
class Row:
    """ratio: of the copy bandwidth for a case bound by bytes, of the matmul rate for one bound by flops."""

    name: str
    microseconds: float
    rate: float
    unit: str
    ratio: float
    error: float  # ||out - reference|| / ||reference||, -1 where there is nothing to compare
    target: float  # the ratio that the issue asks for, 0 where it asks for none
    peer: str = ""

    @property
    def met(self) -> bool:
        return self.ratio >= self.target and self.error < WRONG


@dataclass
class Report:
    gpu: str
    copy_bandwidth: float  # bytes/s, read plus written
    matmul_rate: float  # bf16 flop/s
    rows: list[Row] = field(default_factory=list)

    def add(
        self, name: str, taken: float, bytes_: float = 0.0, flops: float = 0.0, error: float = -1.0,
        target: float = 0.0, peer: str = "",
    ) -> None:  # fmt: skip
        """Add a case. With flops its limit is the matmul rate, otherwise the copy bandwidth."""
        if flops:
            row = Row(name, taken * 1e6, flops / taken / 1e12, "TFLOP/s", flops / taken / self.matmul_rate, error,
                      target, peer)  # fmt: skip
        else:
            row = Row(name, taken * 1e6, bytes_ / taken / 1e9, "GB/s", bytes_ / taken / self.copy_bandwidth, error,
                      target, peer)  # fmt: skip
        self.rows.append(row)
        goal = f"{row.target:4.0%}" if row.target else "    "
        wrong = f"{row.error:8.1e}" if row.error >= 0 else "        "
        print(f"{row.name:44}{row.microseconds:10.1f} us {row.rate:8.1f} {row.unit:7} {row.ratio:6.1%} {goal} {wrong}"
              f"  {row.peer}", flush=True)  # fmt: skip

    def write(self) -> Path:
        return write_results(**asdict(self))


def write_results(gpu: str, **sections: object) -> Path:
    """Write sections to the GPU's file; sections of other benchmarks stay."""
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / (re.sub(r"[^a-z0-9]+", "-", gpu.lower()).strip("-") + ".json")
    stored = json.loads(path.read_text()) if path.is_file() else {}
    path.write_text(json.dumps(stored | sections | {"gpu": gpu, "torch": torch.__version__}, indent=2) + "\n")
    return path


def limits(quick: bool) -> Report:
    """Measures the device first: the fastest of several passes over memory, and a large bf16 product of random numbers."""
    copied = max(_copied(size * 2**20) for size in ((256,) if quick else (256, 1024)))
    side = 8192
    a, b = (torch.randn(side, side, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    multiplied = 2 * side**3 / seconds([lambda: a @ b], 10)
    report = Report(torch.cuda.get_device_name(), copied, multiplied)
    print(f"{report.gpu}: copies {copied / 1e12:.2f} TB/s, bf16 matmul {multiplied / 1e12:.0f} TFLOP/s")
    return report


def error(answered: torch.Tensor, expected: torch.Tensor) -> float:
    wide, other = answered.double(), expected.double()
    return float((wide - other).norm() / other.norm().clamp_min(1e-30))


def _copied(size: int) -> float:
    """Bytes a second, read plus written, of the faster of two passes: the driver's copy, which was the slower one for a GiB
    on an H200 (2.8 TB/s of 4.4), and a kernel's."""
    source = torch.randint(0, 255, (size,), dtype=torch.uint8, device="cuda").view(torch.int32)
    target = torch.empty_like(source)
    return (
        2
        * size
        / min(seconds([lambda: target.copy_(source)], 10), seconds([lambda: torch.add(source, 1, out=target)], 10))
    )
