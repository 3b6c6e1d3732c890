"""Captures steps as CUDA graphs, the largest first, so that all of them live in one pool of memory."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import numpy as np
import torch

from pagefleet_engine.runner.device.steps.executor import Executor, Graph
from pagefleet_engine.runner.device.steps.sizes import Shape, packed, padded
from pagefleet_engine.runner.device.steps.step import DeviceStep, Numbers, none

NOTHING = DeviceStep(none(), none(), none(), none(), none())


class Capture:
    """Makes graphs of executors on this device. A capture computes padding only: it writes to no page.

    The graphs of several executors may share the memory, because the tokens of one are copied before the next is launched.
    """

    def __init__(self) -> None:
        self._pool, self._side = torch.cuda.graph_pool_handle(), _side()

    def decode(self, executor: Executor, sizes: Sequence[int]) -> dict[int, Graph]:
        """Return a graph for each size, ascending."""
        graphs = {size: self._captured(padded(NOTHING, size), executor.single) for size in sorted(sizes, reverse=True)}
        return dict(sorted(graphs.items()))

    def verify(self, executor: Executor, shapes: Sequence[Shape]) -> dict[Shape, Graph]:
        """Return a graph for each shape."""

        def computed(shape: Shape) -> Callable[[torch.Tensor], torch.Tensor]:
            return lambda numbers: executor.verify(numbers, shape)

        largest = sorted(shapes, key=lambda shape: shape[1], reverse=True)
        return {shape: self._captured(packed(NOTHING, shape), computed(shape)) for shape in largest}

    def _captured(self, padding: Numbers, compute: Callable[[torch.Tensor], torch.Tensor]) -> Graph:
        numbers, side = torch.from_numpy(np.ascontiguousarray(padding)).to("cuda"), self._side
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            compute(numbers)  # compiles what this size needs, outside of the capture
        torch.cuda.current_stream().wait_stream(side)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        # Thread-local: NCCL's own thread may ask for its events meanwhile.
        with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
            tokens = compute(numbers)

        def run(given: torch.Tensor) -> torch.Tensor:
            numbers.copy_(given)
            graph.replay()
            return tokens

        return run


@functools.cache
def _side() -> torch.cuda.Stream:
    """One stream for all captures: cuBLAS keeps a workspace of its own for each stream, and an engine that wakes captures again."""
    return torch.cuda.Stream()  # type: ignore[no-untyped-call]
