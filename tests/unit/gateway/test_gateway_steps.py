"""Protects the picking loop beside thousands of pods: how much the gateway does between two turns of the loop does not grow with the pods
and services that there are. Work is counted in lines of Python, which the machine's speed does not change. What has gone is forgotten
nevertheless, what comes between two steps stays, and Python's garbage collector reads what lives long only once."""

from __future__ import annotations

import asyncio
import gc
import os
import random
import sys
import weakref
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType

from pagefleet_contract.slo import Objective
from pagefleet_gateway import upkeep
from pagefleet_gateway.cluster.engines import Engine
from pagefleet_gateway.cluster.readings import Readings
from pagefleet_gateway.cluster.scrapes import Scrapes
from pagefleet_gateway.cluster.service import Service
from pagefleet_gateway.cluster.state import Pod, State
from pagefleet_gateway.cluster.steps import STEP_ENTRIES, Steps, finish, forget
from pagefleet_gateway.envoy.endpoints import Endpoints
from pagefleet_gateway.holding.holding import Holding
from pagefleet_gateway.measuring.access_log import LogLine
from pagefleet_gateway.measuring.counting import Counting
from pagefleet_gateway.measuring.metrics import GONE_SECONDS, Metrics
from pagefleet_gateway.measuring.windows import Windows
from pagefleet_gateway.picking.ledger import Ledger
from pagefleet_gateway.picking.pick import Pick, Request
from pagefleet_gateway.picking.picker import Picker
from pagefleet_gateway.sharing.news import News, Newsroom
from pagefleet_gateway.upkeep import Garbage

FEW, MANY = STEP_ENTRIES + 100, 2 * STEP_ENTRIES + 300  # services of one pod each: more than one step of any table
PAGE = b"vllm:num_requests_running 1\nvllm:num_requests_waiting 0\n"
OBJECTIVE = Objective("chat", "ttft", 0.05, 2.0)


class Lines:
    """Counts the lines of Python that this thread runs."""

    def __init__(self) -> None:
        self.count = 0
        self.turns: list[int] = []  # the lines of each turn that is over
        self._before = sys.gettrace()

    def __enter__(self) -> Lines:
        sys.settrace(self._trace)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(self._before)

    def turn(self) -> None:
        self.turns.append(self.count)
        self.count = 0

    def _trace(self, _: FrameType, event: str, __: object) -> Callable[..., object]:
        self.count += event == "line"
        return self._trace


def most_in_a_step(steps: Iterable[object]) -> int:
    with Lines() as lines:
        for _ in steps:
            lines.turn()
        lines.turn()
    return max(lines.turns)


def most_in_a_turn(work: Callable[[], Awaitable[object]]) -> int:
    """Return the most lines between two turns of an event loop that does this work."""

    async def run() -> int:
        loop, over = asyncio.get_running_loop(), False

        def turn() -> None:
            lines.turn()
            if not over:
                loop.call_soon(turn)

        with Lines() as lines:
            turn()
            await work()
            over = True
        return max(lines.turns)

    return asyncio.run(run())


@dataclass
class Fleet:
    """A gateway without Envoy whose services have all had a request, and all in flight one more."""

    services: int

    def __post_init__(self) -> None:
        self.now = 0.0
        self.state, self.ledger, self.readings = State(), Ledger(), Readings()
        self.picker = Picker(self.state, self.ledger, random.Random(1), self.readings)
        self.windows = Windows("g", self.ledger)
        self.metrics = Metrics(self.ledger, Holding(self.picker, lambda: self.now, lambda _: None))
        self.counting = Counting(self.ledger, self.windows, self.metrics, lambda: self.now)
        self.newsroom = Newsroom(self.ledger, self.picker.prefixes)
        names = [f"s{number}" for number in range(self.services)]
        self.pods = [
            Pod(f"u-{name}", name, "team", name, "a", f"10.0.0.1:{port}", engine=Engine(scraped=False))
            for port, name in enumerate(names)
        ]
        self.state.replace_services(
            Service("team", name, name, (("a", 100),), objectives=(OBJECTIVE,)) for name in names
        )
        self.state.replace_pods(self.pods)
        self.state.confirm(self.pods)
        finish(self.counting.sweep(self.state))
        for pod in self.pods:
            self.readings.put(pod, PAGE, 0.0)
            request = self.send(pod.service)
            self.counting.record_first_token(request, 0.2, pod.address)
            self.ledger.backlogs.record_first_token(pod, 1000, 0.2, 0.1)
            line = LogLine(request, 0.0, 200, frozenset(), 0.1, 0.2, 1, pod.address, True, {"id": request})
            self.counting.complete(line)
            self.send(pod.service)
        self.ledger.hear("other", {pod.uid: [1, 10, 1, 5, 0, 50] for pod in self.pods}, 0.0)

    def send(self, service: str) -> str:
        request = Request(
            os.urandom(8).hex(), "POST", f"/team/{service}/v1/completions", {}, b'{"prompt": "x", "stream": true}'
        )
        assert isinstance(self.picker.decide(request, self.now), Pick)
        return request.id

    def wait(self, seconds: float) -> None:
        """Let time pass. Slices are closed in it."""
        self.now += seconds
        self.windows.tick(self.now)
        finish(self.windows.steps())

    def everything(self) -> News:
        news = News(whole=True)
        finish(self.newsroom.gather(news, 0.0))
        return news

    def renew(self) -> None:
        """Replace every pod by another, and every service but one by none."""
        self.state.replace_pods([replace(pod, uid=f"{pod.uid}-again") for pod in self.pods])
        self.state.replace_services([self.state.services["team", "s0"]])
        assert self.state.snapshot.by_model.keys() == {"s0"}  # a new list is built in one step


