"""Chooses the batch sizes of decode graphs, and pads a step to one of them. Pure.

Small batches have graphs of their own, as padding would multiply their work; from 16 on each costs one weight read
whatever its rows are, so that wide steps between sizes waste little.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

import numpy as np

from pagefleet_engine.runner.device.steps.step import DeviceStep, Numbers

SMALL = (1, 2, 4, 8, 16, 32, 64)
STRIDE = 32
MAX_SIZE = 512  # larger batches are bound by their attention; launches no longer matter


def graph_sizes(max_num_seqs: int) -> tuple[int, ...]:
    """Return ascending sizes; the last one holds every step of up to min(max_num_seqs, MAX_SIZE) sequences."""
    most = min(max_num_seqs, MAX_SIZE)
    sizes = [size for size in (*SMALL, *range(SMALL[-1] + STRIDE, most, STRIDE)) if size < most]
    return (*sizes, most)


def graph_size(count: int, sizes: Sequence[int]) -> int | None:
    """The smallest of the ascending sizes that holds `count` sequences; None: no graph does."""
    place = bisect_left(sizes, count)
    return sizes[place] if place < len(sizes) else None


def padded(step: DeviceStep, size: int) -> Numbers:
    """[3, size]: tokens, seats, starts of a `single` step, then padding: token 0 on seat -1, whose slot is -1 and whose
    length is 0, so that it reads and writes no page.
    """
    columns = np.zeros((3, size), dtype=np.int32)
    columns[1] = -1
    count = len(step.seats)
    columns[0, :count], columns[1, :count], columns[2, :count] = step.tokens, step.seats, step.starts
    return columns
