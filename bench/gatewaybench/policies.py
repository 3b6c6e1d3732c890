"""Policies that choose a simulated request's engine: round robin, llm-d's published scoring, the gateway's own picker.

Each has only the inputs that it would have in a fleet: its own requests, and the engines' gauges at its scrapes.
"""

from __future__ import annotations

import itertools
import random
from bisect import bisect_left
from collections.abc import Sequence
from typing import Protocol

from bench.gatewaybench.engine import PREFILL_SECONDS, Engine, Job
from bench.gatewaybench.trace import BLOCK, Arrival

from pagefleet_gateway.cluster.readings import Readings
from pagefleet_gateway.cluster.scrapes import PERIOD_SECONDS
from pagefleet_gateway.cluster.service import Service
from pagefleet_gateway.cluster.state import Pod, State
from pagefleet_gateway.cluster.steps import finish
from pagefleet_gateway.picking.ledger import Ledger
from pagefleet_gateway.picking.picker import Pick, Picker, Request
from pagefleet_gateway.picking.prefixes import Prefixes
from pagefleet_gateway.picking.request_cost import BLOCK_TOKENS, LONG_BLOCK_TOKENS, MAX_BLOCKS
from pagefleet_gateway.sharing.loads import PERIOD_SECONDS as TELL_SECONDS
from pagefleet_gateway.sharing.news import Newsroom


class Policy(Protocol):
    period: float  # seconds between scrapes

    def choose(self, arrival: Arrival, job: Job, now: float) -> int: ...

    def started(self, job: Job) -> None: ...

    def ended(self, job: Job) -> None: ...

    def scrape(self, engines: Sequence[Engine], now: float) -> None: ...


class RoundRobin:
    period = 1.0

    def __init__(self, count: int) -> None:
        self._turns = itertools.cycle(range(count))

    def choose(self, arrival: Arrival, job: Job, now: float) -> int:
        return next(self._turns)

    def started(self, job: Job) -> None:
        pass

    def ended(self, job: Job) -> None:
        pass

    def scrape(self, engines: Sequence[Engine], now: float) -> None:
        pass


class Published:
    """llm-d's documented profile: 2 * queue + 2 * (1 - KV usage) + 3 * matched prefix share, highest wins, ties
    by lot; gauges scraped every 50 ms; the queue score runs from 1 (shortest) to 0 (longest).
    """

    period = 0.05

    def __init__(self, count: int, seed: int) -> None:
        self._rng = random.Random(seed)
        self._queue = [0] * count
        self._usage = [0.0] * count
        self._prefixes = Prefixes(capacity=31_250)

    def choose(self, arrival: Arrival, job: Job, now: float) -> int:
        low, high = min(self._queue), max(self._queue)
        scores = []
        for index, (queue, usage) in enumerate(zip(self._queue, self._usage, strict=True)):
            shortness = (high - queue) / (high - low) if high > low else 1.0
            matched = self._prefixes.matched(str(index), job.blocks) / max(1, len(job.blocks))
            scores.append((2 * shortness + 2 * (1 - usage) + 3 * matched, self._rng.random(), index))
        chosen = max(scores)[2]
        self._prefixes.record(str(chosen), job.blocks)
        return chosen

    def started(self, job: Job) -> None:
        pass

    def ended(self, job: Job) -> None:
        pass

    def scrape(self, engines: Sequence[Engine], now: float) -> None:
        self._queue = [len(engine.waiting) for engine in engines]
        self._usage = [engine.kv_usage for engine in engines]


