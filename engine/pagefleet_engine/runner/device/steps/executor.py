"""Runs steps on one device: forward pass and sampling, through a decode graph where one fits. Launches, never waits."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch

from pagefleet_engine.model.served import Tap
from pagefleet_engine.runner.common.prompts import LOGIT_ROWS
from pagefleet_engine.runner.device.model.model import Changes, DeviceDecoder, Layout, Pool
from pagefleet_engine.runner.device.steps.preparation import Preparation
from pagefleet_engine.runner.device.steps.sizes import Shape, graph_size, packed, packed_sizes, padded, verify_shape
from pagefleet_engine.runner.device.steps.state import State
from pagefleet_engine.runner.device.steps.step import DeviceStep
from pagefleet_kernels.kernels import Kernels


class InFlightStep:
    """The tokens of a launched step. The device goes on while `tokens` waits for them."""

    def __init__(self, tokens: torch.Tensor) -> None:
        self._event: torch.cuda.Event | None = None
        self._tokens = tokens
        if tokens.is_cuda:
            self._tokens = torch.empty(tokens.shape, dtype=tokens.dtype, pin_memory=True)
            self._tokens.copy_(tokens, non_blocking=True)
            self._event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._event.record()

    def tokens(self) -> list[int]:
        if self._event is not None:
            self._event.synchronize()
        tokens: list[int] = self._tokens.tolist()
        return tokens


@dataclass(frozen=True)
class StepLogits:
    """The result of a step whose tokens the host chooses: last states [n, hidden], and for each
    token that is sampled logits, its row of the state, and the position to come.

    prompt_logits: pieces [at most LOGIT_ROWS, vocab] on the CPU of each entry of the step's `prompt_rows`, computed one by one
    as they are taken: all of them would have no room beside the pages. Every rank takes all.
    """

    hidden: torch.Tensor
    logits: torch.Tensor
    rows: torch.Tensor
    positions: torch.Tensor
    prompt_logits: Iterator[torch.Tensor]


Graph = Callable[[torch.Tensor], torch.Tensor]


class Executor:
    """Computes the steps of one model, in its pool. `prepare` has the state, which the draft model's executor shares.

    tap: makes what keeps states of a pass, from the slots of its tokens.
    `graphs` map ascending sizes to captured decode steps: from columns [3, size] on the device to tokens [size].
    `verifying` maps shapes (sequences, tokens) to captured steps of draft tokens: from the numbers of `packed` to tokens.
    """

    def __init__(
        self, model: DeviceDecoder, pool: Pool, prepare: Preparation, kernels: Kernels, max_model_len: int,
        tap: Callable[[torch.Tensor], Tap] | None = None,
    ) -> None:  # fmt: skip
        self._tap = tap
        self.model, self.pool, self.state = model, pool, prepare.state
        self._prepare, self._kernels, self._longest = prepare, kernels, max_model_len
        self.graphs: dict[int, Graph] = {}
        self.verifying: dict[Shape, Graph] = {}

    def launch(self, step: DeviceStep, changes: Changes | None = None) -> InFlightStep:
        """Compute and sample; the tokens come in the order of `owners`, those of draft tokens before the last one's."""
        self._prepare(step)
        tokens = self._replayed(step) if changes is None else None
        if tokens is None:
            result = self._forward(step, changes)
            draw = self.state.drawn if step.drafted else self.state.draw
            tokens = draw(result.logits, result.rows, result.positions)
        return InFlightStep(tokens)

    def compute(self, step: DeviceStep, changes: Changes | None = None) -> StepLogits:
        """Compute without sampling."""
        self._prepare(step)
        return self._forward(step, changes)

    def single(self, columns: torch.Tensor) -> torch.Tensor:
        """Compute the decode step of columns [3, size] (tokens, seats, starts), which graphs capture. Return tokens [size]."""
        size, state = columns.shape[1], self.state
        starts = torch.arange(size + 1, dtype=torch.int32, device=columns.device)
        rows, layout = laid_out(state, self._kernels, columns[0], columns[1], columns[2], starts, 1, self._longest)
        logits = self.model.logits(self._states(layout))
        return state.draw(logits, rows, layout.kv_lens.long())

    def verify(self, numbers: torch.Tensor, shape: Shape) -> torch.Tensor:
        """Compute the step of the numbers of `packed`, which graphs capture. Return a token for each of its tokens."""
        sequences, tokens = shape
        own, owners, seats, starts, first = torch.split(numbers, packed_sizes(shape))
        # The longest query is at least two; attention's launch holds any split of the tokens, and only its plan follows from it.
        longest = -(-tokens // sequences)
        rows, layout = laid_out(self.state, self._kernels, own, seats, starts, first, longest, self._longest)
        logits = self.model.logits(self._states(layout))
        return self.state.drawn(logits, rows.index_select(0, owners), layout.positions + 1)

    def _replayed(self, step: DeviceStep) -> torch.Tensor | None:
        """Return the tokens of a graph that holds the step, None where none does."""
        if step.single and (size := graph_size(len(step.seats), tuple(self.graphs))) is not None:
            return self.graphs[size](self.state.sent(padded(step, size)))[: len(step.seats)]
        if step.verifies and (shape := verify_shape(len(step.seats), len(step.tokens), self.verifying)) is not None:
            return self.verifying[shape](self.state.sent(packed(step, shape)))[: len(step.tokens)]
        return None

    def _forward(self, step: DeviceStep, changes: Changes | None) -> StepLogits:
        state = self.state
        rows, layout = lay_out(state, self._kernels, step)
        hidden = self._states(layout, changes)
        tokens, owners = (state.sent(numbers).long() for numbers in step.sampled)
        logits = self.model.logits(hidden.index_select(0, tokens))
        prompt_logits = (
            self.model.logits(piece).float().cpu()
            for begin, count in step.prompt_rows.tolist()
            for piece in torch.split(hidden[begin : begin + count], LOGIT_ROWS)
        )
        positions = layout.positions.index_select(0, tokens) + 1
        return StepLogits(hidden, logits, rows.index_select(0, owners), positions, prompt_logits)

    def _states(self, layout: Layout, changes: Changes | None = None) -> torch.Tensor:
        tap = None if self._tap is None else self._tap(layout.slots)
        return self.model.forward(layout, self.pool, changes, tap)


def lay_out(state: State, kernels: Kernels, step: DeviceStep) -> tuple[torch.Tensor, Layout]:
    """Return the rows of the state [sequences] of a step, and its layout. Copies its numbers to the device."""
    return laid_out(
        state, kernels, state.sent(step.tokens), state.sent(step.seats), state.sent(step.starts),
        state.sent(step.query_starts), int(step.counts.max()), int((step.starts + step.counts).max()),
    )  # fmt: skip


def laid_out(
    state: State, kernels: Kernels, tokens: torch.Tensor, seats: torch.Tensor, starts: torch.Tensor,
    query_starts: torch.Tensor, longest_query: int, longest_kv: int,
) -> tuple[torch.Tensor, Layout]:  # fmt: skip
    """As `lay_out`, of numbers that lie on the device: what graphs capture."""
    rows = state.seated(seats)
    state.computed.index_copy_(0, rows, starts)
    made = kernels.build_inputs(
        tokens, query_starts, seats, state.computed, state.last_tokens, state.tables, state.page_size
    )
    tables = state.tables.index_select(0, rows)
    return rows, Layout(
        made.tokens, made.positions, made.slots, made.kv_lens, query_starts, tables, longest_query, longest_kv
    )
