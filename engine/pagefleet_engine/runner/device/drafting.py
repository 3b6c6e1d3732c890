"""Draft tokens on a device: which steps go in turn with the one before so that they can have some, and what is learned of it.

The rules are those of the CPU (runner/common/speculator.py, core/speculation.py); core/turns.py is added to them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence

from pagefleet_engine.core.offload import IN, Move
from pagefleet_engine.core.requests import TokenOutput
from pagefleet_engine.core.scheduler import Scheduler
from pagefleet_engine.core.turns import TurnPlanner
from pagefleet_engine.core.work import Work
from pagefleet_engine.runner.common.speculator import Speculator
from pagefleet_engine.runner.device.steps.choice import chosen_by_host
from pagefleet_engine.runner.device.steps.executor import InFlightStep


class DeviceDrafter:
    """`launch` computes work items with the draft model, and draws the token after each of them if it is told to.

    A draft token is drawn from the draft token before it, which lies on the device. So all places are launched at once.
    """

    def __init__(self, launch: Callable[[list[Work], bool], InFlightStep]) -> None:
        self._launch = launch

    def forward(self, work_items: list[Work]) -> None:
        self._launch(work_items, False)

    def draft(self, places: Sequence[list[Work]]) -> Iterator[list[int]]:
        flights = [self._launch(step, True) for step in places]
        for flight in flights:
            yield flight.tokens()


class Drafting:
    """Call `in_turn` before each step; `plan` if it says so, once no step is on its way, else `rest`; `scheduled`; `learn` at its end.

    `robust`: a step whose draft tokens cannot be planned goes on without them. With other ranks it may not: they may wait in a
    collective that this one has left.
    """

    def __init__(self, speculator: Speculator, *, robust: bool) -> None:
        self.speculator, self.turns = speculator, TurnPlanner()
        self._robust = robust
        self._began = self._ended = 0.0
        self._last: bool | None = None  # how the last step went; None: it was none of single tokens only

    def in_turn(self, scheduler: Scheduler) -> bool:
        """Return whether the next step waits for the one before it. One that computes prompts follows others that do."""
        if any(not sequence.request.sampling.plain for sequence in scheduler.running):
            return True  # the host chooses tokens, so that no step goes ahead
        if self._last is None or not scheduler.running:
            return False
        chosen = self.turns.in_turn(len(scheduler.running))
        if self.turns.trying:
            self.speculator.planner.try_again()
        return chosen

    def plan(self, scheduler: Scheduler) -> None:
        """Give sequences the draft tokens of the next step."""
        self._began = time.perf_counter()
        if self._robust:
            self.speculator.planned(scheduler)
        else:
            self.speculator.plan(scheduler)

    def rest(self, scheduler: Scheduler) -> None:
        """Let the next step go ahead: without draft tokens, those of earlier steps that had no room among them."""
        for sequence in scheduler.running:
            sequence.draft = ()

    def scheduled(self, work_items: Sequence[Work], moves: Sequence[Move]) -> None:
        """Take note of the step's pages, and replace placeholders of draft tokens."""
        for direction, page, _ in moves:
            if direction == IN:
                self.speculator.replaced(page)
        self.speculator.fill(work_items)

    def learn(self, work_items: Sequence[Work], in_turn: bool, outputs: Sequence[TokenOutput]) -> None:
        """Learn from a step, and from its `outputs`, those of the step before it where it went ahead."""
        now = time.perf_counter()
        if in_turn:
            self.speculator.learn(work_items, now - self._began)
        single = bool(work_items) and all(
            work.count == work.drafts + 1 and not chosen_by_host(work) for work in work_items
        )
        if single and self._last == in_turn:
            tokens = sum(len(output.token_ids) for output in outputs)
            self.turns.observe(len(work_items), in_turn, tokens, now - self._ended)
        self._last, self._ended = (in_turn if single else None), now
