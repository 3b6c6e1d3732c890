"""Other projects' policies, which choose a simulated request's engine.

Each has only the inputs that it would have in a fleet: its own requests, and the engines' gauges at its scrapes. What its authors leave
open is set to the best of some values on these traces.
"""

from __future__ import annotations

import itertools
import random
from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

from bench.gatewaybench.engine import DECODE_SECONDS, PREFILL_SECONDS, STEP_SECONDS, Engine, Job
from bench.gatewaybench.trace import BLOCK, Arrival

from pagefleet_gateway.picking.prompts.prefixes import Prefixes

AFFINITY_WAIT = 0.02  # seconds
CAPACITY = 31_250  # blocks of 16 tokens that a record of prefixes retains (llm-d's default)


class Policy(Protocol):
    period: float  # seconds between scrapes

    def choose(self, arrival: Arrival, job: Job, now: float) -> int: ...

    def started(self, job: Job) -> None: ...

    def ended(self, job: Job) -> None: ...

    def scrape(self, engines: Sequence[Engine], now: float) -> None: ...


class _Peer:
    """Knows its own requests in flight, the uncached prompt tokens among them, and the texts that it has sent to each engine."""

    period = 1.0

    def __init__(self, count: int, seed: int) -> None:
        self._rng = random.Random(seed)
        self._running = [0] * count  # requests in flight
        self._waiting = [0] * count  # uncached prompt tokens before their first token
        self._prefixes = Prefixes(capacity=CAPACITY)
        self._sent: dict[int, tuple[int, int]] = {}

    def choose(self, arrival: Arrival, job: Job, now: float) -> int:
        cached = [int(self._prefixes.matched(str(index), job.blocks)) for index in range(len(self._running))]
        chosen = self._chosen(job, cached, now)
        uncached = max(0, job.prompt_tokens - cached[chosen] * BLOCK)
        self._running[chosen] += 1
        self._waiting[chosen] += uncached
        self._sent[job.key] = chosen, uncached
        self._prefixes.record(str(chosen), job.blocks)
        return chosen

    def started(self, job: Job) -> None:
        chosen, uncached = self._sent[job.key]
        self._waiting[chosen] -= uncached

    def ended(self, job: Job) -> None:
        self._running[self._sent.pop(job.key)[0]] -= 1

    def scrape(self, engines: Sequence[Engine], now: float) -> None:
        pass

    def _chosen(self, job: Job, cached: Sequence[int], now: float) -> int:
        """Return the engine of a request. `cached`: how many of its blocks each engine is known to have."""
        raise NotImplementedError

    def _least(self, cost: Callable[[int], float], among: Sequence[int] = ()) -> int:
        """Return the engine with the lowest cost, of equal ones one by lot."""
        return min(among or range(len(self._running)), key=lambda index: (cost(index), self._rng.random()))


class RoundRobin(_Peer):
    """One after the other."""

    def __init__(self, count: int, seed: int = 0) -> None:
        super().__init__(count, seed)
        first = self._rng.randrange(count)
        self._turns = itertools.cycle([*range(first, count), *range(first)])

    def _chosen(self, job: Job, cached: Sequence[int], now: float) -> int:
        return next(self._turns)


class LeastRequest(_Peer):
    """The engine with the fewest of its requests in flight, of all engines."""

    def _chosen(self, job: Job, cached: Sequence[int], now: float) -> int:
        return self._least(lambda index: self._running[index])


class TwoChoices(_Peer):
    """The better one of two engines by lot (Mitzenmacher, "The power of two choices in randomized load balancing", 2001): the one with
    fewer requests in flight, counted with its use of KV pages at the last scrape."""

    period = 0.05

    def __init__(self, count: int, seed: int, weight: float = 8.0) -> None:
        """`weight`: how many requests a full KV cache counts as."""
        super().__init__(count, seed)
        self._weight, self._usage = weight, [0.0] * count

    def scrape(self, engines: Sequence[Engine], now: float) -> None:
        self._usage = [engine.kv_usage for engine in engines]

    def _chosen(self, job: Job, cached: Sequence[int], now: float) -> int:
        two = self._rng.sample(range(len(self._running)), 2)
        return self._least(lambda index: self._running[index] + self._weight * self._usage[index], two)


class Published(_Peer):
    """llm-d's documented profile: 2 * queue + 2 * (1 - KV usage) + 3 * matched prefix share, highest wins, ties
    by lot; gauges scraped every 50 ms; the queue score runs from 1 (shortest) to 0 (longest).
    """

    period = 0.05

    def __init__(self, count: int, seed: int) -> None:
        super().__init__(count, seed)
        self._queue, self._usage = [0] * count, [0.0] * count

    def scrape(self, engines: Sequence[Engine], now: float) -> None:
        self._queue = [len(engine.waiting) for engine in engines]
        self._usage = [engine.kv_usage for engine in engines]

    def _chosen(self, job: Job, cached: Sequence[int], now: float) -> int:
        low, high = min(self._queue), max(self._queue)

        def score(index: int) -> float:
            shortness = (high - self._queue[index]) / (high - low) if high > low else 1.0
            return 2 * shortness + 2 * (1 - self._usage[index]) + 3 * cached[index] / max(1, len(job.blocks))

        return self._least(lambda index: -score(index))