def slices(fleet: Fleet) -> Steps:
    fleet.now += 2.0
    fleet.windows.tick(fleet.now)
    yield
    yield from fleet.windows.steps()


def confirm(fleet: Fleet) -> Steps:
    return fleet.state.confirm_in_steps(fleet.state.pods)


def sweep(fleet: Fleet) -> Steps:
    yield from fleet.counting.sweep(fleet.state)
    yield from fleet.picker.sweep(fleet.now)
    yield from fleet.readings.retain(fleet.state.known.by_uid)


def test_no_step_grows_with_the_fleet() -> None:
    few, many = Fleet(FEW), Fleet(MANY)

    def compare(name: str, of: Callable[[Fleet], Iterable[object]]) -> None:
        lines = [most_in_a_step(of(fleet)) for fleet in (few, many)]
        assert lines[1] <= 1.05 * lines[0] + 50, f"{name}: {lines[0]} lines with {FEW} services, {lines[1]} with {MANY}"
        assert lines[1] < 60 * STEP_ENTRIES, name

    compare("a slice that is over", slices)
    compare("a sweep that finds nothing", sweep)
    compare("what another gateway hears first", lambda fleet: fleet.newsroom.gather(News(whole=True), 0.0))
    messages = {id(fleet): fleet.everything().message() for fleet in (few, many)}
    compare("what it tells", lambda fleet: fleet.newsroom.take_over("third", messages[id(fleet)], 0.0))
    for fleet in (few, many):
        fleet.renew()
    compare("Envoy knows other pods", confirm)
    compare("a sweep that finds all of them gone", sweep)
    for fleet in (few, many):
        fleet.state.replace_pods(fleet.state.pods[:1])
        fleet.wait(7200.0)  # no request in flight is waited for any more, and no slice is kept
    compare("a sweep after two hours", sweep)
    for fleet in (few, many):
        fleet.wait(GONE_SECONDS)
    compare("a sweep that removes all series", sweep)
    assert len(many.ledger) == 0
    page = many.metrics.text().decode()
    assert 'service="s0"' in page and 'service="s1"' not in page


def test_a_change_of_one_pod_or_service_does_not_grow_with_the_fleet() -> None:
    def change(state: State) -> Steps:
        pod = state.pods[0]
        service = state.services["team", pod.service]
        for one in (
            lambda: state.put_pod(replace(pod, ready=False)),
            lambda: state.remove_pod(pod.uid),
            lambda: state.put_pod(pod),
            lambda: state.put_service(replace(service, weights=(("b", 100),))),
            lambda: state.remove_service(service.key),
            lambda: state.put_service(service),
        ):
            one()
            assert state.snapshot.by_model
            yield

    lines = [most_in_a_step(change(Fleet(services).state)) for services in (10, 200)]
    assert lines[1] <= lines[0] + 5


async def write(state: State, folder: Path) -> None:
    await Endpoints(state, folder / "endpoints.json").write_in_steps()


async def scrape(state: State) -> None:
    task = asyncio.create_task(Scrapes(state, Readings()).follow())
    await asyncio.sleep(1.5)  # a round and the beginning of the next
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def test_no_turn_of_the_loop_grows_with_the_fleet(tmp_path: Path) -> None:
    """The file of endpoints and the rounds of scrapes."""
    few, many = Fleet(FEW).state, Fleet(MANY).state
    lines = [most_in_a_turn(lambda state=state: write(state, tmp_path)) for state in (few, many)]
    assert lines[1] <= 1.05 * lines[0] + 50, f"the file of endpoints: {lines}"
    lines = [most_in_a_turn(lambda state=state: scrape(state)) for state in (few, many)]
    assert lines[1] <= 1.05 * lines[0] + 50, f"scrapes: {lines}"


def test_what_comes_between_two_steps_stays() -> None:
    there, table = set(range(0, 4 * STEP_ENTRIES, 2)), dict.fromkeys(range(4 * STEP_ENTRIES), "")
    steps = forget(table, there)
    next(steps)
    table[-1] = table[-2] = ""
    there |= {-1, 3 * STEP_ENTRIES + 1}
    del table[2 * STEP_ENTRIES]
    finish(steps)
    assert set(table) == (there | {-2}) - {2 * STEP_ENTRIES}, "what came is looked at the next time"
    finish(forget(table, there))
    assert set(table) == there - {2 * STEP_ENTRIES}


class Circle:
    """Garbage that only the collector finds."""

    def __init__(self) -> None:
        self.itself = self


def test_garbage_that_was_frozen_is_collected_when_the_process_has_grown_much() -> None:
    size = upkeep.GROWTH_BYTES
    garbage = Garbage(lambda: size)
    garbage.begin()
    try:
        assert gc.get_threshold()[2] == upkeep.NEVER
        garbage.settle()
        kept = [Circle() for _ in range(10)]
        young = weakref.ref(Circle())
        seen = [weakref.ref(one) for one in kept]
        garbage.tend()
        assert young() is None and not any(isinstance(one, Circle) for one in gc.get_objects()), "frozen: none reads it"
        kept.clear()
        size = 2 * upkeep.GROWTH_BYTES
        garbage.tend()
        assert all(one() is not None for one in seen)
        size += 1
        garbage.tend()
        assert not any(one() for one in seen)
    finally:
        garbage.end()
    assert gc.get_threshold() == upkeep.USUAL and gc.get_freeze_count() == 0
