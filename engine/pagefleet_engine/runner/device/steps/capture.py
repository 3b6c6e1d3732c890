"""Captures decode steps as CUDA graphs, the largest first, so that all of them live in one pool of memory."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from pagefleet_engine.runner.device.steps.executor import Executor, Graph
from pagefleet_engine.runner.device.steps.sizes import padded
from pagefleet_engine.runner.device.steps.step import DeviceStep, none


def capture(executor: Executor, sizes: Sequence[int]) -> dict[int, Graph]:
    """Return a graph for each size, ascending. The capture computes padding only: it writes to no page."""
    graphs: dict[int, Graph] = {}
    pool = torch.cuda.graph_pool_handle()
    nothing = DeviceStep(none(), none(), none(), none(), none())
    side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    for size in sorted(sizes, reverse=True):
        columns = torch.from_numpy(np.ascontiguousarray(padded(nothing, size))).to("cuda")
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            executor.single(columns)  # compiles what this size needs, outside of the capture
        torch.cuda.current_stream().wait_stream(side)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        # Thread-local: NCCL's own thread may ask for its events meanwhile.
        with torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):
            tokens = executor.single(columns)
        graphs[size] = _replay(graph, columns, tokens)
    return dict(sorted(graphs.items()))


def _replay(graph: torch.cuda.CUDAGraph, columns: torch.Tensor, tokens: torch.Tensor) -> Graph:
    def run(given: torch.Tensor) -> torch.Tensor:
        columns.copy_(given)
        graph.replay()
        return tokens

    return run
