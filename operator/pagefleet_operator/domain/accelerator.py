"""A replica's accelerators: how many a pod has, how many pods it is, and how the model is shared between them. An
accelerator of the name NVIDIA selects the CUDA image of Pagefleet's own engine and its flags. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

NVIDIA = "nvidia.com/gpu"


def gpus(spec: Mapping[str, Any]) -> int:
    """GPUs of each pod; 0 without any, or with accelerators of another kind."""
    accelerator: Mapping[str, Any] = (spec.get("resources") or {}).get("accelerator") or {}
    return int(accelerator.get("count", 1)) if accelerator.get("name") == NVIDIA else 0


def runs_cuda(spec: Mapping[str, Any]) -> bool:
    """Whether the CUDA image is chosen. An image that is given may be built for the CPU: it finds out by itself."""
    return gpus(spec) > 0 and not (spec.get("engine") or {}).get("image")


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
