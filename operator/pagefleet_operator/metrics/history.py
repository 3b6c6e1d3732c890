"""What the operator remembers of revisions between two decisions, in memory only: their load of the last half hour, and
how long each pod took to its first Ready. A restarted operator begins anew, and shrinks nothing until it has enough."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from pagefleet_operator.domain.scaling.load import remember, sample
from pagefleet_operator.domain.status.observation import PodReading, RevisionReading
from pagefleet_operator.domain.status.sample import Sample
from pagefleet_operator.kube.store import ServiceKey


class Past:
    def __init__(self) -> None:
        self._histories: dict[ServiceKey, dict[str, tuple[Sample, ...]]] = {}
        self._startups: dict[ServiceKey, dict[str, float]] = {}

    def remembered(
        self, key: ServiceKey, found: Mapping[str, RevisionReading], now: float
    ) -> dict[str, RevisionReading]:
        """The readings with their past, which they become part of."""
        before, startups = self._histories.get(key, {}), self._startups.get(key, {})
        names = {pod.name for reading in found.values() for pod in reading.pods}
        kept = self._startups[key] = {name: seconds for name, seconds in startups.items() if name in names}
        result, histories = {}, {}
        for name, reading in found.items():
            pods = tuple(_started(pod, kept) for pod in reading.pods)
            result[name] = replace(reading, pods=pods, history=before.get(name, ()))
            histories[name] = remember(before.get(name, ()), sample(reading, now))
        self._histories[key] = histories
        return result

    def forget(self, key: ServiceKey) -> None:
        self._histories.pop(key, None)
        self._startups.pop(key, None)


def _started(pod: PodReading, known: dict[str, float]) -> PodReading:
    """A pod that was not ready for a while is not a new one: its first Ready counts."""
    if pod.ready and pod.ready_since is not None:
        known.setdefault(pod.name, max(0.0, pod.ready_since - pod.created))
    return replace(pod, startup=known.get(pod.name))
