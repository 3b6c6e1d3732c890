"""Whole answers in the place of time to first token, where clients do not stream.

The gateways measure a time to first token on streams only. Where the spec names no latency and the stable's clients hardly
stream, the guard judges whole answers, from the request's last byte to the answer's, at equal load and with the same limits.

That begins by the stable's mix: what a revision's clients ask for is no effect of the canary. It never ends in a rollout, because the
evidence is stored. From then on each kind of requests can convict, with half of the error level. Which of them has to pass follows the
kind of which the canary has answered more.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pagefleet_contract import sketch
from pagefleet_operator.domain.base.frozen import replace
from pagefleet_operator.domain.spec.rollout import LatencyGuard
from pagefleet_operator.domain.status.observation import Slice
from pagefleet_operator.domain.status.status import BaselineRecord

SIGNAL = "e2e"
MIN_ANSWERS, RECENT_ANSWERS = 50, 400  # of the stable, by which its mix is known
MAX_STREAMS = 0.05  # share of the stable's answers


def entry_for(guard: LatencyGuard) -> LatencyGuard:
    """The entry on whole answers that stands in for one on TTFT. A bound in seconds is one of the first token."""
    return replace(guard, signal=SIGNAL, max_seconds=None)


def entries_for(entries: Iterable[LatencyGuard]) -> tuple[LatencyGuard, ...]:
    """The guard's entries, with whole answers in the place of first tokens."""
    return tuple(entry_for(entry) if entry.by_load else entry for entry in entries)


def recorded(baseline: Iterable[BaselineRecord]) -> bool:
    """Whether the record for a watch after promotion is of whole answers. Where they stand in, no entry of the guard names their signal."""
    return any(one.signal == SIGNAL for one in baseline)


def without_tokens(slices: Iterable[Slice], revision: str) -> bool | None:
    """Whether a revision's answers are whole, but for MAX_STREAMS of them, and have no output tokens, as embeddings have none.

    None where nothing was measured by load.
    """
    counts = {True: 0, False: 0}  # of whole answers, and of streams
    for piece in slices:
        if piece.revision != revision or not piece.possible:
            continue
        if piece.tokens:
            return False
        if piece.adjusted:
            counts[piece.whole] += sum(sketch.total(one.ttft) for one in piece.load.values())
    return counts[False] < MAX_STREAMS * counts[True] if any(counts.values()) else None


def of_copies(engine: Sequence[Slice]) -> bool:
    """Whether engines have measured whole answers, and hardly a first token: embeddings have none. They measure both of all texts."""
    ended, first = (sum(sketch.total(one.latency.get(name, {})) for one in engine) for name in (SIGNAL, "ttft"))
    return first < MAX_STREAMS * ended


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