class Affinity:
    """llm-d's default of today: the pod with the longest cached prefix, while the uncached prompt tokens in flight there are not more
    than it computes in `wait` seconds. Otherwise, and without a cached prefix, the pod with the fewest of them.

    It knows its own requests at once, and the prompt rate of the engines exactly.
    """

    period = 1.0

    def __init__(self, count: int, seed: int, wait: float = 0.2, speeds: Sequence[float] = ()) -> None:
        """`wait`: of 0.05, 0.2, 0.5 and 1 s the best on these traces. `speeds` of the engines; () for equal ones."""
        self._rng, self._speeds = random.Random(seed), speeds or (1.0,) * count
        self._bounds = [wait * speed / PREFILL_SECONDS for speed in self._speeds]
        self._waiting = [0] * count  # uncached prompt tokens in flight
        self._prefixes = Prefixes(capacity=31_250)
        self._sent: dict[int, tuple[int, int]] = {}

    def choose(self, arrival: Arrival, job: Job, now: float) -> int:
        matched = [self._prefixes.matched(str(index), job.blocks) for index in range(len(self._waiting))]
        free = [index for index, tokens in enumerate(self._waiting) if tokens <= self._bounds[index]]
        best = max((matched[index] for index in free), default=0)
        among = [index for index in free if matched[index] == best] if best else range(len(self._waiting))
        chosen = min(among, key=lambda index: (self._waiting[index] / self._speeds[index], self._rng.random()))
        uncached = max(0, job.prompt_tokens - matched[chosen] * BLOCK)
        self._waiting[chosen] += uncached
        self._sent[job.key] = chosen, uncached
        self._prefixes.record(str(chosen), job.blocks)
        return chosen

    def started(self, job: Job) -> None:
        chosen, uncached = self._sent.pop(job.key)
        self._waiting[chosen] -= uncached

    def ended(self, job: Job) -> None:
        pass

    def scrape(self, engines: Sequence[Engine], now: float) -> None:
        pass


class Pagefleet:
    """The gateway's own `Picker`, whole: routing, body, ledger, prefixes, readings from Prometheus text.

    With several gateways each request comes through one of them by lot. They tell each other their loads as they do in a
    fleet, unless `telling` is off.
    """

    period = PERIOD_SECONDS

    def __init__(
        self,
        count: int,
        seed: int,
        revisions: str = "",
        gateways: int = 1,
        telling: bool = True,
        speeds: bool = True,
        capacities: bool = True,
        exact: bool = False,
    ) -> None:
        """`revisions`: a letter for each engine, weights as their numbers; "" for one revision. Without `speeds` it learns none of
        the pods', and without `capacities` the engines do not state the size of their caches. `exact`: each gateway
        knows what every engine has cached, as from KV events that take no time, and what the prompts in flight will add (`_Events`).
        """
        revisions = revisions or "a" * count
        pods = [
            Pod(str(index), f"p{index}", "team", "chat", revision, f"10.0.0.{index}:8000")
            for index, revision in enumerate(revisions)
        ]
        weights = tuple((name, revisions.count(name)) for name in sorted(set(revisions)))
        service = Service("team", "chat", "m", weights)
        self._gateways = [_Gateway(pods, service, f"{seed}/{number}", speeds, capacities) for number in range(gateways)]
        self._rng, self._chosen = random.Random(seed), dict[int, _Gateway]()
        self._telling, self._told = telling, 0.0
        self._events = _Events(pods, [gateway.picker for gateway in self._gateways]) if exact else None

    def choose(self, arrival: Arrival, job: Job, now: float) -> int:
        if self._telling and now >= self._told + TELL_SECONDS:
            self._tell(now)
        gateway = self._chosen[job.key] = self._rng.choice(self._gateways)
        if self._events is not None:
            self._events.asked = job.blocks
        return gateway.choose(arrival, job, now)

    def started(self, job: Job) -> None:
        self._chosen[job.key].started(job)

    def ended(self, job: Job) -> None:
        self._chosen.pop(job.key).ended(job)

    def scrape(self, engines: Sequence[Engine], now: float) -> None:
        if self._events is not None:
            self._events.engines = engines
        for gateway in self._gateways:
            gateway.scrape(engines, now)

    def _tell(self, now: float) -> None:
        self._told = now
        for number, gateway in enumerate(self._gateways):
            if news := gateway.newsroom.changes(now):
                message = news.message()
                for other in self._gateways:
                    if other is not gateway:
                        finish(other.newsroom.take_over(str(number), message, now))


