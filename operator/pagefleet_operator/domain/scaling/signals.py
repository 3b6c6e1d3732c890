"""The signals of the autoscaler: every number that a fleet is sized by, in one list.

A signal may limit the sequences of one replica, ask for replicas, add words to a decision's message, and be exported as
a metric of the service. `demand` adds the signals up, `own_load_metrics` exports them.

A new signal is one entry of SIGNALS. If engines report it, it is also a field in `domain/status/engine_load.py` and has a
name on a metrics page in `pagefleet_contract/engine_metrics.py`. If users set a target for it, it is also a field in
`domain/spec/schema/targets.py`. No other file names it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pagefleet_operator.domain.scaling.replica import UNKNOWN, Replica, movable
from pagefleet_operator.domain.scaling.throughput import Curve
from pagefleet_operator.domain.spec.schema.targets import Targets
from pagefleet_operator.domain.status.engine_load import EngineLoad
from pagefleet_operator.domain.status.sample import Sample, ServiceLoad

SLOTS_USED = 0.95  # of a replica's slots; KV pages have a share of their own, target.freeKVPages
MAX_QUEUE_GROWTH = 2.0  # times the serving replicas, that a queue alone may ask for
MEAN_SHARE = 0.8  # of target.tpot, that tokens may take in the mean, so that the 95th percentile of the requests keeps the target
BASE_SHARE = 0.5  # of an empty replica's step, as it was learned: with all of it fleets shrank too far, and grew again
MAX_LATE_GROWTH = 1.5  # times the serving replicas, that late first tokens alone may ask for
NEWEST_STEPS = 6  # of arrivals: the last minute


@dataclass(frozen=True)
class Situation:
    """The readings of one revision that signals look at. `curve` is the throughput of a replica, None while it is not known.

    `recent` are the samples of the last half minute, `latest` is the last of them, or an estimate. `read` are those of the last half minute
    in which engines reported: what a replica carries is seen in them. `first_token` is the time to the first token in seconds; it is None
    while it does not describe the replicas that serve now.
    """

    latest: Sample
    recent: Sequence[Sample]
    read: Sequence[Sample]
    slots: int | None
    load: ServiceLoad | None
    target: Targets
    curve: Curve | None = None
    replica: Replica = UNKNOWN
    first_token: float | None = None

    @property
    def held(self) -> int:
        """Requests that wait in the gateways."""
        return self.load.held if self.load is not None else 0

    @property
    def queued(self) -> float:
        """Waiting requests that more replicas would help, in engines and gateways."""
        return movable(self.latest, self.replica) + self.held


@dataclass(frozen=True)
class ServiceReadings:
    """The readings of one service that signals export. `engines` is None unless every ready pod was read."""

    ready: int
    engines: EngineLoad | None
    load: ServiceLoad | None


@dataclass(frozen=True)
class Exported:
    """A metric of the service. `value` gives None while the number is not known; the series then does not exist."""

    name: str
    text: str
    value: Callable[[ServiceReadings], float | None]


@dataclass(frozen=True)
class Signal:
    """One signal and its uses; a use that it does not have keeps its default."""

    name: str
    sequences: Callable[[Situation], float] = lambda situation: math.inf  # at most so many run on one replica
    # The same, with the replica's curve at hand.
    sequences_by_curve: Callable[[Situation], float] = lambda situation: math.inf
    replicas_now: Callable[[Situation], float] = lambda situation: 0.0  # it asks for so many by the latest sample
    replicas: Callable[[Situation], float] = lambda situation: 0.0  # it asks for so many by the recent samples
    words: Callable[[Situation], str] = lambda situation: ""
    exported: tuple[Exported, ...] = ()


def _slots(situation: Situation) -> float:
    return situation.slots * SLOTS_USED if situation.slots else math.inf


def _request_words(situation: Situation) -> str:
    latest, held = situation.latest, situation.held
    words = f"{latest.load.running} requests run and {latest.load.waiting} wait on {latest.serving} replicas"
    return f"{words}, {held} wait in the gateways" if held else words


def _waiting(service: ServiceReadings) -> float | None:
    if service.engines is None:
        return None
    return service.engines.waiting + (service.load.held if service.load is not None else 0)


def _replicas_for_queue(situation: Situation) -> float:
    """A queue above its target asks for more replicas than serve now, for twice as many at most."""
    serving, depth = max(1, situation.latest.serving), situation.target.queue_depth
    if situation.queued <= depth * serving:
        return 0.0
    return min(situation.queued / depth, MAX_QUEUE_GROWTH * serving)


def _sequences_in_pages(situation: Situation) -> float:
    """Sequences that fit into the KV pages above target.freeKVPages, at the pages that a sequence takes now."""
    read = situation.read
    running = sum(sample.load.running for sample in read)
    used = sum(sample.load.kv_pages_used for sample in read)
    total = sum(sample.load.kv_pages_total or 0 for sample in read) / max(1, sum(sample.fresh for sample in read))
    if not (running and used and total):
        return math.inf
    return total * (1 - situation.target.free_kv_pages) * running / used


def _page_words(situation: Situation) -> str:
    free = situation.latest.load.kv_share_free
    if free is None:
        return "the engine reports no KV pages"
    return f"{free:.0%} of KV pages are free (target {situation.target.free_kv_pages:.0%})"


def _replicas_for_preemptions(situation: Situation) -> float:
    """One replica more while half of the recent samples have preemptions: KV pages are short, whatever their mean is."""
    recent = situation.recent
    short = sum(1 for sample in recent if (sample.load.preemptions or 0.0) > 0)
    return situation.latest.serving + 1.0 if len(recent) > 1 and 2 * short >= len(recent) else 0.0


def _throughput_words(situation: Situation) -> str:
    replica = situation.replica
    if math.isinf(replica.sequences):
        return ""
    speed = f" at {replica.tokens:.0f} tokens/s" if replica.tokens else ""
    return f"a replica carries {replica.sequences:.1f}{speed}"


def _tokens(service: ServiceReadings) -> float | None:
    if service.engines is None:
        return None
    return service.engines.tokens if service.ready else 0.0


def _arrivals(service: ServiceReadings) -> float | None:
    load = service.load
    if load is None or not math.isfinite(load.age) or not load.arrivals:
        return None
    newest = load.arrivals[-NEWEST_STEPS:]
    return sum(newest) / len(newest)


def _replicas_for_first_tokens(situation: Situation) -> float:
    """First tokens later than target.ttft ask for more replicas in proportion, for half as many again at most."""
    target, first, serving = situation.target.ttft, situation.first_token, situation.latest.serving
    if target is None or first is None or first <= target:
        return 0.0
    return max(serving + 1.0, serving * min(MAX_LATE_GROWTH, first / target))


def _first_token_words(situation: Situation) -> str:
    target, load = situation.target.ttft, situation.load
    if target is None or load is None or load.ttft is None:
        return ""
    return f"first token after {load.ttft:.2f} s (target {target:g} s)"


def _seconds_per_token(situation: Situation) -> float | None:
    """Mean seconds from a sequence's token to its next, the wait for other requests' prompts included (Little's law)."""
    running = sum(sample.load.running for sample in situation.read)
    tokens = sum(sample.load.tokens or 0.0 for sample in situation.read)
    return running / tokens if running and tokens else None


def _alone_too_slow(curve: Curve | None, target: float | None) -> bool:
    """Whether one sequence alone takes so long that no number of replicas keeps target.tpot."""
    return target is not None and curve is not None and curve.base + curve.slope >= MEAN_SHARE * target


def _sequences_in_time(situation: Situation) -> float:
    """Sequences that a replica may run so that a token takes target.tpot.

    A token takes the step of an empty replica and, in proportion to the sequences, the time of the other tokens and prompts. Only half of
    the learned step counts as the first, and nothing while the readings do not show it: below the target the result is less than what a
    replica carries, and at the target it is what it carries. It is one at least: with fewer, replicas would be idle.
    """
    target, taken, curve = situation.target.tpot, _seconds_per_token(situation), situation.curve
    if target is None or taken is None or _alone_too_slow(curve, target):
        return math.inf
    each = sum(sample.load.running for sample in situation.read) / sum(sample.fresh for sample in situation.read)
    base = BASE_SHARE * curve.base if curve is not None and curve.shown and curve.base < taken else 0.0
    return max(1.0, each * (MEAN_SHARE * target - base) / (taken - base))


def sequences_of(curve: Curve | None, target: float | None) -> float:
    """Sequences with which a replica with this curve keeps `target` seconds per token; infinitely many where none or all of them do."""
    if curve is None or target is None or curve.slope <= 0 or _alone_too_slow(curve, target):
        return math.inf
    return (MEAN_SHARE * target - curve.base) / curve.slope


def _token_words(situation: Situation) -> str:
    target, taken = situation.target.tpot, _seconds_per_token(situation)
    if target is None or taken is None:
        return ""
    words = f"{1000 * taken:.0f} ms per token (target {1000 * target:g} ms)"
    return f"{words}, which more replicas cannot reach" if _alone_too_slow(situation.curve, target) else words


SIGNALS = (
    Signal(
        "requests",
        sequences=_slots,
        words=_request_words,
        exported=(
            Exported(
                "pagefleet_requests_running",
                "Requests that replicas work on",
                lambda service: service.engines.running if service.engines is not None else None,
            ),
            Exported("pagefleet_requests_waiting", "Requests queued in replicas and held in gateways", _waiting),
        ),
    ),
    Signal("queueDepth", replicas_now=_replicas_for_queue),
    Signal(
        "freeKVPages",
        sequences=_sequences_in_pages,
        words=_page_words,
        exported=(
            Exported(
                "pagefleet_kv_pages_free_ratio",
                "Free share of the replicas' KV pages, 0 to 1",
                lambda service: service.engines.kv_share_free if service.engines is not None else None,
            ),
        ),
    ),
    Signal("preemptions", replicas=_replicas_for_preemptions),
    Signal(
        "arrivals",
        exported=(Exported("pagefleet_arrivals_per_second", "Requests that come in, of the last minute", _arrivals),),
    ),
    Signal(
        "throughput",
        words=_throughput_words,
        exported=(Exported("pagefleet_tokens_per_second", "Tokens that replicas generate", _tokens),),
    ),
    Signal("tpot", sequences_by_curve=_sequences_in_time, words=_token_words),
    Signal("ttft", replicas=_replicas_for_first_tokens, words=_first_token_words),
)
EXPORTED = tuple(exported for signal in SIGNALS for exported in signal.exported)


def sequences(situation: Situation) -> float:
    """The sequences that one replica may run at once: the smallest limit of all signals."""
    return min(signal.sequences(situation) for signal in SIGNALS)


def sequences_by_curve(situation: Situation) -> float:
    """The smallest limit of the signals that look at the replica's curve."""
    return min(signal.sequences_by_curve(situation) for signal in SIGNALS)


def replicas_now(situation: Situation) -> float:
    """The most replicas that a signal asks for by the latest sample."""
    return max(signal.replicas_now(situation) for signal in SIGNALS)


def replicas(situation: Situation) -> float:
    """The most replicas that a signal asks for by the recent samples."""
    return max(signal.replicas(situation) for signal in SIGNALS)


def words(situation: Situation) -> str:
    """The signals in words, for the message of a decision."""
    return ", ".join(text for signal in SIGNALS if (text := signal.words(situation)))
