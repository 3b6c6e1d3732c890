"""How slow each pod is beside the others of its revision, from times to first token of all gateways. Pure.

Pods of one revision may be on different accelerators. A pod's pace is the geometric mean, over its latest times to first token, of each
divided by the time that was expected of the service at the same load (picking/expected.py). A geometric mean, because few requests wait
very long, and a sum is theirs alone. Its slowness is that quotient divided by the mean over the revision's pods. A difference of less
than a quarter is taken for chance.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from pagefleet_gateway.cluster.state import Pod, RevisionKey, revision_key
from pagefleet_gateway.cluster.steps import Steps, forget, parts

MEMORY, SAMPLES = 0.995, 60  # how much of a pod's sums each new time leaves; times of all gateways before they count
CHANCE, MOST = 1.25, 4.0  # times the revision's mean: below it no difference, and never more than
MAX_COMPARED = 300  # pods in one call: a few milliseconds
MILLIONTHS = 1e6
MAX_COUNT = 1 << 48
MAX_LOG = 20.0


class Pace(NamedTuple):
    """The weighted sum of the logarithms of a pod's times to first token over the expected ones, the sum of the weights, and how
    many times there were."""

    logs: float = 0.0
    weight: float = 0.0
    samples: int = 0


class Paces:
    def __init__(self) -> None:
        self.own: dict[str, Pace] = {}  # by the pod's uid
        self._others: dict[str, dict[str, Pace]] = {}  # by gateway and uid
        self._pods: Mapping[str, Pod] = {}  # by uid, those that there are, since the first `retain`
        self._changed: set[str] = set()  # uids whose own sums have changed since `take_changed`
        self._measured: dict[RevisionKey, set[str]] = {}  # the uids of which there are sums
        # The revisions of which sums have changed since they were compared, the oldest first.
        self._stale: dict[RevisionKey, None] = {}
        self._slowness: dict[str, float] = {}  # by uid, where it is not 1

    def of(self, pod: Pod) -> float:
        """Return how many times as long as in its revision's mean a prompt takes in the pod; 1 where no difference is known."""
        return self._slowness.get(pod.uid, 1.0)

    def learn(self, pod: Pod, seconds: float, expected: float | None) -> None:
        """Learn from a time to first token, and the one that the load at its pick let expect; None: not known."""
        if expected is None or not 0 < expected < math.inf or not 0 < seconds < math.inf:
            return
        pace = self.own.get(pod.uid, Pace())
        logs = MEMORY * pace.logs + math.log(seconds / expected)
        self.own[pod.uid] = Pace(logs, MEMORY * pace.weight + 1, pace.samples + 1)
        self._changed.add(pod.uid)
        self._mark(pod)

    def rows(self, uids: Iterable[str]) -> dict[str, list[int]]:
        """Return this gateway's sums of these pods, for another gateway, by uid: in millionths, and the number of times."""
        return {uid: _row(self.own[uid]) for uid in uids if uid in self.own}

    def take_changed(self) -> dict[str, list[int]]:
        """Return the rows that have changed since the last call."""
        changed, self._changed = self._changed, set()
        return self.rows(changed)

    def hear(self, gateway: str, rows: object) -> None:
        """Take over another gateway's sums. Total: a row that is malformed is left out."""
        told = self._others.setdefault(gateway, {})
        for uid, row in rows.items() if isinstance(rows, Mapping) else ():
            if (
                isinstance(uid, str)
                and isinstance(row, list)
                and len(row) == 3
                and all(map(_is_number, row))
                and row[1] > 0
            ):
                told[uid] = Pace(row[0] / MILLIONTHS, row[1] / MILLIONTHS, row[2])
                if (pod := self._pods.get(uid)) is not None:
                    self._mark(pod)

    def _mark(self, pod: Pod) -> None:
        key = revision_key(pod)
        self._measured.setdefault(key, set()).add(pod.uid)
        self._stale.setdefault(key, None)

    def refresh(self) -> None:
        """Compare the pods of revisions whose times have changed: some hundred pods at most, the rest at the next call."""
        compared = 0
        while self._stale and compared < MAX_COMPARED:
            key = next(iter(self._stale))
            del self._stale[key]
            uids = {uid for uid in self._measured.pop(key, ()) if uid in self._pods}
            if uids:
                self._measured[key] = uids
                self._compare(uids)
            compared += 1 + len(uids)

    def _compare(self, uids: Iterable[str]) -> None:
        totals = {uid: self._total(uid) for uid in uids}
        known = {uid: _quotient(one) for uid, one in totals.items() if one.samples >= SAMPLES}
        mean = sum(known.values()) / len(known) if known else 0.0
        for uid, quotient in known.items():
            slowness = quotient / mean if mean > 0 else 1.0
            if 1 / CHANCE < slowness < CHANCE:
                self._slowness.pop(uid, None)
            else:
                self._slowness[uid] = min(max(1 / MOST, slowness), MOST)

    def _total(self, uid: str) -> Pace:
        paces = [self.own.get(uid, Pace()), *(told[uid] for told in self._others.values() if uid in told)]
        logs, weight = sum(pace.logs for pace in paces), sum(pace.weight for pace in paces)
        return Pace(logs, weight, sum(pace.samples for pace in paces) if weight > 0 else 0)

    def retain(self, pods: Mapping[str, Pod]) -> Steps:
        """Forget pods that are not among `pods`, by uid. What a gateway that is gone has told of the others stays."""
        self._pods = pods
        for told in list(self._others.values()):
            yield from forget(told, pods)
        for gateway in [gateway for gateway, told in self._others.items() if not told]:
            del self._others[gateway]
        yield from forget(self.own, pods)
        yield from forget(self._slowness, pods)
        yield from forget(self._changed, pods)
        for part in parts(self._measured):
            for key in part:
                if left := self._measured.pop(key, set()) & pods.keys():
                    self._measured[key] = left
            yield
        yield from forget(self._stale, self._measured)


def _quotient(pace: Pace) -> float:
    return math.exp(max(-MAX_LOG, min(pace.logs / pace.weight, MAX_LOG)))


def _row(pace: Pace) -> list[int]:
    return [round(pace.logs * MILLIONTHS), round(pace.weight * MILLIONTHS), pace.samples]


def _is_number(value: object) -> bool:
    return type(value) is int and -MAX_COUNT <= value <= MAX_COUNT
