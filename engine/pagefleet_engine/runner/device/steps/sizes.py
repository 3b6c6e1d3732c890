"""Chooses the sizes of decode graphs, and of graphs that verify draft tokens, and pads a step to one of them. Pure.

Small batches have graphs of their own, as padding would multiply their work; from 16 on each costs one weight read
whatever its rows are, so that wide steps between sizes waste little.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence

import numpy as np

from pagefleet_engine.runner.device.steps.step import DeviceStep, Numbers

SMALL = (1, 2, 4, 8, 16, 32, 64)
STRIDE = 32
MAX_VERIFIED = 64  # in larger batches draft tokens seldom pay, and launches no longer matter
MAX_SIZE = 512  # larger batches are bound by their attention; launches no longer matter

Shape = tuple[int, int]  # sequences, and their tokens together


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


def verify_shapes(max_num_seqs: int, drafts: int) -> tuple[Shape, ...]:
    """Return the shapes in which up to `drafts` draft tokens of each sequence are verified: for all of them, and for one.

    None has more tokens than the largest decode graph may have: the logits of its tokens fill the same memory.
    """
    sizes, widths = graph_sizes(min(max_num_seqs, MAX_VERIFIED)), sorted({2, drafts + 1})
    return tuple((size, size * width) for size in sizes for width in widths if size * width <= MAX_SIZE)


def verify_shape(sequences: int, tokens: int, shapes: Iterable[Shape]) -> Shape | None:
    """The shape with the fewest tokens that holds a step; None: no graph does."""
    fitting = [shape for shape in shapes if shape[0] >= sequences and shape[1] >= tokens]
    return min(fitting, key=lambda shape: (shape[1], shape[0]), default=None)


def packed_sizes(shape: Shape) -> list[int]:
    """Return the lengths of the parts of `packed`: tokens, the sequence of each, seats, starts, query starts."""
    sequences, tokens = shape
    return [tokens, tokens, sequences + 1, sequences + 1, sequences + 2]


def packed(step: DeviceStep, shape: Shape) -> Numbers:
    """A step that `verifies` as one row of numbers, padded. The last sequence is padding, on seat -1, and has all further
    tokens: its length is 0, so that they read and write no page.
    """
    sequences, tokens = shape
    count, last = len(step.seats), len(step.tokens)
    own, owners, seats, starts, first = (np.zeros(size, np.int32) for size in packed_sizes(shape))
    own[:last], owners[:] = step.tokens, sequences
    owners[:last] = np.repeat(np.arange(count, dtype=np.int32), step.counts)
    seats[:], seats[:count] = -1, step.seats
    starts[:count] = step.starts
    first[:], first[: count + 1], first[-1] = last, step.query_starts, tokens
    return np.concatenate((own, owners, seats, starts, first))
