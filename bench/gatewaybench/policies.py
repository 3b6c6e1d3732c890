"""The gateway's own picker, which chooses a simulated request's engine, alone or as several gateways."""

from __future__ import annotations

import random
from bisect import bisect_left
from collections.abc import Sequence

from bench.gatewaybench.engine import Engine, Job
from bench.gatewaybench.trace import BLOCK, Arrival

from pagefleet_gateway.cluster.readings import Readings
from pagefleet_gateway.cluster.scrapes import PERIOD_SECONDS
from pagefleet_gateway.cluster.service import Service
from pagefleet_gateway.cluster.state import Pod, State
from pagefleet_gateway.cluster.steps import finish
from pagefleet_gateway.picking.ledger import Ledger
from pagefleet_gateway.picking.pick import Pick, Request
from pagefleet_gateway.picking.picker import Picker
from pagefleet_gateway.picking.prompts.request_cost import BLOCK_TOKENS, LONG_BLOCK_TOKENS, MAX_BLOCKS
from pagefleet_gateway.sharing.loads import PERIOD_SECONDS as TELL_SECONDS
from pagefleet_gateway.sharing.news import Newsroom


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
