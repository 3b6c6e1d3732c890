"""Examples for each rule that crosses fields of the model, scaling, cost, rollout or traffic: a spec that it refuses, and
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
HISTOGRAM = 'a{b="$revision"}'
KEY = {"name": "s", "key": "k"}
GATE, RATE = {"name": "a", "query": "up"}, {"header": "x-a"}


def latency(*entries: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"rollout.guard.latency": list(entries), **more}


def day(name: str) -> Example:
    return Example(
        f"spec.traffic.{name}",
        "must be above 0 and at most 24h",
        {f"traffic.{name}": "24h1s" if name == "timeout" else "0s"},
        {"traffic.timeout": "24h", f"traffic.{name}": "24h"},
    )


def objectives(*entries: dict[str, Any]) -> dict[str, Any]:
    return {"slo.objectives": [{"name": "a", "signal": "ttft", "seconds": 2, **entry} for entry in entries]}


UP = {"name": "up", "signal": "errors", "maxRate": "1%"}


def class_queue(queue: dict[str, Any]) -> dict[str, Any]:
    return {"name": "a", "header": {"x": "y"}, "queue": queue}


def within_queue(name: str) -> Example:
    most = {f"traffic.queue.{name}": 2048}
    return Example(
        "spec.traffic.priorities",
        f"no queue.{name} may be above spec.traffic.queue.{name}",
        {**most, "traffic.priorities": [class_queue({name: 2049})]},
        {**most, "traffic.priorities": [class_queue({name: 2048})]},
    )


def within(name: str) -> Example:
    given = {"traffic.timeout": "1m"}
    over, under = {**given, f"traffic.{name}": "61s"}, {**given, f"traffic.{name}": "60s"}
    return Example(f"spec.traffic.{name}", "must not be above spec.traffic.timeout", over, under)


SPEC_EXAMPLES = (
    Example(
        "spec.slo.objectives",
        "no name may come twice",
        objectives({}, {"seconds": 3}),
        objectives({}, {"name": "b"}),
    ),
    Example(
        "spec.slo.objectives",
        "a latency needs seconds, and takes no maxRate",
        objectives({"maxRate": "1%"}),
        objectives({"quantile": 0.9}),
    ),
    Example(
        "spec.slo.objectives",
        "errors need maxRate, and take neither seconds nor quantile",
        {"slo.objectives": [{**UP, "quantile": 0.9}]},
        {"slo.objectives": [UP]},
    ),
    Example(
        "spec.slo.objectives",
        "maxRate must be above 0%",
        {"slo.objectives": [{**UP, "maxRate": "0.0%"}]},
        {"slo.objectives": [{**UP, "maxRate": "0.1%"}]},
    ),
    Example(
        "spec.slo.objectives",
        "priority must be a name of spec.traffic.priorities",
        objectives({"priority": "live"}),
        {**objectives({"priority": "live"}), "traffic.priorities": [{"name": "live", "header": {"x-tier": "live"}}]},
    ),
    Example(
        "spec.slo.atRisk",
        "needs shed or maxOutputTokens",
        {**objectives({}), "slo.atRisk": {"left": "5%"}},
        {**objectives({}), "slo.atRisk": {"maxOutputTokens": 64}},
    ),
    Example(
        "spec.slo.atRisk.shed",
        "each must be a name of spec.traffic.priorities",
        {**objectives({}), "slo.atRisk": {"shed": ["batch"]}},
        {
            **objectives({}),
            "slo.atRisk": {"shed": ["batch"]},
            "traffic.priorities": [{"name": "batch", "header": {"x-tier": "batch"}}],
        },
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
    *(
        Example("spec.rollout.steps", "exactly one of", {"rollout.steps": [step]}, {"rollout.steps": [{"weight": 5}]})
        for step in ({}, {"weight": 5, "pause": {}}, {"mirror": "5%", "loadTest": {}})
    ),
    Example(
        "spec.rollout.steps",
        "hold belongs to",
        {"rollout.steps": [{"pause": {}, "hold": "1m"}]},
        {"rollout.steps": [{"mirror": "5%", "hold": "1m"}]},
    ),
    Example(
        "spec.rollout.steps",
        "minRequests belongs to",
        {"rollout.steps": [{"mirror": "5%", "minRequests": 5}]},
        {"rollout.steps": [{"weight": 5, "minRequests": 5}]},
    ),
    Example(
        "spec.rollout.steps",
        "preview needs spec.rollout.route.header",
        {"rollout.steps": [{"preview": {}}], "rollout.route.stickyBy": "header/x"},
        {"rollout.steps": [{"preview": {}}], "rollout.route.header": {"x": "y"}},
    ),
    Example(
        "spec.rollout.steps",
        "no weight may come twice",
        {"rollout.steps": [{"weight": 5}, {"weight": 5}]},
        {"rollout.steps": [{"weight": 5}, {"weight": 6}]},
    ),
    Example(
        "spec.rollout.guard.promql",
        "each gate must have min or max",
        {"rollout.guard.promql": [GATE]},
        {"rollout.guard.promql": [{**GATE, "max": 1}]},
    ),
    Example(
        "spec.rollout.guard.promql",
        "no name may come twice",
        {"rollout.guard.promql": [{**GATE, "max": 1}] * 2},
        {"rollout.guard.promql": [{**GATE, "max": 1}, {**GATE, "name": "b", "max": 1}]},
    ),
    *(
        Example(
            "spec.rollout.guard.latency",
            "source Gateway cannot measure",
            latency({"signal": signal, "source": "Gateway"}),
            latency({"signal": signal}),
        )
        for signal in ("itl", "queue")
    ),
    Example(
        "spec.rollout.guard.latency",
        "tpot is measured by source Gateway",
        latency({"signal": "tpot", "source": "Engine"}),
        latency({"signal": "tpot"}),
    ),
    Example(
        "spec.rollout.guard.latency",
        "histogram belongs to source Prometheus",
        latency({"signal": "ttft", "histogram": HISTOGRAM}),
        latency({"signal": "ttft", "source": "Prometheus", "histogram": HISTOGRAM}),
    ),
    Example(
        "spec.rollout.guard.latency",
        "must name $revision",
        latency({"signal": "ttft", "source": "Prometheus", "histogram": "a"}),
        latency({"signal": "tpot", "source": "Prometheus", "histogram": HISTOGRAM}),
    ),
    Example(
        "spec.rollout.guard.latency",
        "one source and one histogram",
        latency({"signal": "ttft"}, {"signal": "ttft", "source": "Engine", "quantile": 0.5}),
        latency({"signal": "ttft", "source": "Gateway"}, {"signal": "ttft", "quantile": 0.5}),
    ),
    Example(
        "spec.rollout.guard.latency",
        "one source and one histogram",
        latency(
            {"signal": "ttft", "source": "Prometheus"},
            {"signal": "ttft", "source": "Prometheus", "histogram": HISTOGRAM},
        ),
        latency({"signal": "itl"}, {"signal": "itl", "source": "Engine"}),
    ),
    Example(
        "spec.rollout.guard.latency",
        "runtime tgi reports",
        latency({"signal": "itl"}, **TGI),
        latency({"signal": "queue"}, {"signal": "e2e", "source": "Engine"}, **TGI),
    ),
    Example(
        "spec.rollout.guard.latency",
        "runtime custom what spec.engine.metrics names",
        latency({"signal": "itl"}, **CUSTOM, **{"engine.metrics": METRICS}),
        latency({"signal": "itl"}, **CUSTOM, **{"engine.metrics": {**METRICS, "itl": "c"}}),
    ),
    Example(
        "spec.rollout.guard.errors.source",
        "runtime sglang does not count failures",
        {**SGLANG, "rollout.guard.errors": {"maxRate": "1%", "source": "Engine"}},
        {**SGLANG, "rollout.guard.errors": {"maxRate": "1%", "source": "Gateway"}},
    ),
    Example(
        "spec.rollout.guard.errors.source",
        "runtime custom only with",
        {**CUSTOM, "engine.metrics": METRICS, "rollout.guard.errors": {"maxRate": "1%", "source": "Prometheus"}},
        {
            **CUSTOM,
            "engine.metrics": {**METRICS, "finished": ["c"], "failed": ["d"]},
            "rollout.guard.errors": {"maxRate": "1%", "source": "Prometheus"},
        },
    ),
    Example(
        "spec.rollout.guard.fallbacks",
        "needs spec.traffic.fallback",
        {"rollout.guard.fallbacks": {"maxRate": "2%"}},
        {"rollout.guard.fallbacks": {"maxRate": "2%"}, "traffic.fallback": {"service": "small"}},
    ),
    Example(
        "spec.rollout.guard.cost",
        "needs spec.cost.perAcceleratorHour",
        {"rollout.guard.cost": {"maxIncrease": "20%"}, "cost": {}},
        {"rollout.guard.cost": {"maxIncrease": "20%"}, "cost.perAcceleratorHour": 2.5},
    ),
    *map(day, ("timeout", "firstTokenTimeout", "nextTokenTimeout")),
    *map(within, ("firstTokenTimeout", "nextTokenTimeout")),
    Example(
        "spec.traffic.queue.timeout", "at most 5m", {"traffic.queue.timeout": "301s"}, {"traffic.queue.timeout": "5m"}
    ),
    Example("spec.traffic.queue.timeout", "above 0", {"traffic.queue.timeout": "0s"}, {"traffic.queue.timeout": "1ms"}),
    Example(
        "spec.traffic.priorities",
        "no name may come twice",
        {"traffic.priorities": [{"name": "a", "header": {"x": "y"}}] * 2},
        {"traffic.priorities": [{"name": name, "header": {"x": "y"}} for name in "ab"]},
    ),
    Example(
        "spec.traffic.priorities",
        "each queue.timeout must be above 0",
        {"traffic.priorities": [class_queue({"timeout": "301s"})]},
        {"traffic.priorities": [class_queue({"timeout": "5m"})]},
    ),
    *map(within_queue, ("maxRequests", "maxBytes")),
    Example(
        "spec.traffic.rateLimits",
        "each needs requestsPerMinute",
        {"traffic.rateLimits": [RATE]},
        {"traffic.rateLimits": [{**RATE, "tokensPerMinute": 5}]},
    ),
    Example(
        "spec.traffic.gatewayAPI",
        "is required for provider GatewayAPI",
        {"traffic.provider": "GatewayAPI"},
        {"traffic.provider": "GatewayAPI", "traffic.gatewayAPI": GATEWAY_API},
    ),
    Example(
        "spec.traffic.gatewayAPI",
        "belongs to provider GatewayAPI",
        {"traffic.gatewayAPI": GATEWAY_API},
        {"traffic.provider": "GatewayAPI", "traffic.gatewayAPI": GATEWAY_API},
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
