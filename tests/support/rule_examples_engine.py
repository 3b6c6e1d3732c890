"""Examples for each rule about engines, runtimes and accelerators: a spec that it refuses, and the nearest one that it
accepts. Written by hand, independent of the rules. No test here."""

from __future__ import annotations

from typing import Any

from support.rule_examples import ADAPTERS, CUSTOM, GATEWAY_API, GPU, KEY, METRICS, NODES, SGLANG, TGI, VLLM, Example


def unsupported(field: str, value: object, *runtimes: dict[str, Any], other: object = None) -> list[Example]:
    """Return the runtimes without `field`, or with only `other` values of it."""
    return [
        Example(
            f"spec.{field}",
            "not supported by runtime",
            {**runtime, field: value},
            runtime if other is None else {**runtime, field: other},
        )
        for runtime in runtimes
    ]


def custom_only(field: str, value: object) -> Example:
    given = {f"engine.{field}": value}
    return Example(f"spec.engine.{field}", "is for runtime custom only", given, {**CUSTOM, **given})


ZONE, HOST = (
    {"maxSkew": 1, "topologyKey": key, "whenUnsatisfiable": "ScheduleAnyway"}
    for key in ("topology.kubernetes.io/zone", "kubernetes.io/hostname")
)
CLAIMS = [{"name": name, "resourceClaimTemplateName": "t"} for name in ("gpu", "port")]
SPLIT = {"engine.disaggregation": {"prefill": {"replicas": 2}}}
SGLANG_ALONE = {"engine.runtime": "sglang", "engine.image": "x"}  # without an accelerator
TIME = "engine.startTimeout"
SECRET, CONFIG = {"name": "tokens", "key": "hub"}, {"name": "settings", "key": "mode"}


def variable(**given: Any) -> dict[str, Any]:
    return {"engine.env": [{"name": "MODE", **given}]}


