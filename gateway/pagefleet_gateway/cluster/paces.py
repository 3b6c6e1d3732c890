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

from pagefleet_gateway.cluster.state import Pod

MEMORY, SAMPLES = 0.995, 60  # how much of a pod's sums each new time leaves; times of all gateways before they count
CHANCE, MOST = 1.25, 4.0  # times the revision's mean: below it no difference, and never more than
MAX_COMPARED = 300  # pods in one call: a few milliseconds
MILLIONTHS = 1e6
MAX_COUNT = 1 << 48
MAX_LOG = 20.0

RevisionKey = tuple[str, str, str]  # namespace, service, revision


def revision_key(pod: Pod) -> RevisionKey:
    return (pod.namespace, pod.service, pod.revision)


class Pace(NamedTuple):
    """The weighted sum of the logarithms of a pod's times to first token over the expected ones, the sum of the weights, and how
    many times there were."""

    logs: float = 0.0
    weight: float = 0.0
    samples: int = 0


class Paces:
    def __init__(self) -> None:
        self._own: dict[str, Pace] = {}  # by the pod's uid
        self._others: dict[str, dict[str, Pace]] = {}  # by gateway and uid
        self._pods: Mapping[str, Pod] = {}  # by uid, as of the last `retain`
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
        pace = self._own.get(pod.uid, Pace())
        logs = MEMORY * pace.logs + math.log(seconds / expected)
        self._own[pod.uid] = Pace(logs, MEMORY * pace.weight + 1, pace.samples + 1)
        self._changed.add(pod.uid)
        self._mark(pod)

    def rows(self) -> dict[str, list[int]]:
        """Return this gateway's sums, for another gateway, by uid: the sums in millionths, and the number of times."""
        return {uid: _row(pace) for uid, pace in self._own.items()}

    def take_changed(self) -> dict[str, list[int]]:
        """Return the rows that have changed since the last call."""
        changed, self._changed = self._changed, set()
        return {uid: _row(self._own[uid]) for uid in changed if uid in self._own}

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
        paces = [self._own.get(uid, Pace()), *(told[uid] for told in self._others.values() if uid in told)]
        logs, weight = sum(pace.logs for pace in paces), sum(pace.weight for pace in paces)
        return Pace(logs, weight, sum(pace.samples for pace in paces) if weight > 0 else 0)

    def retain(self, pods: Mapping[str, Pod]) -> None:
        """Forget pods that are not among `pods`, by uid. What a gateway that is gone has told of the others stays."""
        self._pods = pods
        self._own = {uid: pace for uid, pace in self._own.items() if uid in pods}
        self._others = {
            gateway: kept
            for gateway, told in self._others.items()
            if (kept := {uid: pace for uid, pace in told.items() if uid in pods})
        }
        self._slowness = {uid: value for uid, value in self._slowness.items() if uid in pods}
        self._measured = {key: left for key, uids in self._measured.items() if (left := uids & pods.keys())}
        self._stale = {key: None for key in self._stale if key in self._measured}
        self._changed &= pods.keys()


def _quotient(pace: Pace) -> float:
    return math.exp(max(-MAX_LOG, min(pace.logs / pace.weight, MAX_LOG)))


def _row(pace: Pace) -> list[int]:
    return [round(pace.logs * MILLIONTHS), round(pace.weight * MILLIONTHS), pace.samples]


def _is_number(value: object) -> bool:
    return type(value) is int and -MAX_COUNT <= value <= MAX_COUNT
