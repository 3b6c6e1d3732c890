"""Generated objects of `.spec`, by the path at which rules apply to them. No test here."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from pagefleet_operator.domain.base.revision_spec import NVIDIA
from pagefleet_operator.domain.spec.schema import engine

STEP = st.fixed_dictionaries(
    {},
    optional={
        "weight": st.integers(1, 100),
        "hold": st.just("1m"),
        "pause": st.just({"duration": "1m"}),
        "mirror": st.just("10%"),
        "preview": st.just({}),
        "loadTest": st.just({}),
        "minRequests": st.just(5),
    },
)
GATE = st.fixed_dictionaries(
    {"name": st.sampled_from(["a", "b"]), "query": st.just("up")}, optional={"min": st.just(0), "max": st.just(1)}
)
ROUTE = st.fixed_dictionaries({}, optional={"header": st.just({"x": "y"}), "stickyBy": st.just("header/x")})
SOURCE = st.sampled_from(["Gateway", "Engine", "Prometheus"])
SIGNAL = st.fixed_dictionaries(
    {"signal": st.sampled_from(["ttft", "tpot", "e2e", "itl", "queue"])},
    optional={"source": SOURCE, "histogram": st.sampled_from(["a", 'a{b="$revision"}'])},
)
ERRORS = st.fixed_dictionaries({"maxRate": st.just("1%")}, optional={"source": SOURCE})
GUARD = st.fixed_dictionaries(
    {}, optional={"promql": st.lists(GATE, max_size=3), "latency": st.lists(SIGNAL, max_size=3), "errors": ERRORS}
)
LENGTH = st.integers(1, 4)
ADAPTER = st.fixed_dictionaries({"name": st.sampled_from(["a", "b", "c"]), "source": st.just("file:///a")})
SCHEDULING = {"maxSequences": LENGTH, "tokensPerStep": LENGTH, "chunkTokens": LENGTH}
SCHEDULE = st.fixed_dictionaries({}, optional={"min": st.integers(0, 6), "max": st.integers(1, 6)})
ENGINE_GUARD = st.fixed_dictionaries(
    {},
    optional={
        "latency": st.lists(SIGNAL, max_size=2),
        "errors": ERRORS,
        "fallbacks": st.just({"maxRate": "1%"}),
        "cost": st.just({"maxIncrease": "20%"}),
    },
)
DURATIONS = st.sampled_from(["0s", "1ms", "1.5s", "59s", "5m", "5m1s", "10m", "1h30m", "24h", "24h1s"])
NAMES = st.sampled_from(["a", "b"])
CLASS_QUEUE = st.fixed_dictionaries({}, optional={"timeout": DURATIONS, "maxRequests": st.integers(1, 3)})
LIMIT = st.fixed_dictionaries(
    {"header": NAMES}, optional={"requestsPerMinute": st.just(1), "tokensPerMinute": st.just(2)}
)
VARIABLE = st.fixed_dictionaries(
    {"name": NAMES},
    optional={
        "value": st.just("a"),
        "valueFrom": st.fixed_dictionaries(
            {}, optional=dict.fromkeys(("secretKeyRef", "configMapKeyRef"), st.just({"name": "s", "key": "k"}))
        ),
    },
)
CONSTRAINT = st.fixed_dictionaries(
    {"topologyKey": NAMES, "whenUnsatisfiable": st.sampled_from(["DoNotSchedule", "ScheduleAnyway"])},
    optional={"minDomains": LENGTH},
)
OBJECTIVE = st.fixed_dictionaries(
    {"name": NAMES, "signal": st.sampled_from(["errors", "ttft"])},
    optional={"maxRate": st.sampled_from(["0%", "0.0%", "1%"]), "seconds": st.just(2), "quantile": st.just(0.9)},
)
POD_CLAIM = st.fixed_dictionaries(
    {"name": NAMES},
    optional=dict.fromkeys(("resourceClaimName", "resourceClaimTemplateName"), st.just("c"))
    | {"accelerators": st.booleans()},
)
PARTS: dict[tuple[str, ...], st.SearchStrategy[Any]] = {
    (): st.fixed_dictionaries(
        {
            "model": st.fixed_dictionaries(
                {
                    "source": st.sampled_from(["file:///m", "python://p/m.gguf"]),
                    "quantization": st.sampled_from(["none", "int8", "fp8", "awq"]),
                },
                optional={
                    "maxLength": LENGTH,
                    "speculation": st.sampled_from([{"method": method} for method in ("ngram", "draft", "none")]),
                    "adapters": st.lists(st.just({"name": "a"}), max_size=1),
                    "chatTemplate": st.just({}),
                },
            )
        },
        optional={
            "resources": st.fixed_dictionaries(
                {},
                optional={
                    "accelerator": st.fixed_dictionaries(
                        {
                            "name": st.sampled_from([NVIDIA, "amd.com/gpu", "example.com/npu"]),
                            "count": st.sampled_from([1, 2, 8, 9]),
                        }
                    )
                },
            ),
            "engine": st.fixed_dictionaries(
                {"runtime": st.sampled_from(["pagefleet", "vllm", "sglang", "tgi", "custom"])},
                optional={
                    "image": st.just("x"),
                    "apiKeySecretRef": st.just({"name": "s", "key": "k"}),
                    "limits": st.fixed_dictionaries({}, optional=dict.fromkeys(engine.LIMITS["properties"], LENGTH)),
                    "nodes": st.sampled_from([1, 2, 3]),
                    "pipelineParallelSize": st.sampled_from([1, 2, 3]),
                    "kvCache": st.fixed_dictionaries(
                        {},
                        optional={
                            "pageSize": st.sampled_from([16, 32, 64]),
                            **dict.fromkeys(("pages", "memoryFraction"), LENGTH),
                            "dtype": st.sampled_from(["auto", "float32", "float16"]),
                            "prefixCaching": st.booleans(),
                            "events": st.booleans(),
                        },
                    ),
                    "scheduling": st.fixed_dictionaries(
                        {}, optional={**SCHEDULING, "policy": st.sampled_from(["fcfs", "priority"])}
                    ),
                    "toolCallParser": st.just("hermes"),
                    "command": st.just(["x"]),
                    "port": st.sampled_from([8000, 8001]),
                    "probes": st.just({"readiness": "/"}),
                    "preStop": st.just(["x"]),
                    "metrics": st.sampled_from(
                        [
                            {"waiting": "a", "running": "b"},
                            {"itl": "c"},
                            {"queue": "d"},
                            {"ttft": "e", "e2e": "f"},
                            {"finished": ["g"], "failed": ["h"]},
                            {"finished": ["g"]},
                        ]
                    ),
                },
            ),
            "pod": st.fixed_dictionaries({}, optional={"resourceClaims": st.lists(POD_CLAIM, max_size=2)}),
            "rollout": st.fixed_dictionaries({}, optional={"guard": ENGINE_GUARD}),
            "traffic": st.fixed_dictionaries(
                {},
                optional={
                    "provider": st.sampled_from(["Gateway", "GatewayAPI"]),
                    "fallback": st.just({"service": "b"}),
                },
            ),
            "cost": st.fixed_dictionaries({}, optional={"perAcceleratorHour": st.just(2.5)}),
            "scaling": st.fixed_dictionaries(
                {},
                optional={
                    "min": LENGTH,
                    "max": LENGTH,
                    "mode": st.sampled_from(["internal", "external"]),
                    "warmSpares": st.integers(0, 2),
                },
            ),
        },
    ),
    ("model",): st.fixed_dictionaries(
        {"source": st.sampled_from(["hf://a/b", "file:///m"])},
        optional={
            "servedName": st.sampled_from(["a", "z"]),
            "adapters": st.lists(ADAPTER, max_size=3),
            "cache": st.sampled_from([{"claim": "c"}, {"claim": "c", "size": "1Gi"}]),
            "speculation": st.fixed_dictionaries({}, optional={"model": st.sampled_from(["hf://a/c", "file:///d"])}),
        },
    ),
    ("model", "speculation"): st.fixed_dictionaries(
        {"method": st.sampled_from(["ngram", "draft", "none"])}, optional={"model": st.just("file:///d")}
    ),
    ("engine",): st.fixed_dictionaries({}, optional={"env": st.lists(VARIABLE, max_size=3)}),
    ("pod",): st.fixed_dictionaries(
        {},
        optional={
            "priorityClassName": st.sampled_from(["system-node-critical", "a"]),
            "resourceClaims": st.lists(POD_CLAIM, max_size=3),
            "imagePullSecrets": st.lists(st.fixed_dictionaries({"name": NAMES}), max_size=3),
        },
    ),
    ("slo",): st.fixed_dictionaries(
        {"objectives": st.lists(OBJECTIVE, max_size=3)},
        optional={
            "atRisk": st.fixed_dictionaries(
                {},
                optional={"maxOutputTokens": st.just(64), "shed": st.lists(st.sampled_from(["a", "b"]), max_size=2)},
            )
        },
    ),
    ("capacityPlan",): st.fixed_dictionaries(
        {},
        optional={
            "tolerance": st.sampled_from(["0%", "0.0%", "0.1%", "15%"]),
            "requestsPerSecond": st.just(1.5),
            "replicas": st.just(2),
            "perRequest": st.fixed_dictionaries(
                {}, optional={"outputTokens": LENGTH, "kvTokens": LENGTH, "sharedTokens": LENGTH}
            ),
            "perReplica": st.fixed_dictionaries(
                {},
                optional={
                    "concurrency": LENGTH,
                    "outputTokensPerSecond": st.sampled_from([1, 2.5, 3]),
                    "peakOutputTokensPerSecond": st.sampled_from([1, 2.4, 2.5, 4]),
                    "kvCacheTokens": LENGTH,
                },
            ),
        },
    ),
    ("placement",): st.fixed_dictionaries({}, optional={"topologySpreadConstraints": st.lists(CONSTRAINT, max_size=3)}),
    ("engine", "scheduling"): st.fixed_dictionaries({}, optional=SCHEDULING),
    ("scaling",): st.fixed_dictionaries(
        {"min": st.integers(0, 5), "max": st.integers(1, 5), "mode": st.sampled_from(["internal", "external"])},
        optional={"idleToZero": st.just("5m"), "schedule": st.lists(SCHEDULE, max_size=3)},
    ),
    ("cost",): st.fixed_dictionaries(
        {},
        optional={
            "perAcceleratorHour": st.just(2.5),
            "ceilingPerHour": st.just(10.0),
            "budget": st.fixed_dictionaries(
                {"perMonth": st.just(100)}, optional={"shed": st.lists(st.sampled_from(["a", "b"]), max_size=2)}
            ),
        },
    ),
    ("rollout",): st.fixed_dictionaries(
        {}, optional={"steps": st.lists(STEP, max_size=4), "route": ROUTE, "guard": GUARD}
    ),
    ("traffic",): st.fixed_dictionaries(
        {},
        optional={
            "provider": st.sampled_from(["Gateway", "GatewayAPI"]),
            "gatewayAPI": st.just({"parentRefs": [{"name": "a"}]}),
            "timeout": DURATIONS,
            "firstTokenTimeout": DURATIONS,
            "nextTokenTimeout": DURATIONS,
            "priorities": st.lists(st.fixed_dictionaries({"name": NAMES}, optional={"queue": CLASS_QUEUE}), max_size=3),
            "rateLimits": st.lists(LIMIT, max_size=3),
        },
    ),
    ("traffic", "queue"): st.fixed_dictionaries({}, optional={"timeout": DURATIONS, "maxRequests": st.integers(1, 3)}),
}