ENGINE_EXAMPLES = (
    Example("spec.engine.startTimeout", "above 0 and at most 24h", {TIME: "0s"}, {TIME: "1s"}),
    Example("spec.engine.startTimeout", "above 0 and at most 24h", {TIME: "24h1s"}, {TIME: "24h"}),
    Example(
        "spec.engine.env",
        "each variable needs value or valueFrom, and not both",
        variable(value="a", valueFrom={"secretKeyRef": SECRET}),
        variable(valueFrom={"secretKeyRef": SECRET}),
    ),
    Example(
        "spec.engine.env",
        "each valueFrom needs secretKeyRef or configMapKeyRef, and not both",
        variable(valueFrom={"secretKeyRef": SECRET, "configMapKeyRef": CONFIG}),
        variable(valueFrom={"configMapKeyRef": CONFIG}),
    ),
    Example(
        "spec.engine.env",
        "no name may come twice",
        {"engine.env": [{"name": "MODE", "value": "a"}, {"name": "MODE", "value": "b"}]},
        {"engine.env": [{"name": "MODE", "value": "a"}, {"name": "MODES", "value": "b"}]},
    ),
    Example(
        "spec.pod.imagePullSecrets",
        "no name may come twice",
        {"pod.imagePullSecrets": [{"name": "a"}, {"name": "a"}]},
        {"pod.imagePullSecrets": [{"name": "a"}, {"name": "b"}]},
    ),
    Example(
        "spec.pod.priorityClassName",
        "system-cluster-critical and system-node-critical are for the cluster's own pods",
        {"pod": {"priorityClassName": "system-node-critical"}},
        {"pod": {"priorityClassName": "interactive"}},
    ),
    *(
        Example(
            "spec.pod",
            "would make one group of the pods of all replicas and revisions",
            {f"pod.{kind}": {f"kueue.x-k8s.io/{name}": "2", "team": "a"}},
            {"pod.labels": {"kueue.x-k8s.io/queue-name": "serving", "team": "a"}, "pod.annotations": {"a": "b"}},
        )
        for kind, name in (
            ("labels", "pod-group-name"),
            ("annotations", "pod-group-name"),
            ("annotations", "pod-group-total-count"),
        )
    ),
    *(
        Example(
            "spec.pod",
            "would make one group of the pods of all replicas; with spec.engine.nodes above 1",
            {**NODES, f"pod.{kind}": {name: "a"}},
            accepted,
        )
        for kind, name in (
            ("labels", "scheduling.x-k8s.io/pod-group"),
            ("annotations", "scheduling.k8s.io/group-name"),
            ("annotations", "scheduling.volcano.sh/group-name"),
        )
        for accepted in (
            {f"pod.{kind}": {name: "a"}},
            {**NODES, "pod.labels": {"team": "a"}, "pod.annotations": {"scheduling.volcano.sh/queue-name": "serving"}},
        )
    ),
    *(
        Example(
            "spec.pod.resourceClaims",
            "each entry needs resourceClaimName or resourceClaimTemplateName",
            {"pod.resourceClaims": [*CLAIMS, {"name": "a", **refused}]},
            {"pod.resourceClaims": [*CLAIMS, {"name": "a", "resourceClaimName": "c"}]},
        )
        for refused in ({}, {"resourceClaimName": "c", "resourceClaimTemplateName": "t"})
    ),
    Example(
        "spec.pod.resourceClaims",
        "no name may come twice",
        {"pod.resourceClaims": [*CLAIMS, {"name": "gpu", "resourceClaimName": "c"}]},
        {"pod.resourceClaims": CLAIMS},
    ),
    *(
        Example(
            "spec.pod.resourceClaims",
            "each entry must have accelerators beside spec.resources.accelerator",
            {**GPU, "pod.resourceClaims": [{**CLAIMS[0], "accelerators": True}, CLAIMS[1]]},
            accepted,
        )
        for accepted in (
            {"pod.resourceClaims": CLAIMS},
            {**GPU, "pod.resourceClaims": []},
            {**GPU, "pod.resourceClaims": [{**one, "accelerators": one is CLAIMS[0]} for one in CLAIMS]},
        )
    ),
    *(
        Example(
            "spec.resources.accelerator",
            "is required where spec.pod.resourceClaims gives accelerators",
            {"pod.resourceClaims": [CLAIMS[1], {**CLAIMS[0], "accelerators": True}]},
            {"pod.resourceClaims": [{**CLAIMS[0], "accelerators": given}], **more},
        )
        for given, more in ((True, GPU), (False, {}))
    ),
    Example(
        "spec.placement.topologySpreadConstraints",
        "minDomains needs whenUnsatisfiable DoNotSchedule",
        {"placement.topologySpreadConstraints": [{**ZONE, "minDomains": 2}]},
        {"placement.topologySpreadConstraints": [{**ZONE, "minDomains": 2, "whenUnsatisfiable": "DoNotSchedule"}]},
    ),
    *(
        Example(
            "spec.placement.topologySpreadConstraints",
            "no topologyKey may come twice",
            {"placement.topologySpreadConstraints": [ZONE, HOST, {**HOST, "maxSkew": 2}]},
            {"placement.topologySpreadConstraints": [ZONE, HOST, *more]},
        )
        for more in ((), ({**HOST, "whenUnsatisfiable": "DoNotSchedule"},))
    ),
    Example(
        "spec.engine.image",
        "is required for other accelerators",
        {"resources.accelerator.name": "example.com/npu"},
        {"resources.accelerator.name": "example.com/npu", "engine.image": "x"},
    ),
    Example(
        "spec.model.quantization",
        "fp8 and awq need",
        {"model.quantization": "fp8"},
        {"model.quantization": "awq", **GPU},
    ),
    Example(
        "spec.model.quantization",
        "int8 is for the CPU",
        {"model.quantization": "int8", **GPU},
        {"model.quantization": "int8"},
    ),
    Example(
        "spec.resources.accelerator.count",
        "at most 8 GPUs",
        {**GPU, "resources.accelerator.count": 9},
        {**GPU, "resources.accelerator.count": 8},
    ),
    Example(
        "spec.engine.port",
        "must be 8000 with",
        {**CUSTOM, "engine.port": 8001, "traffic.provider": "GatewayAPI", "traffic.gatewayAPI": GATEWAY_API},
        {**CUSTOM, "engine.port": 8000, "traffic.provider": "GatewayAPI", "traffic.gatewayAPI": GATEWAY_API},
    ),
    Example(
        "spec.model.source",
        "python:// is for runtime pagefleet",
        {"model.source": "python://p/m.gguf", **VLLM},
        {"model.source": "python://p/m.gguf"},
    ),
    *unsupported("model.quantization", "int8", VLLM, SGLANG, CUSTOM, other="none"),
    *unsupported("model.quantization", "fp8", CUSTOM, other="none"),
    *unsupported("model.quantization", "awq", CUSTOM, other="none"),
    *(
        Example(
            "spec.model.speculation.method",
            "draft, eagle and eagle3 are not supported by runtime tgi",
            {**TGI, "model.speculation": {"method": "draft", "model": "hf://a/b"}},
            {**TGI, "model.speculation": {"method": method}},
        )
        for method in ("ngram", "none")
    ),
    *(
        Example(
            "spec.model.speculation.method",
            "eagle is not supported by runtime pagefleet",
            {"model.speculation": {"method": "eagle", "model": "hf://a/b"}},
            valid,
        )
        for valid in (
            {"model.speculation": {"method": "eagle3", "model": "hf://a/b"}},
            {**VLLM, "model.speculation": {"method": "eagle", "model": "hf://a/b"}},
        )
    ),
    *(
        Example(
            f"spec.engine.limits.{limit}",
            "is not known to vLLM 0.24",
            {**VLLM, "resources.accelerator.name": "aws.amazon.com/neuroncore", f"engine.limits.{limit}": 9},
            accepted,
        )
        for limit in ("queued", "queuedTokens")
        for accepted in (
            {**VLLM, f"engine.limits.{limit}": 9},
            {
                **VLLM,
                "resources.accelerator.name": "aws.amazon.com/neuroncore",
                f"engine.limits.{limit}": 9,
                "engine.image": "x",
            },
        )
    ),
    *(
        Example(
            "spec.engine.kvCache.dtype",
            "fp8 and bfloat16 need spec.resources.accelerator",
            {"engine.kvCache.dtype": dtype},
            {**GPU, "engine.kvCache.dtype": dtype},
        )
        for dtype in ("fp8", "bfloat16")
    ),
    *unsupported("model.speculation", {"method": "none"}, CUSTOM),
    *unsupported("model.adapters", ADAPTERS, CUSTOM),
    *unsupported("model.chatTemplate", {"configMapKeyRef": KEY}, TGI, CUSTOM),
    Example(
        "spec.model.cache.size",
        "not supported by runtime custom",
        {**CUSTOM, "model.source": "hf://a/b", "model.cache": {"claim": "c", "size": "1Gi"}},
        {**CUSTOM, "model.source": "hf://a/b", "model.cache": {"claim": "c"}},
    ),
    *unsupported("engine.kvCache.pageSize", 16, TGI, CUSTOM),
    *unsupported("engine.kvCache.pages", 9, TGI, CUSTOM),
    *unsupported("engine.kvCache.memoryFraction", 0.5, CUSTOM),
    *unsupported("engine.kvCache.dtype", "float32", VLLM, other="float16"),
    *unsupported("engine.kvCache.dtype", "float32", SGLANG, other="auto"),
    *unsupported("engine.kvCache.dtype", "float16", SGLANG, other="auto"),
    *(
        example
        for dtype in ("float32", "float16", "bfloat16")
        for example in unsupported("engine.kvCache.dtype", dtype, TGI, other="fp8")
    ),
    *unsupported("engine.kvCache.dtype", "auto", CUSTOM),
    *unsupported("engine.kvCache.prefixCaching", True, CUSTOM),
    *unsupported("engine.kvCache.events", True, SGLANG, TGI, CUSTOM),
    *unsupported("engine.scheduling.policy", "priority", TGI, other="fcfs"),
    *unsupported("engine.scheduling.policy", "fcfs", CUSTOM),
    *unsupported("engine.scheduling.tokensPerStep", 9, CUSTOM),
    *unsupported("engine.scheduling.chunkTokens", 9, TGI, CUSTOM),
    *unsupported("engine.limits.promptTokens", 9, VLLM, SGLANG, CUSTOM),
    *unsupported("engine.limits.outputTokens", 9, SGLANG, TGI, CUSTOM),
    *unsupported("engine.limits.queued", 9, TGI, CUSTOM),
    *unsupported("engine.limits.queuedTokens", 9, SGLANG, TGI, CUSTOM),
    *unsupported("engine.limits.answers", 9, VLLM, SGLANG, TGI, CUSTOM),
    *unsupported("engine.toolCallParser", "hermes", TGI, CUSTOM),
    custom_only("command", ["x"]),
    custom_only("port", 8001),
    custom_only("probes", {"readiness": "/"}),
    custom_only("preStop", ["x"]),
    custom_only("metrics", METRICS),
    Example(
        "spec.engine.image",
        "is required for runtime custom",
        {"engine.runtime": "custom", "engine.probes.readiness": "/"},
        CUSTOM,
    ),
    Example(
        "spec.engine.probes",
        "is required for runtime custom",
        {"engine.runtime": "custom", "engine.image": "x"},
        CUSTOM,
    ),
    Example("spec.engine.image", "runtime vllm has images", {**VLLM, "resources.accelerator.name": "e.com/x"}, VLLM),
    Example("spec.engine.image", "runtime sglang has images", {"engine.runtime": "sglang"}, SGLANG),
    Example(
        "spec.engine.image",
        "runtime tgi has images",
        {**TGI, "resources.accelerator.name": "google.com/tpu"},
        {**TGI, "resources.accelerator.name": "habana.ai/gaudi"},
    ),
    *(
        Example("spec.engine.metrics", "is required for runtime custom", {**CUSTOM, "scaling.max": 2}, accepted)
        for accepted in (
            {**CUSTOM, "scaling.max": 2, "engine.metrics": METRICS},
            {**CUSTOM, "scaling.max": 2, "scaling.mode": "external"},
            {**CUSTOM, "scaling.max": 2, "scaling.min": 2},
        )
    ),
    Example(
        "spec.engine.nodes", "runtime tgi runs on one node only", {**TGI, **NODES}, {**TGI, **NODES, "engine.nodes": 1}
    ),
    Example("spec.engine.nodes", "runtime pagefleet shares a model", {"engine.nodes": 2}, NODES),
    Example(
        "spec.engine.pipelineParallelSize",
        "only the runtimes vllm and sglang",
        {**NODES, "engine.pipelineParallelSize": 2},
        {**NODES, **VLLM, "engine.pipelineParallelSize": 2},
    ),
    Example(
        "spec.engine.pipelineParallelSize",
        "must divide",
        {**NODES, **VLLM, "engine.pipelineParallelSize": 3},
        {**NODES, **VLLM, "resources.accelerator.count": 3, "engine.pipelineParallelSize": 3},
    ),
    *(
        Example("spec.model.adapters", "on several nodes", {**NODES, "model.adapters": ADAPTERS}, accepted)
        for accepted in ({**NODES, "model.adapters": []}, {**GPU, "model.adapters": ADAPTERS})
    ),
    *unsupported("engine.disaggregation", {"prefill": {"replicas": 1}}, {}, TGI, CUSTOM),
    Example(
        "spec.engine.disaggregation.minPromptTokens",
        "not supported by runtime sglang",
        {**SGLANG, "engine.disaggregation": {"prefill": {"replicas": 1}, "minPromptTokens": 64}},
        {**SGLANG, **SPLIT},
    ),
    Example("spec.engine.disaggregation", "with runtime sglang", {**SGLANG_ALONE, **SPLIT}, {**SGLANG, **SPLIT}),
    Example(
        "spec.engine.disaggregation",
        "needs replicas of one pod",
        {**VLLM, **NODES, **SPLIT},
        {**VLLM, **NODES, **SPLIT, "engine.nodes": 1},
    ),
    *(
        Example("spec.engine.disaggregation", "no NIXL library", {**VLLM, **SPLIT}, {**VLLM, **SPLIT, **accepted})
        for accepted in (GPU, {"resources.accelerator.name": "amd.com/gpu"}, {"engine.image": "with-nixl:1"})
    ),
)
