"""A rollout in virtual time: arrivals, gateways, engines and the operator on one clock.

The stable revision serves for `history` seconds. Then the spec asks for another revision, and the operator's decisions set the
weights and the replicas, which are ready at once. The run ends when the canary is rolled back or promoted, or after `limit`.
"""

from __future__ import annotations

import heapq
import itertools
import math
import random
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from bench.rolloutbench.deciding import Operator, spec_of
from bench.rolloutbench.engines import MEAN_TOKENS, PREFIXES, SIGMA_TOKENS, Engine, Request, physics
from bench.rolloutbench.gateways import Gateway
from bench.rolloutbench.scenario import Scenario

from pagefleet_gateway.sharing.loads import PERIOD_SECONDS as TELL_SECONDS

CLIENT_SECONDS = 120.0  # a client leaves that has waited so long for its first token
HOUSEKEEPING_SECONDS, SWEEP_SECONDS = 1.0, 5.0
DRAW_TOKENS = -(SIGMA_TOKENS**2) / 2
USERS = 1000
# Seconds after the onset for which the operator decides as often as it asks for, and HALF_PACE apart; later SLOW_PACE.
FULL_PACE_SECONDS, HALF_PACE_SECONDS = 60.0, 900.0
HALF_PACE, SLOW_PACE = 4.0, 10.0


@dataclass(frozen=True)
class Result:
    """How a rollout ended. `requests` and `seconds` are of the canary since its first traffic, or since the onset of
    its regression. `outcome`: RolledBack, Promoted or Open."""

    outcome: str
    reason: str
    message: str
    requests: int
    seconds: float
    decisions: int