class _Events:
    """What the best reader of KV events could tell the pickers: the beginning of a prompt that an engine has cached, in the engine's
    own blocks, or will have when it has computed the prompts that it got before. It takes the place of the gateways' records of picks.
    """

    def __init__(self, pods: Sequence[Pod], pickers: Sequence[Picker]) -> None:
        self.asked: tuple[bytes, ...] = ()  # the engine's blocks of the prompt that is picked for
        self.engines: Sequence[Engine] = ()
        self._index = {pod.cache: index for index, pod in enumerate(pods)}
        for picker in pickers:
            picker.prefixes.matched = self.matched

    def matched(self, cache: str, _: Sequence[bytes]) -> float:
        """Return how many of the gateway's blocks of text the engine has cached, in fractions."""
        tokens = BLOCK * self._depth(self.engines[self._index[cache]])
        short = min(tokens, MAX_BLOCKS * BLOCK_TOKENS)
        return short / BLOCK_TOKENS + (tokens - short) / LONG_BLOCK_TOKENS

    def _depth(self, engine: Engine) -> int:
        held = next((at for at, block in enumerate(self.asked) if not engine.holds(block)), len(self.asked))
        coming = (_common(self.asked, job.blocks) for job in (*engine.waiting, *engine.prefilling))
        return max(held, max(coming, default=0))


def _common(one: Sequence[bytes], other: Sequence[bytes]) -> int:
    """Return how many blocks two prompts begin with alike. A block's hash is one of all blocks before it."""
    return bisect_left(range(min(len(one), len(other))), True, key=lambda at: one[at] != other[at])


class _Gateway:
    def __init__(self, pods: Sequence[Pod], service: Service, seed: str, speeds: bool, capacities: bool) -> None:
        self._learns_speeds, self._hears_capacities = speeds, capacities
        state = State()
        state.replace_pods(pods)
        state.confirm(pods)
        state.put_service(service)
        self._pods, self.ledger = pods, Ledger()
        self._readings = Readings(self.ledger.known_in_flight)
        self.picker = Picker(state, self.ledger, random.Random(seed), self._readings)
        self.newsroom = Newsroom(self.ledger, self.picker.prefixes)
        finish(self.ledger.sweep(state.known, 0.0))

    def choose(self, arrival: Arrival, job: Job, now: float) -> int:
        request = Request(str(job.key), "POST", "/team/chat/v1/chat/completions", {}, arrival.body)
        pick = self.picker.decide(request, now)
        if not isinstance(pick, Pick):
            raise TypeError(f"refused: {pick}")
        return int(pick.choices[0].uid)

    def started(self, job: Job) -> None:
        # As Envoy reports the first token of a stream.
        ticket = self.ledger.record_first_token(str(job.key), job.first_token - job.arrived)
        if ticket is not None and ticket.first_token is not None:
            self.ledger.learn(ticket, ticket.first_token)

    def ended(self, job: Job) -> None:
        # As the access log reports a streamed answer.
        ticket = self.ledger.close(str(job.key))
        if ticket is not None:
            expected = ticket.expected if self._learns_speeds else None
            self.ledger.backlogs.record_first_token(
                ticket.choices[0], ticket.uncached_tokens, job.first_token - job.arrived, expected
            )

    def scrape(self, engines: Sequence[Engine], now: float) -> None:
        for pod, engine in zip(self._pods, engines, strict=True):
            text = (
                f"vllm:num_requests_running {engine.running}\nvllm:num_requests_waiting {len(engine.waiting)}\n"
                f"vllm:kv_cache_usage_perc {engine.kv_usage}\n"
            )
            if self._hears_capacities:
                text += f'vllm:cache_config_info{{block_size="16",num_gpu_blocks="{engine.kv_tokens // 16}"}} 1\n'
            self._readings.put(pod, text.encode(), now)
        finish(self.picker.sweep(now))
