"""The time to first token that a request should take on its pod, learned from the reference revision's requests. Pure.

The time depends on the load that the request met at its pick: W, the uncached prompt tokens ahead of it on the pod and its
own, and R, the requests that ran there. The model is a + b R + c W + d W R seconds. Each service has one model: recursive
weighted least squares (Young, "Recursive Estimation and Time-Series Analysis", 2011, chapter 3) with these properties.
- Errors count in proportion to the expected time, so short and long waits are learned alike.
- An error beyond the expected time itself counts less (Huber, "Robust Estimation of a Location Parameter", Annals of
  Mathematical Statistics 1964).
- Old measurements are forgotten: one that is MEMORY measurements old counts 1/e.
- No coefficient is negative: more work never means less time. The coefficients solve the normal equations on an active set
  (Lawson and Hanson, "Solving Least Squares Problems", 1974, chapter 23).
A canary's requests teach nothing. A slow canary would otherwise become the expectation that it is compared with.
"""

from __future__ import annotations

import math
from collections.abc import Container, Sequence
from statistics import median
from typing import NamedTuple, Protocol
from zlib import crc32

from pagefleet_contract.strata import load_stratum
from pagefleet_gateway.cluster.readings import Readings
from pagefleet_gateway.cluster.service import Service, ServiceKey
from pagefleet_gateway.cluster.state import Pod, RevisionKey, State
from pagefleet_gateway.cluster.steps import Steps, forget
from pagefleet_gateway.picking.prompts.request_cost import RequestCost

MIN_MEASUREMENTS = 50  # before the first expectation
MEMORY = 1000.0  # measurements
FORGETTING = 1.0 / (1.0 - 1.0 / MEMORY)  # by how much more a measurement counts than the one before it
SOLVE_EVERY = 32  # measurements
FIRST_ROUNDS = 8  # of reweighting, for the first measurements together
MIN_SECONDS = 0.001  # an expected time is at least this
RIDGE = 1e-4  # of a feature's own sum of squares
MAX_SAMPLED_PODS = 8  # of a service's reference revision, whose times are measured one by one
MAX_FOREIGN = 1e6  # requests of other gateways on a pod
TYPICAL_REQUESTS = 50  # a revision's typical prompt is the mean of about so many of the last ones
PRIOR_PROMPTS = 5.0  # as many prompts as the reference's count before a revision's own


class Load(NamedTuple):
    """The load that a request met on its pod at its pick."""

    tokens: (
        float  # uncached prompt tokens of the requests ahead of it, so far as they are not computed yet, and its own
    )
    running: float  # requests that had their first token


class LoadAtPick(NamedTuple):
    """The load that a request met at its pick, and the time that the gateway expected there: to the first token of a stream, and
    to the end of a whole answer.

    `expected` is in seconds, None while too little is known of the service. `reference`: the request went to the service's
    reference revision, and its time teaches the next expectations. `sampled`: it went to one of the reference's pods whose
    times are measured one by one.
    """

    load: Load
    stratum: str  # of the load's tokens, and of whether some of them are of other requests
    expected: float | None = None
    reference: bool = False
    sampled: bool = False


class Model:
    """The model of one service."""

    def __init__(self) -> None:
        self._coefficients: Sequence[float] | None = None
        self._first: list[tuple[Load, float]] = []  # measurements before there are coefficients
        self._added = 0  # measurements since the last solution
        self._clear()

    def seconds(self, load: Load) -> float | None:
        """Return the expected time; None while too little is known."""
        return None if self._coefficients is None else _value(self._coefficients, load)

    def learn(self, load: Load, seconds: float) -> None:
        """Learn from the measured time of a request that met the load."""
        if self._coefficients is None:
            self._first.append((load, seconds))
            if len(self._first) >= MIN_MEASUREMENTS:
                self._begin()
            return
        self._add(load, seconds, _value(self._coefficients, load))
        self._added += 1
        if self._added >= SOLVE_EVERY:
            self._coefficients, self._added = self._solved() or self._coefficients, 0

    def _begin(self) -> None:
        """Fit the first measurements together, again and again with the weights that follow from the fit before."""
        coefficients: Sequence[float] = (max(MIN_SECONDS, median(seconds for _, seconds in self._first)), 0.0, 0.0, 0.0)
        for _ in range(FIRST_ROUNDS):
            self._clear()
            for load, seconds in self._first:
                self._add(load, seconds, _value(coefficients, load))
            coefficients = self._solved() or coefficients
        self._coefficients, self._first = coefficients, []

    def _clear(self) -> None:
        self._sums = [0.0] * 14  # of the normal equations: their lower triangle row by row, then the right side
        self._growth = 1.0  # of the next weight: an earlier sum is forgotten as the later ones count more

    def _add(self, load: Load, seconds: float, expected: float) -> None:
        tokens, running = load
        product = tokens * running
        error = abs(seconds - expected) / expected
        self._growth *= FORGETTING
        weight = self._growth / (expected * expected * (error if error > 1.0 else 1.0))
        # Without loops: this is done for each request.
        by_running, by_tokens, by_product = weight * running, weight * tokens, weight * product
        sums = self._sums
        sums[0] += weight
        sums[1] += by_running
        sums[2] += by_running * running
        sums[3] += by_tokens
        sums[4] += by_tokens * running
        sums[5] += by_tokens * tokens
        sums[6] += by_product
        sums[7] += by_product * running
        sums[8] += by_product * tokens
        sums[9] += by_product * product
        sums[10] += weight * seconds
        sums[11] += by_running * seconds
        sums[12] += by_tokens * seconds
        sums[13] += by_product * seconds

    def _solved(self) -> Sequence[float] | None:
        """Return the coefficients; None when rounding leaves none."""
        sums = self._sums = [value / self._growth for value in self._sums]
        self._growth = 1.0
        matrix, vector = (sums[0:1], sums[1:3], sums[3:6], sums[6:10]), sums[10:14]
        active = [index for index in range(4) if matrix[index][index] > 0.0]
        while active:
            solution = _solve(matrix, vector, active)
            if solution is None:
                return None
            worst = min(range(len(active)), key=solution.__getitem__)
            if solution[worst] >= 0.0:
                known = dict(zip(active, solution, strict=True))
                return tuple(known.get(index, 0.0) for index in range(4))
            del active[worst]
        return None


