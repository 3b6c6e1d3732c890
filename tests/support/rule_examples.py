"""Examples for each rule that crosses fields of the model, scaling or cost: a spec that it refuses, and
the nearest one that it accepts. Written by hand, independent of the rules. No test here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pagefleet_operator.domain.base.revision_spec import NVIDIA


@dataclass(frozen=True)
class Example:
    """`refused` and `accepted` give fields of the spec by their path; `words` are a part of the rule's message."""

    field: str
    words: str
    refused: dict[str, Any]
    accepted: dict[str, Any]


GPU = {"resources.accelerator.name": NVIDIA}
NODES = {**GPU, "engine.nodes": 2}
CUSTOM = {"engine.runtime": "custom", "engine.image": "x", "engine.probes.readiness": "/"}
METRICS = {"waiting": "a", "running": "b"}
VLLM, SGLANG = {"engine.runtime": "vllm"}, {"engine.runtime": "sglang", **GPU}
TGI = {"engine.runtime": "tgi"}
IMAGE = f"oci://registry.example/models/a@sha256:{'0' * 64}"
ADAPTERS = [{"name": "a", "source": "file:///a"}]
GATEWAY_API = {"parentRefs": [{"name": "a"}]}
KEY = {"name": "s", "key": "k"}


SPEC_EXAMPLES = (
    *(
        Example(
            "spec.rollout.steps",
            "loadTest does not go with spec.engine.disaggregation",
            {**SGLANG, "engine.disaggregation.prefill.replicas": 1, "rollout.steps": [{"weight": 5}, {"loadTest": {}}]},
            accepted,
        )
        for accepted in (
            {**SGLANG, "engine.disaggregation.prefill.replicas": 1, "rollout.steps": [{"weight": 5}]},
            {**SGLANG, "rollout.steps": [{"loadTest": {}}]},
            {**VLLM, **GPU, "engine.disaggregation.prefill.replicas": 1, "rollout.steps": [{"loadTest": {}}]},
        )
    ),
    Example(
        "spec.capacityPlan",
        "needs a number that can be compared",
        {"capacityPlan.replicas": 2},
        {"capacityPlan.replicas": 2, "capacityPlan.perReplica.kvCacheTokens": 1},
    ),
    Example(
        "spec.capacityPlan.tolerance",
        "must be above 0%",
        {"capacityPlan.requestsPerSecond": 1, "capacityPlan.tolerance": "0.0%"},
        {"capacityPlan.requestsPerSecond": 1, "capacityPlan.tolerance": "0.1%"},
    ),
    Example(
        "spec.capacityPlan.perReplica",
        "concurrency and outputTokensPerSecond need each other",
        {"capacityPlan.perReplica.outputTokensPerSecond": 9},
        {"capacityPlan.perReplica.outputTokensPerSecond": 9, "capacityPlan.perReplica.concurrency": 1},
    ),
    Example(
        "spec.capacityPlan.perReplica.peakOutputTokensPerSecond",
        "needs outputTokensPerSecond, and must not be below it",
        {"capacityPlan.perReplica": {"concurrency": 1, "outputTokensPerSecond": 9, "peakOutputTokensPerSecond": 8.9}},
        {"capacityPlan.perReplica": {"concurrency": 1, "outputTokensPerSecond": 9, "peakOutputTokensPerSecond": 9}},
    ),
    Example(
        "spec.capacityPlan.perRequest.sharedTokens",
        "needs kvTokens",
        {"capacityPlan.requestsPerSecond": 1, "capacityPlan.perRequest.sharedTokens": 9},
        {"capacityPlan.perRequest.kvTokens": 1, "capacityPlan.perRequest.sharedTokens": 9},
    ),
    Example(
        "spec.engine.limits.promptTokens",
        "must be below spec.model.maxLength",
        {"model.maxLength": 16, "engine.limits.promptTokens": 16},
        {"model.maxLength": 16, "engine.limits.promptTokens": 15},
    ),
    Example(
        "spec.engine.limits.outputTokens",
        "must not be above spec.model.maxLength",
        {"model.maxLength": 16, "engine.limits.outputTokens": 17},
        {"model.maxLength": 16, "engine.limits.outputTokens": 16},
    ),
    Example(
        "spec.engine.kvCache.pages",
        "must hold at least 64 tokens",
        {"engine.kvCache.pages": 3},
        {"engine.kvCache.pages": 4},
    ),
    Example(
        "spec.engine.kvCache.events",
        "switches off",
        {"engine.kvCache.events": True, "engine.kvCache.prefixCaching": False},
        {"engine.kvCache.events": True, "engine.kvCache.prefixCaching": True},
    ),
    Example(
        "spec.model.speculation.model",
        "is required for methods draft",
        {"model.speculation.method": "draft"},
        {"model.speculation.method": "draft", "model.speculation.model": "hf://a/b"},
    ),
    Example(
        "spec.model.speculation.model",
        "belongs to methods draft",
        {"model.speculation.method": "ngram", "model.speculation.model": "hf://a/b"},
        {"model.speculation.method": "ngram"},
    ),
    Example(
        "spec.model.adapters",
        "no name may come twice",
        {"model.adapters": ADAPTERS * 2},
        {"model.adapters": [*ADAPTERS, {"name": "b", "source": "file:///a"}]},
    ),
    Example(
        "spec.model.adapters",
        "the model's own name",
        {"model.adapters": ADAPTERS, "model.servedName": "a"},
        {"model.adapters": ADAPTERS, "model.servedName": "b"},
    ),
    Example(
        "spec.model.cache", "hf://", {"model.cache.claim": "c"}, {"model.cache.claim": "c", "model.source": "hf://a/b"}
    ),
    Example(
        "spec.model.cache",
        "hf://",
        {"model.cache.claim": "c", "model.speculation.method": "draft", "model.speculation.model": "file:///d"},
        {"model.cache.claim": "c", "model.speculation.method": "draft", "model.speculation.model": "hf://a/b"},
    ),
    Example(
        "spec.model.cache",
        "oci: Fetch",
        {"model.cache.claim": "c", "model.source": IMAGE, "model.oci": "Mount"},
        {"model.cache.claim": "c", "model.source": IMAGE, "model.oci": "Fetch"},
    ),
    Example(
        "spec.model.cache",
        "oci: Fetch",
        {"model.cache.claim": "c", "model.adapters": [{"name": "a", "source": IMAGE}], "model.oci": "Mount"},
        {"model.cache.claim": "c", "model.adapters": [{"name": "a", "source": IMAGE}], "model.oci": "Fetch"},
    ),
    Example(
        "spec.model.oci", "sources of oci://", {"model.oci": "Fetch"}, {"model.oci": "Fetch", "model.source": IMAGE}
    ),
    Example(
        "spec.model.oci",
        "sources of oci://",
        {"model.oci": "Fetch", "model.adapters": ADAPTERS},
        {"model.oci": "Fetch", "model.adapters": [{"name": "a", "source": IMAGE}]},
    ),
    Example(
        "spec.engine.scheduling.tokensPerStep",
        "must not be below maxSequences",
        {"engine.scheduling.maxSequences": 9, "engine.scheduling.tokensPerStep": 8},
        {"engine.scheduling.maxSequences": 8, "engine.scheduling.tokensPerStep": 8},
    ),
    Example(
        "spec.engine.scheduling.chunkTokens",
        "must be whole pages with runtime sglang",
        {**SGLANG, "engine.kvCache.pageSize": 64, "engine.scheduling.chunkTokens": 1000},
        {**SGLANG, "engine.kvCache.pageSize": 64, "engine.scheduling.chunkTokens": 1024},
    ),
    Example(
        "spec.engine.scheduling.chunkTokens",
        "must be whole pages with runtime sglang",
        {**SGLANG, "engine.kvCache.pages": 64, "engine.scheduling.chunkTokens": 1000},
        {**SGLANG, "engine.scheduling.chunkTokens": 1000},
    ),
    Example(
        "spec.engine.scheduling.chunkTokens",
        "must not be above tokensPerStep",
        {"engine.scheduling.chunkTokens": 9, "engine.scheduling.tokensPerStep": 8},
        {"engine.scheduling.chunkTokens": 8, "engine.scheduling.tokensPerStep": 8},
    ),
    Example(
        "spec.scaling.warmSpares",
        "apiKeySecretRef",
        {"scaling.warmSpares": 1, "engine.apiKeySecretRef": KEY},
        {"scaling.warmSpares": 0, "engine.apiKeySecretRef": KEY},
    ),
    Example(
        "spec.scaling.warmSpares",
        "needs spec.engine.runtime pagefleet or vllm",
        {"scaling.warmSpares": 1, **SGLANG},
        {"scaling.warmSpares": 0, **SGLANG},
    ),
    Example(
        "spec.scaling.warmSpares",
        "needs spec.resources.accelerator of a name nvidia.com/... or amd.com/... with runtime vllm",
        {"scaling.warmSpares": 1, **VLLM},
        {"scaling.warmSpares": 1, **VLLM, "resources.accelerator.name": "amd.com/gpu"},
    ),
    Example(
        "spec.scaling.warmSpares",
        "spec.engine.disaggregation",
        {"scaling.warmSpares": 1, **VLLM, **GPU, "engine.disaggregation.prefill.replicas": 1},
        {"scaling.warmSpares": 1, **VLLM, **GPU},
    ),
    Example(
        "spec.scaling.warmSpares",
        "replicas of one pod",
        {"scaling.warmSpares": 1, **NODES},
        {"scaling.warmSpares": 1, **NODES, "engine.nodes": 1},
    ),
    Example(
        "spec.scaling.min",
        "must not be above spec.scaling.max",
        {"scaling.min": 3, "scaling.max": 2},
        {"scaling.min": 2, "scaling.max": 2},
    ),
    Example(
        "spec.scaling.min",
        "0 needs spec.scaling.idleToZero",
        {"scaling.min": 0},
        {"scaling.min": 0, "scaling.idleToZero": "5m"},
    ),
    Example(
        "spec.scaling.min",
        "0 needs spec.scaling.idleToZero",
        {"scaling.min": 0},
        {"scaling.min": 0, "scaling.mode": "external"},
    ),
    Example(
        "spec.scaling.mode",
        "external leaves",
        {"scaling.mode": "external", "scaling.idleToZero": "5m"},
        {"scaling.mode": "internal", "scaling.idleToZero": "5m"},
    ),
    Example(
        "spec.scaling.mode",
        "external leaves",
        {"scaling.mode": "external", "scaling.schedule": [{"cron": "0 8 * * *", "duration": "1h", "min": 1}]},
        {"scaling.schedule": [{"cron": "0 8 * * *", "duration": "1h", "min": 1}]},
    ),
    Example(
        "spec.scaling.mode",
        "external leaves",
        {"scaling.mode": "external", "scaling.headroom": "50%"},
        {"scaling.mode": "internal", "scaling.headroom": "50%"},
    ),
    Example(
        "spec.scaling.schedule",
        "each entry must have min or max",
        {"scaling.schedule": [{"cron": "0 8 * * *", "duration": "1h"}]},
        {"scaling.schedule": [{"cron": "0 8 * * *", "duration": "1h", "max": 1}]},
    ),
    Example(
        "spec.scaling.schedule",
        "no min may be above",
        {"scaling.schedule": [{"cron": "0 8 * * *", "duration": "1h", "min": 2}]},
        {"scaling.max": 2, "scaling.schedule": [{"cron": "0 8 * * *", "duration": "1h", "min": 2}]},
    ),
    Example(
        "spec.scaling.schedule",
        "no min may be above",
        {"scaling.max": 4, "scaling.schedule": [{"cron": "0 8 * * *", "duration": "1h", "min": 3, "max": 2}]},
        {"scaling.max": 4, "scaling.schedule": [{"cron": "0 8 * * *", "duration": "1h", "min": 2, "max": 2}]},
    ),
    Example(
        "spec.cost.ceilingPerHour",
        "needs spec.cost.perAcceleratorHour",
        {"cost.ceilingPerHour": 9},
        {"cost.ceilingPerHour": 9, "cost.perAcceleratorHour": 1},
    ),
    Example(
        "spec.cost.budget",
        "needs spec.cost.perAcceleratorHour",
        {"cost.budget": {"perMonth": 100}},
        {"cost.budget": {"perMonth": 100}, "cost.perAcceleratorHour": 1},
    ),
    Example(
        "spec.cost.budget.shed",
        "each must be a name of spec.traffic.priorities",
        {"cost": {"perAcceleratorHour": 1, "budget": {"perMonth": 100, "shed": ["batch"]}}},
        {
            "cost": {"perAcceleratorHour": 1, "budget": {"perMonth": 100, "shed": ["batch"]}},
            "traffic.priorities": [{"name": "batch", "header": {"x-tier": "batch"}}],
        },
    ),
)


def spec(fields: dict[str, Any]) -> dict[str, Any]:
    """Return the smallest spec with these fields; a field is given by its path."""
    made: dict[str, Any] = {"model": {"source": "file:///m"}}
    for path, value in fields.items():
        *above, last = path.split(".")
        place = made
        for name in above:
            place = place.setdefault(name, {})
        place[last] = value
    return made
