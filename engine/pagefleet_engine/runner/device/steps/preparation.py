"""Brings pages and seats to where a step begins: pages from and to the host, pages of forks, changes of the state."""

from __future__ import annotations

from collections.abc import Sequence

from pagefleet_engine.runner.device.steps.host_pages import HostPages, Paged
from pagefleet_engine.runner.device.steps.state import State
from pagefleet_engine.runner.device.steps.step import DeviceStep
from pagefleet_kernels.kernels import Kernels


class Preparation:
    """`pools`: the model's, and those of a draft model or a head, whose pages are copied alike. `hosts`: of those pools
    whose pages move to the host.
    """

    def __init__(self, pools: Sequence[Paged], state: State, kernels: Kernels, hosts: Sequence[HostPages]) -> None:
        self.state, self._pools, self._kernels, self._hosts = state, pools, kernels, hosts

    def __call__(self, step: DeviceStep) -> None:
        """Carry out what the step says. Launches, never waits."""
        if len(step.moves):
            for host in self._hosts:
                host.move(step.moves)
        if len(step.copies):
            pairs = self.state.sent(step.copies.T)
            origins, targets = pairs[0].contiguous(), pairs[1].contiguous()
            for pool in self._pools:
                for pages in pool.memory:
                    self._kernels.page_copy(pages, origins, pages, targets)
        self.state.write(step)