class ExpectedTimes:
    """The models of all services."""

    def __init__(self) -> None:
        self._models: dict[ServiceKey, Model] = {}

    def seconds(self, key: ServiceKey, load: Load) -> float | None:
        """Return the expected time to first token of a service's request; None while too little is known."""
        model = self._models.get(key)
        return None if model is None else model.seconds(load)

    def learn(self, key: ServiceKey, load: Load, seconds: float) -> None:
        """Learn from a request of the service's reference revision."""
        model = self._models.get(key)
        if model is None:
            model = self._models[key] = Model()
        model.learn(load, seconds)

    def retain(self, keys: Container[ServiceKey]) -> Steps:
        """Forget services that are not among `keys`."""
        return forget(self._models, keys)


class Prompts(NamedTuple):
    """The last prompts of a revision: how many, their mean tokens, and the means of their uncached tokens and of the squares."""

    number: float = 0.0
    tokens: float = 0.0
    uncached: float = 0.0
    square: float = 0.0

    def after(self, tokens: float, uncached: float) -> Prompts:
        """Return them with one more. The last TYPICAL_REQUESTS count most."""
        count = min(self.number + 1, TYPICAL_REQUESTS)
        return Prompts(
            count,
            self.tokens + (tokens - self.tokens) / count,
            self.uncached + (uncached - self.uncached) / count,
            self.square + (uncached * uncached - self.square) / count,
        )


class TypicalPrompts:
    """The prompts of a usual request, by service and revision.

    As much of a prompt is cached on every revision as on the reference. A gateway knows only what it has been told is sent to a pod,
    and may take a new pod's cache for colder than it is.
    """

    def __init__(self) -> None:
        self._known: dict[RevisionKey, Prompts] = {}

    def add(self, key: ServiceKey, revision: str, tokens: float, uncached: float) -> None:
        """Add a prompt of so many tokens to the revision's last ones."""
        self._known[(*key, revision)] = self._known.get((*key, revision), Prompts()).after(tokens, uncached)

    def tokens(self, service: Service, revision: str) -> float:
        """Return the reference's uncached tokens, and by how much the revision's prompts are longer; 0 before any request."""
        usual, own = self._of(service, service.reference), self._of(service, revision)
        if not usual.tokens:
            return own.uncached
        return max(0.0, usual.uncached + (own.tokens - usual.tokens) * own.number / (own.number + PRIOR_PROMPTS))

    def computed(self, service: Service, revision: str, ahead: float) -> float:
        """Return how many of the tokens ahead of a request are probably computed already: a part of the first prompt.

        A request arrives in the midst of a prompt, and of a long one more probably: half of E[X^2] / E[X] is computed on average
        (the renewal paradox: Feller, "An Introduction to Probability Theory and Its Applications", volume 2, 1971, section I.4).
        Of a single prompt it is half.
        """
        usual, own = self._of(service, service.reference), self._of(service, revision)
        prior = PRIOR_PROMPTS if usual.number else 0.0
        uncached = own.number * own.uncached + prior * usual.uncached
        square = own.number * own.square + prior * usual.square
        return min(ahead, square / uncached if uncached else ahead) / 2

    def retain(self, revisions: Container[RevisionKey]) -> Steps:
        """Forget revisions that are not among `revisions`."""
        return forget(self._known, revisions)

    def _of(self, service: Service, revision: str) -> Prompts:
        return self._known.get((*service.key, revision), Prompts())


