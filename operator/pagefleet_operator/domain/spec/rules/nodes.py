"""Rules of replicas that are several pods, and of models that are split by layers; each in CEL and in Python (see rules.py)."""

from __future__ import annotations

from pagefleet_operator.domain.base.accelerator import gpus, runs_cuda
from pagefleet_operator.domain.base.parallel import accelerators, nodes, pipeline_parallel
from pagefleet_operator.domain.base.runtime import is_ours, runtime_name
from pagefleet_operator.domain.spec.rules.accelerator import CUDA, GPU
from pagefleet_operator.domain.spec.rules.rule import RUNTIME, Rule

# In CEL: whether a replica is several pods, whether its layers are split, and the accelerators of a pod.
SEVERAL = "has(self.engine) && has(self.engine.nodes) && self.engine.nodes > 1"
SPLIT = "has(self.engine) && has(self.engine.pipelineParallelSize) && self.engine.pipelineParallelSize > 1"
COUNT = "(has(self.resources) && has(self.resources.accelerator) ? self.resources.accelerator.count : 1)"
NODES = "(has(self.engine.nodes) ? self.engine.nodes : 1)"
SPANNING, SPLITTING = ("pagefleet", "vllm", "sglang", "custom"), ("vllm", "sglang")


NODE_RULES = (
    Rule(
        (),
        "spec.engine.nodes",
        f"!({SEVERAL}) || {RUNTIME} != 'tgi'",
        "runtime tgi runs on one node only; remove it, or use pagefleet, vllm, sglang or custom",
        lambda spec: nodes(spec) == 1 or runtime_name(spec) in SPANNING,
    ),
    Rule(
        (),
        "spec.engine.nodes",
        f"!({SEVERAL}) || {RUNTIME} != 'pagefleet' || ({GPU})",
        "runtime pagefleet shares a model between nodes with spec.resources.accelerator of the name nvidia.com/gpu only",
        lambda spec: nodes(spec) == 1 or not is_ours(spec) or gpus(spec) > 0,
    ),
    Rule(
        (),
        "spec.engine.pipelineParallelSize",
        f"!({SPLIT}) || {RUNTIME} in ['vllm', 'sglang']",
        "only the runtimes vllm and sglang split a model by layers; remove it: others share every layer",
        lambda spec: pipeline_parallel(spec) == 1 or runtime_name(spec) in SPLITTING,
    ),
    Rule(
        (),
        "spec.engine.pipelineParallelSize",
        f"!({SPLIT}) || {NODES} * {COUNT} % self.engine.pipelineParallelSize == 0",
        "must divide a replica's accelerators: spec.engine.nodes times spec.resources.accelerator.count",
        lambda spec: nodes(spec) * max(1, accelerators(spec)) % pipeline_parallel(spec) == 0,
    ),
    Rule(
        (),
        "spec.model.adapters",
        f"!has(self.model.adapters) || !({CUDA}) || !({SEVERAL}) || {RUNTIME} != 'pagefleet'",
        "are not supported on several nodes; remove them, or spec.engine.nodes",
        lambda spec: not spec["model"].get("adapters") or not runs_cuda(spec) or nodes(spec) == 1 or not is_ours(spec),
    ),
)