class Affinity(_Peer):
    """llm-d's default of today: the engine with the longest cached prefix, while the uncached prompt tokens in flight there are not more
    than it computes in `wait` seconds. Otherwise, and without a cached prefix, the engine with the fewest of them.

    It knows the prompt rate of the engines exactly.
    """

    def __init__(self, count: int, seed: int, wait: float, speeds: Sequence[float] = ()) -> None:
        """`speeds` of the engines; () for equal ones."""
        super().__init__(count, seed)
        self._speeds = speeds or (1.0,) * count
        self._bounds = [wait * speed / PREFILL_SECONDS for speed in self._speeds]

    def _chosen(self, job: Job, cached: Sequence[int], now: float) -> int:
        free = [index for index, tokens in enumerate(self._waiting) if tokens <= self._bounds[index]]
        best = max((cached[index] for index in free), default=0)
        among = [index for index in free if cached[index] == best] if best else ()
        return self._least(lambda index: self._waiting[index] / self._speeds[index], among)


class Predicted(_Peer):
    """llm-d's predicted latency: the engine with the lowest expected time to the first token.

    llm-d trains a model of it on the answers. This one has the engine's true formula, over the requests in flight.
    """

    def _chosen(self, job: Job, cached: Sequence[int], now: float) -> int:
        def seconds(index: int) -> float:
            tokens = self._waiting[index] + max(0, job.prompt_tokens - cached[index] * BLOCK)
            steps = 1 + tokens / 2048
            return tokens * PREFILL_SECONDS + steps * (STEP_SECONDS + self._running[index] * DECODE_SECONDS)

        return self._least(seconds)


class Preble(_Peer):
    """The E2 rule (Srivatsa et al., "Preble: efficient distributed prompt scheduling for LLM serving", ICLR 2025, section 3): exploit the
    longest cached prefix where it is longer than the rest of the prompt, and explore the engine with the lowest cost otherwise. The cost is
    the work of the last `window` seconds and the prompt's uncached part. An engine whose work is `imbalance` times the lightest's gives its
    requests to that one."""

    def __init__(self, count: int, seed: int, window: float, imbalance: float) -> None:
        super().__init__(count, seed)
        self._window, self._imbalance = window, imbalance
        self._work = [0.0] * count  # seconds
        self._past: deque[tuple[float, int, float]] = deque()
        self._output = 120.0  # tokens of an answer, the mean of those so far

    def ended(self, job: Job) -> None:
        super().ended(job)
        self._output += (job.output_tokens - self._output) / 1000

    def _chosen(self, job: Job, cached: Sequence[int], now: float) -> int:
        while self._past and self._past[0][0] < now - self._window:
            _, index, seconds = self._past.popleft()
            self._work[index] -= seconds

        def cost(index: int) -> float:
            return self._work[index] + max(0, job.prompt_tokens - cached[index] * BLOCK) * PREFILL_SECONDS

        best = max(cached)
        chosen = self._least(cost)
        if 2 * best * BLOCK > job.prompt_tokens:
            longest = self._least(cost, [index for index, blocks in enumerate(cached) if blocks == best])
            lightest = min(self._work)
            if self._work[longest] <= self._imbalance * max(lightest, self._window / 100):
                chosen = longest
        seconds = cost(chosen) - self._work[chosen] + self._output * DECODE_SECONDS
        self._work[chosen] += seconds
        self._past.append((now, chosen, seconds))
        return chosen


# The peers by name: a picker for so many engines and a seed. Of what their authors leave open, the best of some values on other seeds than
# those that are reported: of `wait` 0 to 1 s, `weight` 4 to 32, `window` 2 to 180 s, `imbalance` 1.2 to 4.
PEERS: dict[str, Callable[[int, int], Policy]] = {
    "round robin": RoundRobin,
    "least request": LeastRequest,
    "two choices": lambda count, seed: TwoChoices(count, seed, weight=4.0),
    "llm-d 2/2/3": Published,
    "llm-d affinity": lambda count, seed: Affinity(count, seed, wait=AFFINITY_WAIT),
    "llm-d predicted": Predicted,
    "Preble": lambda count, seed: Preble(count, seed, window=180.0, imbalance=4.0),
}


def apart(name: str, count: int, seed: int, pickers: int) -> Policy:
    """Return several pickers of the peer of that name."""
    return Apart([PEERS[name](count, 1000 * seed + number) for number in range(pickers)], seed)


class Apart:
    """Several pickers of a peer, each request through one of them by lot. None knows the others' requests."""

    def __init__(self, pickers: Sequence[Policy], seed: int) -> None:
        self.period = pickers[0].period
        self._pickers, self._rng, self._of = pickers, random.Random(seed), dict[int, Policy]()

    def choose(self, arrival: Arrival, job: Job, now: float) -> int:
        picker = self._of[job.key] = self._rng.choice(self._pickers)
        return picker.choose(arrival, job, now)

    def started(self, job: Job) -> None:
        self._of[job.key].started(job)

    def ended(self, job: Job) -> None:
        self._of.pop(job.key).ended(job)

    def scrape(self, engines: Sequence[Engine], now: float) -> None:
        for picker in self._pickers:
            picker.scrape(engines, now)
