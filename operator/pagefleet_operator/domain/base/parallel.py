"""How many pods and accelerators a replica has, and how its model is shared between them. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def accelerators(spec: Mapping[str, Any]) -> int:
    """Accelerators of each pod, of whatever kind; 0 without any."""
    accelerator: Mapping[str, Any] = (spec.get("resources") or {}).get("accelerator") or {}
    return int(accelerator.get("count", 1)) if accelerator else 0


def nodes(spec: Mapping[str, Any]) -> int:
    """Pods of each replica: above 1 it is a group of a LeaderWorkerSet."""
    return int((spec.get("engine") or {}).get("nodes", 1))


def pipeline_parallel(spec: Mapping[str, Any]) -> int:
    """Groups of layers."""
    return int((spec.get("engine") or {}).get("pipelineParallelSize", 1))


def tensor_parallel(spec: Mapping[str, Any]) -> int:
    """Accelerators that share each layer; 1 without accelerators."""
    return max(1, accelerators(spec)) * nodes(spec) // pipeline_parallel(spec)
