"""The operator's memory of revisions between two decisions: the load of the last half hour, and the pods' start-up times.

It is in memory only. A restarted operator begins again, and shrinks nothing until it has enough readings.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from pagefleet_operator.domain.scaling.load import remember, sample
from pagefleet_operator.domain.status.observation import PodReading, RevisionReading
from pagefleet_operator.domain.status.sample import Sample
from pagefleet_operator.kube.store import ServiceKey


class Past:
    """The histories of the revisions of every service."""

    def __init__(self) -> None:
        self._histories: dict[ServiceKey, dict[str, tuple[Sample, ...]]] = {}
        self._startups: dict[ServiceKey, dict[str, float]] = {}

    def remembered(
        self, key: ServiceKey, readings: Mapping[str, RevisionReading], now: float
    ) -> dict[str, RevisionReading]:
        """Add the past to the readings of a service's revisions, and remember these readings for the next time."""
        before, startups = self._histories.get(key, {}), self._startups.get(key, {})
        names = {pod.name for reading in readings.values() for pod in reading.pods}
        known = self._startups[key] = {name: seconds for name, seconds in startups.items() if name in names}
        result, histories = {}, {}
        for name, reading in readings.items():
            pods = tuple(_with_startup(pod, known) for pod in reading.pods)
            result[name] = replace(reading, pods=pods, history=before.get(name, ()))
            histories[name] = remember(before.get(name, ()), sample(reading, now))
        self._histories[key] = histories
        return result

    def forget(self, key: ServiceKey) -> None:
        """Drop the past of a deleted service."""
        self._histories.pop(key, None)
        self._startups.pop(key, None)


def _with_startup(pod: PodReading, known: dict[str, float]) -> PodReading:
    """The pod with its start-up time: the time to its first Ready, also when it was not ready for a while since."""
    if pod.ready and pod.ready_since is not None:
        known.setdefault(pod.name, max(0.0, pod.ready_since - pod.created))
    return replace(pod, startup=known.get(pod.name))
