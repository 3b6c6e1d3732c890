"""Examples for each rule that crosses fields of the rollout, traffic or promises, as rule_examples.py has them for others. No test here."""

from __future__ import annotations

from typing import Any

from support.rule_examples import CUSTOM, GATEWAY_API, METRICS, SGLANG, TGI, Example

HISTOGRAM = 'a{b="$revision"}'
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


TRAFFIC_EXAMPLES = (
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
