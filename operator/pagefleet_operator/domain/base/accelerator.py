"""The GPUs that Pagefleet's own engine runs on: an accelerator of this name selects its CUDA image and its flags. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pagefleet_operator.domain.base.runtime import is_ours

NVIDIA = "nvidia.com/gpu"


def gpus(spec: Mapping[str, Any]) -> int:
    """NVIDIA GPUs of each replica; 0 without any, or with accelerators of another kind."""
    accelerator: Mapping[str, Any] = (spec.get("resources") or {}).get("accelerator") or {}
    return int(accelerator.get("count", 1)) if accelerator.get("name") == NVIDIA else 0


def runs_cuda(spec: Mapping[str, Any]) -> bool:
    """Whether our CUDA image is chosen. An image that is given may be built for the CPU: it finds out by itself."""
    engine = spec.get("engine") or {}
    return gpus(spec) > 0 and not engine.get("image") and is_ours(spec)
