"""A revision: the part of a spec that affects pods, and its hash."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

POD_AFFECTING = ("model", "engine", "resources", "placement")


def snapshot(raw: Mapping[str, Any]) -> dict[str, Any]:
    """What pods are built from: scaling, rollout and traffic change without new pods."""
    return {name: raw[name] for name in POD_AFFECTING if name in raw}


def revision_hash(raw: Mapping[str, Any]) -> str:
    """Eight hex digits of the canonical JSON of the snapshot."""
    canonical = json.dumps(snapshot(raw), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()[:8]
