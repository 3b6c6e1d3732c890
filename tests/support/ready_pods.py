"""When each revision had a Ready pod, by the pods' own history, and the statuses that gave a revision weight without one.

Services and pods are in one etcd: their resourceVersions are one order of events. A status is decided a moment before it is
written, so a pod that was Ready within GRACE_SECONDS before still counts.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from pagefleet_contract.names import REVISION_LABEL, SERVICE_LABEL

GRACE_SECONDS = 5.0
Owner = tuple[str, str, str]  # namespace, service, revision


@dataclass
class _Span:
    """A pod was Ready from the resourceVersion `first` to `last`; `until` by the monotonic clock."""

    uid: str
    first: int
    last: float = math.inf
    until: float = math.inf


@dataclass
class ReadyPods:
    """The history of pods. `gaps` are the resourceVersions after which events may be missing."""

    spans: dict[Owner, list[_Span]] = field(default_factory=dict)
    gaps: list[int] = field(default_factory=list)
    _seen: int = 0
    _times: list[tuple[int, float]] = field(default_factory=list)

    def take(self, event: Mapping[str, Any], now: float) -> None:
        """Record one event of a watch, received at `now`."""
        metadata = event["object"]["metadata"]
        self._seen = int(metadata["resourceVersion"])
        self._times.append((self._seen, now))
        labels = metadata.get("labels") or {}
        owner = (metadata["namespace"], labels.get(SERVICE_LABEL, ""), labels.get(REVISION_LABEL, ""))
        spans = self.spans.setdefault(owner, [])
        open_span = next((span for span in spans if span.uid == metadata["uid"] and span.until == math.inf), None)
        ready = event["type"] != "DELETED" and _is_ready(event["object"])
        if ready and open_span is None:
            spans.append(_Span(metadata["uid"], self._seen))
        elif not ready and open_span is not None:
            open_span.last, open_span.until = self._seen, now

    def missed(self) -> None:
        """Record that the watch has lost its position: what it missed is not known."""
        self.gaps.append(self._seen)

    def without_pods(self, documents: Iterable[Mapping[str, Any]]) -> list[str]:
        """Return the revisions that got their first weight without a Ready pod, over a service's versions, oldest first."""
        if self.gaps:
            return []
        found = []
        for before, after in pairwise(documents):
            metadata = after["metadata"]
            if before["metadata"]["uid"] != metadata["uid"]:
                continue
            old, version = _weights(before), int(metadata["resourceVersion"])
            for revision, weight in _weights(after).items():
                owner = (metadata["namespace"], metadata["name"], revision)
                if weight and not old.get(revision) and not self._had(owner, version):
                    found.append(f"at {version}: revision {revision} gets {weight} % and no pod of it is Ready")
        return found

    def _had(self, owner: Owner, version: int) -> bool:
        """Whether a pod was Ready at a resourceVersion, or a moment before."""
        earliest = next((now for seen, now in reversed(self._times) if seen <= version), 0.0) - GRACE_SECONDS
        return any(span.first <= version and (span.last > version or span.until >= earliest)
                   for span in self.spans.get(owner, ()))  # fmt: skip


def _weights(document: Mapping[str, Any]) -> dict[str, int]:
    traffic = (document.get("status") or {}).get("traffic") or ()
    return {entry["revision"]: int(entry.get("weight", 0)) for entry in traffic}


def _is_ready(pod: Mapping[str, Any]) -> bool:
    conditions = (pod.get("status") or {}).get("conditions") or ()
    return any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)
