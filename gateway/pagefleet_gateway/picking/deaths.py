"""Requests that engines died of, as far as a gateway can tell: the engine had the request when it died. Pure.

A request is known by its service and its body. Envoy retries by itself. So the first request with a body goes to as many
pods as `traffic.retries` allows while each of them cuts the connection. The API of our engine outlives its engine process.
It answers the first attempt with 503, which is retried, and a retry with 500, which is not: two engines, and no third.

After one death the body goes to one pod, without a retry and without a copy. After two it is refused for a minute. Then one
request with it may pass, and each further death doubles the time. A whole answer forgives it: the engines died of something
else.

Many clients may send the same body at one time, a health check's for example. An engine that dies of something else often has
some of these requests, and the others must keep their retries. A body that ends engines is never answered. So for a body that
was answered whole shortly before the first death, one death does not count.

Engines also die together: a node is lost, and a body that many send was in several of them. So engines that die within a few
seconds are one death for a body, unless it was sent to the next of them after the first had died. Even that is no evidence when an
engine that did not have the body died in these seconds too.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict, deque
from dataclasses import dataclass, field
from typing import NamedTuple

from pagefleet_gateway.cluster.service import ServiceKey
from pagefleet_gateway.cluster.steps import Steps, parts

DEATHS_TO_REFUSE = 2
FIRST_REFUSAL_SECONDS, MAX_REFUSAL_SECONDS = 60.0, 3600.0
ONE_DEATH_SECONDS = 5.0  # connections that a pod cuts within this time are cut by one death
# Engines that die within this time after another may have died of one thing, such as a lost node.
TOGETHER_SECONDS = 5.0
FORGET_SECONDS = 2 * MAX_REFUSAL_SECONDS  # after the last death of a body that is refused
SUSPECT_SECONDS = 900.0  # after the last death of another body: two evictions an hour apart are no evidence
MAX_FALLEN = 1_000  # deaths of pods that are remembered
MAX_RECORDS = 10_000  # of deaths, and of answers
ANSWER_VOUCHES_SECONDS = 600.0

Content = tuple[ServiceKey, bytes]


def content(service: ServiceKey, body: bytes) -> Content | None:
    """Return what a request is known by; None without a body, because no engine computes that."""
    return (service, hashlib.blake2b(body, digest_size=16).digest()) if body else None


class _Death(NamedTuple):
    uid: str
    at: float
    sent: float  # when the pod got the content


@dataclass
class _Record:
    deaths: list[_Death] = field(default_factory=list)  # since the last whole answer
    by_pod: dict[str, float] = field(default_factory=dict)  # the last death of each pod that had the content, by uid
    # The uids of pods that had mirrored copies of it: nobody reports how these end.
    copies: set[str] = field(default_factory=set)
    last: float = 0.0  # death
    refused_until: float = 0.0
    spare: int = 0  # deaths that change nothing: 1 where the content had been answered shortly before the first


class Deaths:
    """The deaths of engines, by the content that they had. Times are seconds of any steady clock."""

    def __init__(self) -> None:
        self._records: OrderedDict[Content, _Record] = OrderedDict()
        self._answered: OrderedDict[Content, float] = OrderedDict()  # the last whole answer to each, the oldest first
        self._fallen: deque[tuple[str, float]] = deque(maxlen=MAX_FALLEN)  # uids of pods, and when they died

    def record_death(
        self, known: Content | None, uid: str, now: float, sent: float | None = None, copy: str | None = None
    ) -> None:
        """Count that the pod's engine died while it had the content, since `sent`; None: it got it a moment ago. `copy` is the uid
        of a pod that got a mirrored copy.
        """
        if not any(fallen == uid and now < at + ONE_DEATH_SECONDS for fallen, at in reversed(self._fallen)):
            self._fallen.append((uid, now))
        if known is None:
            return
        record = self._records.setdefault(known, _Record())
        if copy is not None:
            record.copies.add(copy)
        if uid in record.by_pod and now < record.by_pod[uid] + ONE_DEATH_SECONDS:
            return
        if record.deaths and record.last + self._lifetime(record) < now:
            record.deaths.clear()
        if not record.deaths:
            record.spare = int(self._answered.get(known, -ANSWER_VOUCHES_SECONDS) + ANSWER_VOUCHES_SECONDS > now)
        record.by_pod[uid] = record.last = now
        record.deaths.append(_Death(uid, now, now if sent is None else sent))
        if (more := self._deaths(record) - DEATHS_TO_REFUSE - record.spare) >= 0:
            record.refused_until = now + min(FIRST_REFUSAL_SECONDS * 2.0 ** min(more, 8), MAX_REFUSAL_SECONDS)
        if len(self._records) > MAX_RECORDS:
            self._records.popitem(last=False)

    def record_answer(self, known: Content | None, now: float) -> None:
        """Forgive the content after a whole answer to it. Connections that break later because of the last death are not a new one."""
        if known is None:
            return
        self._answered[known] = now
        self._answered.move_to_end(known)
        if len(self._answered) > MAX_RECORDS:
            self._answered.popitem(last=False)
        if record := self._record(known):
            record.deaths.clear()
            record.refused_until = 0.0

    def count(self, known: Content | None) -> int:
        """Return how many engines died with the content since its last whole answer."""
        record = self._record(known)
        return 0 if record is None else self._deaths(record)

    def suspected(self, known: Content | None) -> bool:
        """Whether engines may have died of the content, so that it goes to one pod at most."""
        record = self._record(known)
        return record is not None and self._deaths(record) > record.spare

    def wait(self, known: Content | None, now: float) -> float:
        """Return the seconds for which the content is refused. A 0 refuses it for a minute more: one request may pass."""
        record = self._record(known)
        if record is None or self._deaths(record) < DEATHS_TO_REFUSE + record.spare:
            return 0.0
        if record.refused_until > now:
            return record.refused_until - now
        record.refused_until = now + FIRST_REFUSAL_SECONDS
        return 0.0

    def sweep(self, now: float) -> Steps:
        """Forget contents whose last death is long ago or was forgiven, and answers that are too old to matter."""
        for part in parts(self._records):
            for known in part:
                record = self._records.get(known)
                if record is not None and record.last + self._lifetime(record) < now:
                    del self._records[known]
            yield
        for part in parts(self._answered):
            for known in part:
                if self._answered.get(known, now) + ANSWER_VOUCHES_SECONDS < now:
                    del self._answered[known]
            yield

    def _record(self, known: Content | None) -> _Record | None:
        return self._records.get(known) if known is not None and self._records else None

    def _deaths(self, record: _Record) -> int:
        """Count deaths that speak against the content: of engines that died together one, and those that got it after the first."""
        count, began, others = 0, -TOGETHER_SECONDS, False
        for death in record.deaths:
            if not count or death.at >= began + TOGETHER_SECONDS:
                count, began = count + 1, death.at
                others = self._others_died(record, began)
            elif death.sent >= began and not others:
                count += 1
        return count

    def _others_died(self, record: _Record, began: float) -> bool:
        return any(
            abs(at - began) < TOGETHER_SECONDS and uid not in record.by_pod and uid not in record.copies
            for uid, at in self._fallen
        )

    def _lifetime(self, record: _Record) -> float:
        if not record.deaths:
            return ONE_DEATH_SECONDS
        return FORGET_SECONDS if self._deaths(record) >= DEATHS_TO_REFUSE + record.spare else SUSPECT_SECONDS