class World:
    """One scenario with one seed."""

    def __init__(self, scenario: Scenario, seed: int) -> None:
        self.scenario, self.now = scenario, 0.0
        key = f"{scenario.name}/{scenario.utilisation}/{scenario.gateways}/{seed}"
        self._traffic = random.Random(f"traffic/{key}")
        self._physics = physics(scenario, f"engines/{key}")
        self.engines: dict[str, list[Engine]] = {}
        self._born, self._numbers = Counter[str](), itertools.count()
        self._events: list[tuple[float, int, Callable[[float], None]]] = []
        self._order = itertools.count()
        self._patience: deque[Request] = deque()
        count = scenario.gateways
        self.gateways = [Gateway(number, count, f"gateway/{key}", lambda: self.now) for number in range(count)]
        self.operator = Operator(scenario, self.gateways, lambda: self.now)
        self.stable, self.canary = "", ""
        self.since: float | None = None  # of the canary's first traffic
        self.sent = Counter[str]()  # requests by revision since the canary's first traffic, or since the onset
        self.requests: list[Request] = []  # all of them, where they are recorded
        self.recording, self.full_pace = False, False  # full_pace: never decide less often than in a cluster
        self.decisions = 0

    def play(self) -> Result:
        """Run to the end."""
        for _ in self.steps():
            status = self.operator.status
            if status.rejected:
                last = status.rejected[-1]
                return self._result("RolledBack", last.reason, last.message)
            if self.canary and status.stable == self.canary:
                return self._result("Promoted", "", "")
            if self.since is not None and self.now >= self.since + self.scenario.limit:
                break
        verdict = self.operator.status.rollout.verdict
        return self._result("Open", "", verdict.message if verdict else "")

    def steps(self, until: float = math.inf) -> Iterator[None]:
        """Run, to a time at most, and yield after every decision since the canary's start."""
        if not self._events:
            self._start()
        while self._events[0][0] <= until:
            at, _, call = heapq.heappop(self._events)
            self.now = at
            before = self.decisions
            call(at)
            if self.decisions > before:
                yield

    def run(self, until: float) -> None:
        """Run to a time, whatever is decided."""
        for _ in self.steps(until):
            pass

    @property
    def onset(self) -> float | None:
        """When the regression begins; without one, when the canary got its first traffic."""
        return None if self.since is None else self.since + self.scenario.regression.onset

    def _result(self, outcome: str, reason: str, message: str) -> Result:
        begun = self.now if self.onset is None else self.onset
        return Result(outcome, reason, message, self.sent[self.canary], self.now - begun, self.decisions)

    def _start(self) -> None:
        self._decide_once()
        while not self.operator.status.traffic:
            self._decide_once()
        self.stable = self.operator.status.stable
        for gateway in self.gateways:
            gateway.watch_pods(self.all_engines())
        self._schedule(self._traffic.expovariate(self.scenario.rate), self._arrive)
        self._schedule(HOUSEKEEPING_SECONDS, self._keep_house)
        if len(self.gateways) > 1:
            self._schedule(TELL_SECONDS, self._tell)
        # At any time within a slice.
        self._schedule(self.scenario.history + self._traffic.uniform(0, 2), self._begin_rollout)

    def _schedule(self, at: float, call: Callable[[float], None]) -> None:
        heapq.heappush(self._events, (at, next(self._order), call))

    def all_engines(self) -> list[Engine]:
        return [engine for own in self.engines.values() for engine in own]

    def _begin_rollout(self, now: float) -> None:
        self.operator.edit(spec_of(self.scenario, 2))
        self._decide(now)

    def _decide(self, now: float) -> None:
        self._decide_once()
        self.decisions += 1
        self._schedule(now + self._pause(now), self._decide)

    def _pause(self, now: float) -> float:
        """Return the seconds to the next decision: as the operator asks for, and longer when nothing depends on it.

        The evidence is in the slices, so that a decision between two others changes little beside the moment of a verdict.
        """
        plan, onset = self.operator.plan, self.onset
        asked = 2.0 if plan is None else plan.requeue
        if self.full_pace or onset is None or self.since is None:
            return asked
        # Before a late onset only the beginning is at full pace, and the last decisions before it.
        begin = onset if now >= onset - SLOW_PACE else self.since
        if now < begin + FULL_PACE_SECONDS:
            return asked
        return max(asked, HALF_PACE if now < begin + HALF_PACE_SECONDS else SLOW_PACE)

    def _decide_once(self) -> None:
        self.operator.decide(self.engines)
        self._follow()

    def _follow(self) -> None:
        """Let pods and weights follow the decision at once."""
        status = self.operator.status
        changed = self._follow_replicas(self.operator.replicas)
        self.canary = status.canary or self.canary
        weights = {entry.revision: entry.weight for entry in status.traffic}
        if self.since is None and weights.get(self.canary):
            self.since = self.now
        self._show(weights, changed)

    def _show(self, weights: Mapping[str, int], changed: bool) -> None:
        """Let the gateways have the weights, and the pods where they changed."""
        if self.onset is not None and self.scenario.bad:
            for engine in self.engines.get(self.canary, ()):
                engine.since = self.onset
        traffic = [{"revision": name, "weight": weight} for name, weight in weights.items() if weight]
        shown = {"canary": self.canary if self.canary in weights else "", "traffic": traffic}
        for gateway in self.gateways:
            gateway.watch_service(self.operator.raw, shown)
            if changed:
                gateway.watch_pods(self.all_engines())

    def _follow_replicas(self, replicas: Mapping[str, int]) -> bool:
        """Start and stop engines. A stopped one answers what it has."""
        changed = False
        for name in {*self.engines, *replicas}:
            own, count = self.engines.setdefault(name, []), replicas.get(name, 0)
            changed |= len(own) != count
            while len(own) < count:
                self._born[name] += 1
                reports = (self._on_first, self._on_end)
                engine = Engine(f"{name}-{self._born[name]}", name, self._physics, self._schedule, reports)
                engine.born = self.now
                own.append(engine)
            del own[count:]
        return changed

    def _arrive(self, now: float) -> None:
        scenario, draws = self.scenario, self._traffic
        self._schedule(now + draws.expovariate(scenario.rate), self._arrive)
        number = draws.randrange(len(self.gateways)) if len(self.gateways) > 1 else 0
        tokens = MEAN_TOKENS * draws.lognormvariate(DRAW_TOKENS, SIGMA_TOKENS)
        request = Request(next(self._numbers), now, number, draws.randrange(PREFIXES), tokens, scenario.streams)
        gateway, user = self.gateways[number], ""
        if scenario.canary_prompts != 1:
            user = str(draws.randrange(USERS))
            if gateway.revision_for(user) == self.canary:
                request.tokens *= scenario.canary_prompts
        if cold := self._cold(now):
            gateway.forget_prefixes(cold)  # at each pick: it must believe in no prefix that such a cache has not kept
        name = gateway.send(request, user)
        if name is None:
            raise RuntimeError(f"the gateway refused a request at {now:.1f} s of {scenario}")
        engine = self._engine(name)
        if self.onset is not None and now >= self.onset:
            self.sent[engine.group] += 1
        if self.recording:
            self.requests.append(request)
        self._patience.append(request)
        engine.put(request, now)

    def _engine(self, name: str) -> Engine:
        group = name.rsplit("-", 1)[0]
        return next(engine for engine in self.engines[group] if engine.name == name)

    def _on_first(self, request: Request, now: float) -> None:
        self.gateways[request.gateway].first_token(request, now)

    def _on_end(self, request: Request, now: float) -> None:
        self.gateways[request.gateway].end(request, now)

    def _keep_house(self, now: float) -> None:
        """Scrape, close slices, let impatient clients leave."""
        self._schedule(now + HOUSEKEEPING_SECONDS, self._keep_house)
        while self._patience and self._patience[0].at <= now - CLIENT_SECONDS:
            request = self._patience.popleft()
            if request.first is None and not request.outcome:
                request.outcome, request.end = "left", now
                self._on_end(request, now)
        engines = self.all_engines()
        for gateway in self.gateways:
            gateway.scrape(engines, now)
            gateway.windows.tick(now)
            if now % SWEEP_SECONDS < HOUSEKEEPING_SECONDS:
                gateway.sweep()

    def _tell(self, now: float) -> None:
        self._schedule(now + TELL_SECONDS, self._tell)
        for gateway in self.gateways:
            gateway.tell([other for other in self.gateways if other is not gateway], now)

    def _cold(self, now: float) -> Sequence[str]:
        """Return the canary's pods whose caches retain nothing, and switch the others' on."""
        seconds = self.scenario.cold_seconds
        if not seconds or not self.canary:
            return ()
        own = self.engines.get(self.canary, ())
        for engine in own:
            engine.caching = now >= engine.born + seconds
        return [engine.name for engine in own if not engine.caching]
