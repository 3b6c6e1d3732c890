"""The capacity of one replica, and the number of replicas that a load asks for by it. Decides nothing."""

from __future__ import annotations

import math
from dataclasses import dataclass

from pagefleet_operator.domain.scaling.inflow import Flow
from pagefleet_operator.domain.scaling.throughput import Curve
from pagefleet_operator.domain.status.sample import Sample

ROOM = 1.0  # spare capacity for chance, in standard deviations of the concurrency
MIN_SEQUENCES = 0.1
SURE_OF_CURVE = 2.0  # standard errors
FULL = 0.8  # of the target concurrency; above it a waiting request waits for a slot
DRAIN_SECONDS = 30.0  # in which the ready replicas should take up the queue


@dataclass(frozen=True)
class Replica:
    """The load that one replica carries at its target.

    `tokens` (per second) is None while the replica's curve is not known. `sure_tokens` is the throughput that the
    replica has almost certainly, even at a concurrency that the readings hardly cover; None while no reading shows it.
    """

    sequences: float = math.inf
    tokens: float | None = None
    sure_tokens: float | None = None


UNKNOWN = Replica()


def replica_of(sequences: float, curve: Curve | None) -> Replica:
    """The replica that runs at most so many sequences, with the throughput of its curve at that concurrency."""
    sequences = max(sequences, MIN_SEQUENCES)
    if curve is None or math.isinf(sequences):
        return Replica(sequences)
    sure = curve.throughput(sequences, SURE_OF_CURVE) if curve.shown else None
    return Replica(sequences, curve.throughput(sequences), sure)


def carrying(running: float, tokens: float, replica: Replica) -> float:
    """Replicas that carry so many sequences and so many tokens per second, with room for chance.

    The concurrency of C sequences varies by about sqrt(C), so the room is a share of 1 / sqrt(C): a larger fleet needs
    less of it (the square-root staffing rule: Halfin and Whitt, Operations Research 29:3, 1981).
    """
    carried = max(running / replica.sequences, tokens / replica.tokens if replica.tokens else 0.0)
    return carried * (1 + ROOM / math.sqrt(max(1.0, running)))


def taking_up(queued: float, replica: Replica, flow: Flow) -> float:
    """Replicas that take up `queued` requests within DRAIN_SECONDS.

    Each new replica begins with all its slots empty and then continues at its own speed.
    """
    if math.isinf(replica.sequences):
        return 0.0
    more = replica.tokens * DRAIN_SECONDS / flow.each if replica.tokens and flow.each else 0.0
    return queued / (replica.sequences + more)


def running(sample: Sample) -> float:
    """Running sequences of all serving pods. Pods without a reading are assumed to be like the others."""
    return sample.load.running * sample.serving / sample.fresh


def movable(sample: Sample, replica: Replica) -> float:
    """Waiting requests that more replicas would help.

    They are all waiting requests when the engines are full together or when each engine has a queue. While an engine
    elsewhere has a free slot, more replicas would not help a request that waits.
    """
    full = sample.load.running >= FULL * replica.sequences * sample.fresh or math.isinf(replica.sequences)
    return sample.load.waiting * sample.serving / sample.fresh if full or sample.unqueued == 0 else 0.0