class LoadOn(Protocol):
    """`Ledger.load_on`."""

    def __call__(self, pod: Pod, now: float, *, streams: bool) -> Load: ...


class LoadsAtPick:
    """The loads that requests meet on their pods."""

    def __init__(
        self, state: State, readings: Readings, times: tuple[ExpectedTimes, ExpectedTimes],
        load_on: LoadOn,
    ) -> None:  # fmt: skip
        """`times` are those of whole answers and of streams. `load_on` returns the load on a pod of the requests of all gateways
        that tell each other."""
        self._state, self._readings, self._times, self._load_on = state, readings, times, load_on
        self.typical = TypicalPrompts()
        self._samples: dict[ServiceKey, tuple[Sequence[Pod], frozenset[str]]] = {}  # of these pods, the sampled uids

    def ahead(self, service: Service, pod: Pod, now: float, *, streams: bool) -> Load:
        """Return the load on a pod before the next request, which asks for a stream or not.

        Of the prompts that gateways have told about, the first is computed in part. The engine's last reading states how many
        more requests it has, and how many of all requests wait. Those that wait count as the revision's typical prompt.
        """
        own, reading = self._load_on(pod, now, streams=streams), self._readings.of(pod, now)
        tokens = own.tokens - self.typical.computed(service, pod.revision, own.tokens)
        if not 0.0 < reading.foreign <= MAX_FOREIGN:  # an impossible reading is none
            return Load(tokens, own.running)
        waiting = reading.foreign * min(1.0, max(0.0, reading.waiting / (reading.running + reading.waiting)))
        typical = self.typical.tokens(service, pod.revision)
        return Load(tokens + waiting * typical, own.running + reading.foreign - waiting)

    def at_pick(self, service: Service, pod: Pod, ahead: Load, cost: RequestCost, own_tokens: float) -> LoadAtPick:
        """Return the load that a request meets on its pod, with the expected time.

        `own_tokens` are those of its prompt that are not cached.
        """
        self.typical.add(service.key, pod.revision, cost.prompt_tokens, own_tokens)
        load = Load(ahead.tokens + own_tokens, ahead.running)
        expected = self._times[cost.streams].seconds(service.key, load)
        name = load_stratum(load.tokens, queued=ahead.tokens > 0)
        if pod.revision != service.reference:
            return LoadAtPick(load, name, expected)
        return LoadAtPick(load, name, expected, reference=True, sampled=pod.uid in self._sample(service))

    def retain(self) -> Steps:
        """Forget services and revisions that are gone."""
        yield from forget(self._samples, self._state.services)
        for times in self._times:
            yield from times.retain(self._state.services)
        yield from self.typical.retain(self._state.known.revisions)

    def _sample(self, service: Service) -> frozenset[str]:
        """Return the sampled pods by uid: the reference's with the lowest hashes, so that all gateways choose alike."""
        pods = self._state.snapshot.pods.get(service.key, {}).get(service.reference, ())
        known = self._samples.get(service.key)
        if known is None or known[0] is not pods:
            uids = sorted((pod.uid for pod in pods), key=lambda uid: (crc32(uid.encode()), uid))
            known = self._samples[service.key] = (pods, frozenset(uids[:MAX_SAMPLED_PODS]))
        return known[1]


def _value(coefficients: Sequence[float], load: Load) -> float:
    a, b, c, d = coefficients
    tokens, running = load
    value = a + b * running + (c + d * running) * tokens
    return value if value > MIN_SECONDS else MIN_SECONDS


def _solve(matrix: Sequence[Sequence[float]], vector: Sequence[float], active: Sequence[int]) -> list[float] | None:
    """Solve the normal equations for the active features by Cholesky's decomposition, after a scaling of each to 1."""
    scales = [math.sqrt(matrix[index][index]) for index in active]
    lower: list[list[float]] = []
    solution: list[float] = []
    for place, index in enumerate(active):
        row, rest, square = [0.0] * place, vector[index] / scales[place], 1.0 + RIDGE
        for other in range(place):
            entry = matrix[index][active[other]] / (scales[place] * scales[other])
            for earlier in range(other):
                entry -= row[earlier] * lower[other][earlier]
            row[other] = entry = entry / lower[other][other]
            rest -= entry * solution[other]
            square -= entry * entry
        if not square > 0.0:  # NaN neither
            return None
        row.append(math.sqrt(square))
        lower.append(row)
        solution.append(rest / row[place])
    for place in reversed(range(len(active))):
        for other in range(place + 1, len(active)):
            solution[place] -= lower[other][place] * solution[other]
        solution[place] /= lower[place][place]
    return [one / scale for one, scale in zip(solution, scales, strict=True)]
