"""Rules of what goes with GPUs, each in CEL and in Python (see rules.py)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pagefleet_operator.domain.base.accelerator import NVIDIA, gpus, runs_cuda
from pagefleet_operator.domain.base.runtime import guessing, is_ours
from pagefleet_operator.domain.spec.rules.rule import Rule

# In CEL: whether GPUs are asked for, and whether our CUDA image runs on them.
GPU = f"has(self.resources) && has(self.resources.accelerator) && self.resources.accelerator.name == '{NVIDIA}'"
OURS = "!(has(self.engine) && has(self.engine.runtime) && self.engine.runtime != 'pagefleet')"
CUDA = f"{GPU} && !(has(self.engine) && has(self.engine.image)) && {OURS}"
OTHER = f"has(self.resources) && has(self.resources.accelerator) && self.resources.accelerator.name != '{NVIDIA}'"
MOST_GPUS = 8


def _other(spec: Mapping[str, Any]) -> bool:
    """Whether accelerators are asked for that our own images cannot use."""
    accelerator = (spec.get("resources") or {}).get("accelerator") or {}
    given = (spec.get("engine") or {}).get("image")
    return is_ours(spec) and accelerator.get("name", NVIDIA) != NVIDIA and not given


def _quantization(spec: Mapping[str, Any]) -> str:
    return str(spec["model"].get("quantization", "none"))


ACCELERATOR_RULES = (
    Rule(
        (),
        "spec.engine.image",
        f"!({OTHER}) || !({OURS}) || (has(self.engine) && has(self.engine.image))",
        f"is required for other accelerators than {NVIDIA}: Pagefleet's own engine cannot run on them; or set "
        "spec.engine.runtime",
        lambda spec: not _other(spec),
    ),
    Rule(
        (),
        "spec.model.quantization",
        f"!(self.model.quantization in ['fp8', 'awq']) || ({GPU}) || !({OURS})",
        f"fp8 and awq need spec.resources.accelerator of the name {NVIDIA}",
        lambda spec: _quantization(spec) not in ("fp8", "awq") or gpus(spec) > 0 or not is_ours(spec),
    ),
    Rule(
        (),
        "spec.model.quantization",
        f"self.model.quantization != 'int8' || !({CUDA})",
        f"int8 is for the CPU; with {NVIDIA} use none, fp8 or awq",
        lambda spec: _quantization(spec) != "int8" or not runs_cuda(spec),
    ),
    Rule(
        (),
        "spec.model.speculation",
        f"!has(self.model.speculation) || self.model.speculation.method == 'none' || !({CUDA})",
        f"is not supported with {NVIDIA}; remove it",
        lambda spec: not guessing(spec) or not runs_cuda(spec),
    ),
    Rule(
        (),
        "spec.model.adapters",
        f"!has(self.model.adapters) || !({CUDA}) || self.resources.accelerator.count == 1",
        "are not supported with several GPUs; remove them, or use one",
        lambda spec: not spec["model"].get("adapters") or not runs_cuda(spec) or gpus(spec) == 1,
    ),
    Rule(
        (),
        "spec.resources.accelerator.count",
        f"!({GPU}) || self.resources.accelerator.count <= {MOST_GPUS}",
        f"a model is shared by at most {MOST_GPUS} GPUs",
        lambda spec: gpus(spec) <= MOST_GPUS,
    ),
)
