"""Rules of the fields that go, or do not go, with GPUs and other accelerators."""

from __future__ import annotations

from pagefleet_operator.domain.base.revision_spec import NEURON, NEURON_CORE, NVIDIA
from pagefleet_operator.domain.spec.rules.rule import Rule, given, listed

# In CEL: whether the spec asks for GPUs, runs Pagefleet's own engine, runs its CUDA image, and has other accelerators.
GPU = f"has(self.resources) && has(self.resources.accelerator) && self.resources.accelerator.name == '{NVIDIA}'"
OURS = "!(has(self.engine) && has(self.engine.runtime) && self.engine.runtime != 'pagefleet')"
CUDA = f"{GPU} && !(has(self.engine) && has(self.engine.image)) && {OURS}"
OTHER = f"has(self.resources) && has(self.resources.accelerator) && self.resources.accelerator.name != '{NVIDIA}'"
MAX_GPUS = 8
# In CEL: whether AWS's image of vLLM for Neuron is chosen.
NEURON_VLLM = (
    f"has(self.resources) && has(self.resources.accelerator) && self.resources.accelerator.name in {listed([NEURON, NEURON_CORE])}"
    " && has(self.engine) && has(self.engine.runtime) && self.engine.runtime == 'vllm' && !has(self.engine.image)"
)


ACCELERATOR_RULES = (
    Rule(
        (),
        "spec.engine.image",
        f"!({OTHER}) || !({OURS}) || (has(self.engine) && has(self.engine.image))",
        f"is required for other accelerators than {NVIDIA}: Pagefleet's own engine cannot run on them; or set "
        "spec.engine.runtime",
    ),
    Rule(
        (),
        "spec.model.quantization",
        f"!(self.model.quantization in ['fp8', 'awq']) || ({GPU}) || !({OURS})",
        f"fp8 and awq need spec.resources.accelerator of the name {NVIDIA}",
    ),
    Rule(
        (),
        "spec.model.quantization",
        f"self.model.quantization != 'int8' || !({CUDA})",
        f"int8 is for the CPU; with {NVIDIA} use none, fp8 or awq",
    ),
    *(
        Rule(
            (),
            f"spec.engine.limits.{limit}",
            f"!({given(f'engine.limits.{limit}')}) || !({NEURON_VLLM})",
            "is not known to vLLM 0.24, which AWS's image for Neuron has; remove it and set spec.traffic.queue, or give spec.engine.image",
        )
        for limit in ("queued", "queuedTokens")
    ),
    Rule(
        (),
        "spec.engine.kvCache.dtype",
        f"!({given('engine.kvCache.dtype')}) || !(self.engine.kvCache.dtype in ['fp8', 'bfloat16']) || ({GPU}) || !({OURS})",
        f"fp8 and bfloat16 need spec.resources.accelerator of the name {NVIDIA}; use auto, float32 or float16",
    ),
    Rule(
        (),
        "spec.resources.accelerator.count",
        f"!({GPU}) || self.resources.accelerator.count <= {MAX_GPUS}",
        f"a model is shared by at most {MAX_GPUS} GPUs",
    ),
)
