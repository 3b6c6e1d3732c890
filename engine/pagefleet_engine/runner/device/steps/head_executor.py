"""Runs the steps of an EAGLE-3 head on one device: those that make up for missed positions, and those that draft."""

from __future__ import annotations

import torch

from pagefleet_engine.model.adapters import Applied
from pagefleet_engine.runner.device.model.head import DeviceHead, StatePool
from pagefleet_engine.runner.device.model.model import Pool
from pagefleet_engine.runner.device.steps.executor import InFlightStep, lay_out
from pagefleet_engine.runner.device.steps.preparation import Preparation
from pagefleet_engine.runner.device.steps.step import DeviceStep
from pagefleet_kernels.kernels import Kernels


class HeadExecutor:
    """Computes positions whose tokens are those one place later, so what it draws is two places later.

    A step whose tokens are those that were drawn last goes on from the head's own outputs, which stay on the device, by
    seat. Any other step reads the served model's states.
    """

    def __init__(
        self, head: DeviceHead, pool: Pool, states: StatePool, prepare: Preparation, kernels: Kernels, seats: int
    ) -> None:
        self._head, self._pool, self._states, self._prepare, self._kernels = head, pool, states, prepare, kernels
        self._outputs = head.outputs(seats + 1)

    def launch(self, step: DeviceStep, changes: Applied | None = None) -> InFlightStep:
        """Compute, and draw a token for each of `owners`: for all sequences of the step, or for none."""
        self._prepare(step)
        state, head = self._prepare.state, self._head
        rows, layout = lay_out(state, self._kernels, step)
        states = self._outputs.index_select(0, rows) if step.drawn else self._states.read(layout.slots)
        if not len(step.owners):
            head.write(layout, states, self._pool)
            return InFlightStep(torch.empty(0, dtype=torch.int32))
        last = state.sent(step.sampled[0]).long()
        outputs = head.forward(layout, states, self._pool, last)
        self._outputs.index_copy_(0, rows, outputs)
        return InFlightStep(state.draw(head.logits(outputs), rows, layout.positions.index_select(0, last) + 2))
