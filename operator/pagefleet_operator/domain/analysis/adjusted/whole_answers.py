"""Whole answers in the place of time to first token, where clients do not stream.

The gateways measure a time to first token on streams only. Where the spec names no latency and the stable's clients hardly
stream, the guard judges whole answers, from the request's last byte to the answer's, at equal load and with the same limits.

That begins by the stable's mix: what a revision's clients ask for is no effect of the canary. It never ends in a rollout, because the
evidence is stored. From then on each kind of requests can convict, with half of the error level. Which of them has to pass follows the
kind of which the canary has answered more.
"""

from __future__ import annotations

from collections.abc import Sequence

from pagefleet_contract import sketch
from pagefleet_operator.domain.base.frozen import replace
from pagefleet_operator.domain.spec.rollout import LatencyGuard
from pagefleet_operator.domain.status.observation import Slice

SIGNAL = "e2e"
MIN_ANSWERS, RECENT_ANSWERS = 50, 400  # of the stable, by which its mix is known
MAX_STREAMS = 0.05  # share of the stable's answers


def entry_for(guard: LatencyGuard) -> LatencyGuard:
    """The entry on whole answers that stands in for one on TTFT. A bound in seconds is one of the first token."""
    return replace(guard, signal=SIGNAL, max_seconds=None)


def stand_in(slices: Sequence[Slice], stable: str) -> bool:
    """Whether the stable's last answers were whole, but for MAX_STREAMS of them. The slices are in the order of time."""
    answers = streams = 0
    for piece in reversed(slices):
        if piece.revision == stable and piece.possible and not piece.adjusted:
            answers += sketch.total(piece.latency.get("e2e", {}))
            streams += sketch.total(piece.latency.get("ttft", {}))
            if answers >= RECENT_ANSWERS:
                break
    return answers >= MIN_ANSWERS and streams < MAX_STREAMS * answers
