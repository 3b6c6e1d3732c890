"""Chooses what is retained of the gateways' slices while no rollout is judged: what the watch of the stable revision uses."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection

from pagefleet_operator.domain.status.observation import START, Slice

STEP = 10.0
FULL_SECONDS = 120.0
WATCHED_SECONDS = 480.0  # the watch looks back on them


def thinned(slices: Collection[Slice], latest: float) -> list[Slice]:
    """Reduce the slices to what the watch uses, in the order of time; the newest slice begins at `latest`.

    The last two minutes stay as they are. Of the six minutes before them the slices with times by load stay, and how many
    requests ran.
    """
    full = math.floor((latest - FULL_SECONDS) / STEP) * STEP
    recent = [piece for piece in slices if piece.start >= full]
    return sorted([*_watched(slices, latest - WATCHED_SECONDS, full), *recent], key=START)


def _watched(slices: Collection[Slice], begin: float, end: float) -> list[Slice]:
    running, result = Counter[tuple[str, float, float, str, str]](), list[Slice]()
    for piece in slices:
        if not begin <= piece.start < end:
            continue
        if piece.load:
            result.append(piece)
        elif ages := piece.in_flight.get("e2e"):
            waiting = sum(piece.in_flight.get("ttft", {}).values())
            group = (piece.instance, piece.start, piece.seconds, piece.revision, piece.stratum)
            running[group] += sum(ages.values()) - waiting
    for group, count in running.items():
        result.append(Slice(*group, 0, 0, in_flight={"e2e": {0: count}}))
    return result
