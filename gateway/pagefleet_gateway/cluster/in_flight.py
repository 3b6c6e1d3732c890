"""The requests in flight on each pod: how this gateway counts its own, and what the other gateways say of theirs. Pure.

Each gateway tells the others what has changed (exchange.py), so that all of them know the same load of every pod, and a crowd
that comes through several gateways does not run to one pod. A scrape alone shows other gateways' requests up to a second late,
and without the lengths of their prompts.

Total: a row of another gateway that is malformed is left out.
"""

from __future__ import annotations

import math
from collections.abc import Container, Mapping
from dataclasses import dataclass

from pagefleet_gateway.cluster.steps import Steps, forget, parts

MAX_PODS = 100_000  # that one gateway may tell about
MAX_COUNT = 1e12


@dataclass(slots=True)
class PodCounts:
    """Requests in flight on a pod, as its first choice. Copies are among them."""

    requests: int = 0
    tokens: int = 0  # the work that they cause, as estimated at their picks
    waiting: int = 0  # streams without a first token
    waiting_tokens: int = 0  # their prompts' uncached tokens
    unstreamed_tokens: int = 0  # the uncached tokens of all others whose first token nobody reports

    def add(self, other: PodCounts, sign: int = 1) -> None:
        self.requests += sign * other.requests
        self.tokens += sign * other.tokens
        self.waiting += sign * other.waiting
        self.waiting_tokens += sign * other.waiting_tokens
        self.unstreamed_tokens += sign * other.unstreamed_tokens

    def row(self, sent: float) -> list[int]:
        """Return the row that is sent to other gateways: the counts, and the prompt tokens ever sent to the pod."""
        return [self.requests, self.tokens, self.waiting, self.waiting_tokens, self.unstreamed_tokens, round(sent)]


IDLE = PodCounts()


class OwnCounts:
    """The requests in flight of this gateway. `pods` are its counts by uid, without pods that have no request."""

    def __init__(self) -> None:
        self.pods: dict[str, PodCounts] = {}
        self._changed: set[str] = set()  # the uids of pods whose counts have changed since `take_changed`

    def changing(self, uid: str) -> PodCounts:
        """Return a pod's counts to change them."""
        self._changed.add(uid)
        counts = self.pods.get(uid)
        if counts is None:
            counts = self.pods[uid] = PodCounts()
        return counts

    def end(self, uid: str, tokens: int, unstreamed: int) -> None:
        """End a request on a pod. An idle pod is forgotten, so that no rounding or restart leaves a rest."""
        counts = self.pods.get(uid)
        if counts is None:
            return
        self._changed.add(uid)
        if counts.requests <= 1:
            del self.pods[uid]
            return
        counts.requests -= 1
        counts.tokens -= tokens
        counts.unstreamed_tokens -= unstreamed

    def take_changed(self) -> set[str]:
        """Return the uids of pods whose counts have changed since the last call."""
        changed, self._changed = self._changed, set()
        return changed

    def retain(self, uids: Container[str]) -> Steps:
        """Forget pods that are not among `uids`."""
        yield from forget(self.pods, uids)
        yield from forget(self._changed, uids)


class OtherGateways:
    """The requests in flight of the other gateways, by pod uid."""

    def __init__(self) -> None:
        self._told: dict[str, dict[str, tuple[PodCounts, int]]] = {}  # by gateway and uid; with the tokens ever sent
        self._sums: dict[str, PodCounts] = {}

    def counts(self, uid: str) -> PodCounts:
        """Return the requests of all other gateways on a pod, only to be read."""
        return self._sums.get(uid, IDLE)

    def update(self, gateway: str, rows: object) -> dict[str, int]:
        """Take over what has changed at a gateway. Return the prompt tokens that it has sent since, by uid."""
        sent: dict[str, int] = {}
        told = self._told.setdefault(gateway, {})
        for uid, row in rows.items() if isinstance(rows, Mapping) else ():
            read = _read(row)
            if read is None or not isinstance(uid, str) or (uid not in told and len(told) >= MAX_PODS):
                continue
            counts, total = read
            # Of a pod that was not told about before, at most what is in flight there is new.
            unknown = IDLE, max(0, total - counts.waiting_tokens - counts.unstreamed_tokens)
            before, sent_before = told.get(uid, unknown)
            told[uid] = read
            self._change(uid, before, counts)
            if total > sent_before:
                sent[uid] = total - sent_before
        return sent

    def forget(self, gateway: str) -> None:
        """Forget a gateway that is gone or silent: the engines' own numbers show its requests then."""
        for uid, (counts, _) in self._told.pop(gateway, {}).items():
            self._change(uid, counts, IDLE)

    def retain(self, uids: Container[str]) -> Steps:
        """Forget pods that are not among `uids`."""
        for told in list(self._told.values()):
            for part in parts(told):
                for uid in [uid for uid in part if uid not in uids and uid in told]:
                    self._change(uid, told.pop(uid)[0], IDLE)
                yield

    def _change(self, uid: str, before: PodCounts, after: PodCounts) -> None:
        if not before.requests and not after.requests:
            return
        total = self._sums.get(uid)
        if total is None:
            total = self._sums[uid] = PodCounts()
        total.add(before, -1)
        total.add(after)
        if total.requests <= 0:
            del self._sums[uid]


def _read(row: object) -> tuple[PodCounts, int] | None:
    if not isinstance(row, list) or len(row) != 6:
        return None
    if not all(isinstance(value, int | float) and math.isfinite(value) and 0 <= value <= MAX_COUNT for value in row):
        return None
    requests, tokens, waiting, waiting_tokens, unstreamed_tokens, sent = map(int, row)
    return PodCounts(requests, tokens, waiting, waiting_tokens, unstreamed_tokens), sent
