"""Rules of replicas that are several pods, and of models that are split by layers."""

from __future__ import annotations

from pagefleet_operator.domain.runtimes.catalog import REGISTRY
from pagefleet_operator.domain.spec.rules.accelerator import CUDA, GPU
from pagefleet_operator.domain.spec.rules.rule import RUNTIME, Rule, listed

# In CEL: whether a replica is several pods, whether its layers are split, and the accelerators of a pod.
ADAPTERS = "has(self.model.adapters) && self.model.adapters.size() > 0"  # an empty list has none
SEVERAL = "has(self.engine) && has(self.engine.nodes) && self.engine.nodes > 1"
SPLIT = "has(self.engine) && has(self.engine.pipelineParallelSize) && self.engine.pipelineParallelSize > 1"
COUNT = "(has(self.resources) && has(self.resources.accelerator) ? self.resources.accelerator.count : 1)"
NODES = "(has(self.engine.nodes) ? self.engine.nodes : 1)"
ONE_NODE = tuple(name for name, engine in REGISTRY.items() if not engine.several_nodes)
SEVERAL_NODES = tuple(name for name, engine in REGISTRY.items() if engine.several_nodes)
SPLITTING = tuple(name for name, engine in REGISTRY.items() if engine.splits_layers)

NODE_RULES = (
    Rule(
        (),
        "spec.engine.nodes",
        f"!({SEVERAL}) || !({RUNTIME} in {listed(ONE_NODE)})",
        f"runtime {', '.join(ONE_NODE)} runs on one node only; remove it, or use {', '.join(SEVERAL_NODES)}",
    ),
    Rule(
        (),
        "spec.engine.nodes",
        f"!({SEVERAL}) || {RUNTIME} != 'pagefleet' || ({GPU})",
        "runtime pagefleet shares a model between nodes with spec.resources.accelerator of the name nvidia.com/gpu only",
    ),
    Rule(
        (),
        "spec.engine.pipelineParallelSize",
        f"!({SPLIT}) || {RUNTIME} in {listed(SPLITTING)}",
        f"only the runtimes {' and '.join(SPLITTING)} split a model by layers; remove it: others share every layer",
    ),
    Rule(
        (),
        "spec.engine.pipelineParallelSize",
        f"!({SPLIT}) || {NODES} * {COUNT} % self.engine.pipelineParallelSize == 0",
        "must divide a replica's accelerators: spec.engine.nodes times spec.resources.accelerator.count",
    ),
    Rule(
        (),
        "spec.model.adapters",
        f"!({ADAPTERS}) || !({CUDA}) || !({SEVERAL}) || {RUNTIME} != 'pagefleet'",
        "are not supported on several nodes; remove them, or spec.engine.nodes",
    ),
)
