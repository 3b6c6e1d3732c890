"""Runs steps on one device: forward pass and sampling, through a decode graph where one fits. Launches, never waits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from pagefleet_engine.runner.device.model.model import Changes, DeviceDecoder, Layout, Pool
from pagefleet_engine.runner.device.steps.host_pages import HostPages
from pagefleet_engine.runner.device.steps.sizes import graph_size, padded
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
    """The result of a step whose tokens the host chooses: last states [n, hidden], and for each that samples logits and position.

    prompt_logits: [tokens, vocab] on the CPU, for each entry of the step's `prompt_rows`.
    """

    hidden: torch.Tensor
    logits: torch.Tensor
    rows: torch.Tensor
    positions: torch.Tensor
    prompt_logits: tuple[torch.Tensor, ...]


Graph = Callable[[torch.Tensor], torch.Tensor]


class Executor:
    """`graphs` map ascending sizes to captured decode steps: from columns [3, size] on the device to tokens [size]."""

    def __init__(
        self,
        model: DeviceDecoder,
        pool: Pool,
        state: State,
        kernels: Kernels,
        max_model_len: int,
        host: HostPages | None,
    ) -> None:
        self.model, self.pool, self.state = model, pool, state
        self._kernels, self._longest, self._host = kernels, max_model_len, host
        self.graphs: dict[int, Graph] = {}

    def launch(self, step: DeviceStep, changes: Changes | None = None) -> InFlightStep:
        """Compute and sample; the tokens come in the order of `owners`."""
        self._prepare(step)
        size = graph_size(len(step.seats), tuple(self.graphs)) if step.single and changes is None else None
        if size is not None:
            columns = self.state.sent(padded(step, size))
            return InFlightStep(self.graphs[size](columns)[: len(step.seats)])
        result = self._forward(step, changes)
        return InFlightStep(self.state.draw(result.logits, result.rows, result.positions))

    def compute(self, step: DeviceStep, changes: Changes | None = None) -> StepLogits:
        """Compute without sampling."""
        self._prepare(step)
        return self._forward(step, changes)

    def single(self, columns: torch.Tensor) -> torch.Tensor:
        """Compute the decode step of columns [3, size] (tokens, seats, starts), which graphs capture. Return tokens [size]."""
        size, state = columns.shape[1], self.state
        starts = torch.arange(size + 1, dtype=torch.int32, device=columns.device)
        rows, layout = self._layout(columns[0], columns[1], columns[2], starts, 1, self._longest)
        logits = self.model.logits(self.model.forward(layout, self.pool))
        return state.draw(logits, rows, layout.kv_lens.long())

    def _prepare(self, step: DeviceStep) -> None:
        if len(step.moves) and self._host is not None:
            self._host.move(self.pool, step.moves)
        if len(step.copies):
            pairs = self.state.sent(step.copies.T)
            for pages in self.pool.memory:
                self._kernels.page_copy(pages, pairs[0].contiguous(), pages, pairs[1].contiguous())
        self.state.write(step)

    def _forward(self, step: DeviceStep, changes: Changes | None) -> StepLogits:
        state, first = self.state, step.query_starts
        starts = state.sent(first)
        longest = int((step.starts + step.counts).max())
        rows, layout = self._layout(
            state.sent(step.tokens), state.sent(step.seats), state.sent(step.starts), starts, int(step.counts.max()),
            longest,
        )  # fmt: skip
        hidden = self.model.forward(layout, self.pool, changes)
        owners = state.sent(step.owners).long()
        last = state.sent(first[1:][step.owners] - 1).long()
        logits = self.model.logits(hidden.index_select(0, last))
        prompt_logits = tuple(
            self.model.logits(hidden[begin : begin + count]).float().cpu() for begin, count in step.prompt_rows.tolist()
        )
        positions = layout.kv_lens.index_select(0, owners).long()
        return StepLogits(hidden, logits, rows.index_select(0, owners), positions, prompt_logits)

    def _layout(
        self, tokens: torch.Tensor, seats: torch.Tensor, starts: torch.Tensor, query_starts: torch.Tensor,
        longest_query: int, longest_kv: int,
    ) -> tuple[torch.Tensor, Layout]:  # fmt: skip
        state = self.state
        rows = state.seated(seats)
        state.computed.index_copy_(0, rows, starts)
        made = self._kernels.build_inputs(
            tokens, query_starts, seats, state.computed, state.last_tokens, state.tables, state.page_size
        )
        tables = state.tables.index_select(0, rows)
        return rows, Layout(
            made.tokens, made.positions, made.slots, made.kv_lens, query_starts, tables, longest_query, longest_kv
        )
