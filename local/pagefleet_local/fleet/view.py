"""The parts of an InferenceService that the demo and the tests look at. Pure."""

from __future__ import annotations

import datetime
import json
from dataclasses import dataclass

from pagefleet_local.fleet.kubectl import Document


@dataclass(frozen=True)
class View:
    """An InferenceService read through kubectl; missing parts read as empty."""

    document: Document

    @property
    def status(self) -> Document:
        return dict(self.document.get("status") or {})

    @property
    def created(self) -> float:
        """When the object was created, in UNIX seconds."""
        return datetime.datetime.fromisoformat(self.document["metadata"]["creationTimestamp"]).timestamp()

    @property
    def stable(self) -> str:
        return str(self.status.get("stable", ""))

    @property
    def canary(self) -> str:
        return str(self.status.get("canary", ""))

    @property
    def weights(self) -> dict[str, int]:
        return {entry["revision"]: int(entry["weight"]) for entry in self.status.get("traffic") or []}

    @property
    def verdict(self) -> Document:
        return dict((self.status.get("rollout") or {}).get("verdict") or {})

    @property
    def phase(self) -> str:
        return str((self.status.get("rollout") or {}).get("phase", ""))

    def condition(self, kind: str) -> Document:
        for condition in self.status.get("conditions") or []:
            if condition["type"] == kind:
                return dict(condition)
        return {"status": "Unknown", "reason": "", "message": ""}

    def is_true(self, kind: str) -> bool:
        observed = self.status.get("observedGeneration") == self.document["metadata"]["generation"]
        return bool(observed and self.condition(kind)["status"] == "True")

    def line(self) -> str:
        """One line for people: weights, p95 per revision, verdict, replicas."""
        weights = "  ".join(
            f"{'stable' if revision == self.stable else 'canary'} {revision} {weight} %"
            for revision, weight in self.weights.items()
        )
        replicas = ", ".join(
            f"{entry['hash']} {entry.get('ready', 0)}/{entry.get('desired', 0)}"
            for entry in self.status.get("revisions") or []
            if entry.get("desired") or entry.get("ready")
        )
        verdict = self.verdict
        parts = [self.phase or "starting", weights or "no traffic", f"replicas {replicas or '0'}"]
        if verdict:
            stable, canary = verdict.get("stableSeconds"), verdict.get("canarySeconds")
            if stable is not None and canary is not None:
                parts.append(f"p95 stable {1000 * stable:.0f} ms canary {1000 * canary:.0f} ms")
            parts.append(f"{verdict.get('outcome')} ({verdict.get('samples', 0)} requests)")
        return " | ".join(parts)

    def report(self) -> str:
        """What to look at when the service is not as it should be: a line for each condition, the latest decisions, the scaler's record."""
        lines = [self.line()]
        for entry in self.status.get("conditions") or []:
            lines.append(f"{entry['type']}={entry['status']} {entry['reason']}: {entry.get('message', '')}")
        lines += [
            f"{entry['time']} {entry['kind']}: {entry['message']}"
            for entry in (self.status.get("decisions") or [])[-8:]
        ]
        lines += [f"scaling {json.dumps(entry)}" for entry in self.status.get("scaling") or []]
        return "\n".join(lines)
