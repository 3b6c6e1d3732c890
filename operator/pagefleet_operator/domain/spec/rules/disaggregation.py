"""Rules of `.spec.engine.disaggregation`: what prefill and decode pods cannot do yet, or need."""

from __future__ import annotations

from pagefleet_operator.domain.base.revision_spec import NVIDIA
from pagefleet_operator.domain.runtimes.catalog import REGISTRY
from pagefleet_operator.domain.spec.rules.rule import RUNTIME, Rule, given, listed

SPLIT = given("engine.disaggregation")
LINKED = (NVIDIA, "amd.com/gpu")  # accelerators for which vLLM's own image has the NIXL library
ACCELERATED = f"({given('resources.accelerator')} && self.resources.accelerator.name in {listed(LINKED)})"
# Runtimes whose decode pods compute no prompt.
HELPLESS = [name for name, engine in REGISTRY.items() if engine.split is not None and engine.split.computes_all]

DISAGGREGATION_RULES = (
    Rule(
        (),
        "spec.rollout.steps",
        f"!({SPLIT}) || !({RUNTIME} in {listed(HELPLESS)}) || !({given('rollout.steps')}) || !self.rollout.steps.exists(s, has(s.loadTest))",
        f"loadTest does not go with spec.engine.disaggregation of runtime {' and '.join(HELPLESS)}: its requests reach a decode pod without the"
        " gateway, which alone names the prefill pod that computes a prompt, and would all be answered 503; use mirror or a small weight",
    ),
    Rule(
        (),
        "spec.engine.disaggregation",
        f"!({SPLIT}) || !has(self.engine.nodes) || self.engine.nodes == 1",
        "needs replicas of one pod: spec.engine.nodes 1",
    ),
    Rule(
        (),
        "spec.engine.disaggregation",
        f"!({SPLIT}) || {RUNTIME} != 'vllm' || has(self.engine.image) || {ACCELERATED}",
        f"needs spec.resources.accelerator of the name {' or '.join(LINKED)}: vLLM's images for others have no NIXL library; or "
        "give spec.engine.image with one",
    ),
    Rule(
        (),
        "spec.engine.disaggregation",
        f"!({SPLIT}) || {RUNTIME} != 'sglang' || {given('resources.accelerator')}",
        "needs spec.resources.accelerator with runtime sglang",
    ),
)
