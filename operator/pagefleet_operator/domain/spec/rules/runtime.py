"""Rules of the runtimes: a field that a runtime does not support is refused by its name."""

from __future__ import annotations

from pagefleet_contract.names import ENGINE_PORT
from pagefleet_operator.domain.runtimes.catalog import Runtime, images_of
from pagefleet_operator.domain.spec.rules.rule import RUNTIME, Rule, given

OTHERS = (Runtime.VLLM, Runtime.SGLANG, Runtime.TGI)
FOREIGN = (*OTHERS, Runtime.CUSTOM)


def _among(runtimes: tuple[Runtime, ...]) -> str:
    """In CEL: whether the spec's runtime is one of these."""
    return f"({RUNTIME} in [{', '.join(repr(str(runtime)) for runtime in runtimes)}])"


def refused(runtimes: tuple[Runtime, ...], field: str, *values: str) -> Rule:
    """These runtimes do not support `field`, or of its values only not `values`."""
    which = f" && self.{field} in [{', '.join(repr(value) for value in values)}]" if values else ""
    subject = f"{' and '.join(values)} {'are' if len(values) > 1 else 'is'}" if values else "is"
    cel = f"!{_among(runtimes)} || !({given(field)}{which})"
    message = f"{subject} not supported by runtime {', '.join(runtimes)}; remove it"
    if runtimes == KNOWN:
        message = "is for runtime custom only; remove it"
    return Rule(
        (),
        f"spec.{field}",
        cel,
        message,
    )


def _needs_image(runtime: Runtime) -> Rule:
    """`spec.engine.image` is required where the runtime has no image of its own for the accelerator."""
    names = tuple(images_of(runtime))
    accelerated = "has(self.resources) && has(self.resources.accelerator)"
    known = f"{accelerated} && self.resources.accelerator.name in [{', '.join(repr(name) for name in names if name)}]"
    plain = f" || !({accelerated})" if "" in names else ""
    listed = ", ".join(name or "no accelerator" for name in names)

    cel = f"!{_among((runtime,))} || has(self.engine.image) || ({known}){plain}"
    message = f"is required: runtime {runtime} has images of its own only for {listed}"
    return Rule(
        (),
        "spec.engine.image",
        cel,
        message,
    )


def _required(field: str) -> Rule:
    return Rule(
        (),
        f"spec.{field}",
        f"!{_among((Runtime.CUSTOM,))} || ({given(field)})",
        "is required for runtime custom",
    )


VLLM, SGLANG, TGI, CUSTOM = (Runtime.VLLM,), (Runtime.SGLANG,), (Runtime.TGI,), (Runtime.CUSTOM,)
KNOWN = (Runtime.PAGEFLEET, *OTHERS)

ROUTED = "has(self.traffic) && has(self.traffic.provider) && self.traffic.provider == 'GatewayAPI'"
RUNTIME_RULES = (
    Rule(
        (),
        "spec.engine.port",
        f"!({ROUTED}) || !(has(self.engine) && has(self.engine.port)) || self.engine.port == {ENGINE_PORT}",
        f"must be {ENGINE_PORT} with spec.traffic.provider GatewayAPI",
    ),
    Rule(
        (),
        "spec.model.source",
        f"!{_among(FOREIGN)} || !self.model.source.startsWith('python://')",
        "python:// is for runtime pagefleet; use hf://, pvc:// or file://",
    ),
    refused((*VLLM, *SGLANG, *CUSTOM), "model.quantization", "int8"),
    refused(CUSTOM, "model.quantization", "fp8", "awq"),
    refused(TGI, "model.speculation.method", "draft"),
    refused(CUSTOM, "model.speculation"),
    refused(CUSTOM, "model.adapters"),
    refused((*TGI, *CUSTOM), "model.chatTemplate"),
    refused((*TGI, *CUSTOM), "engine.kvCache.pageSize"),
    refused((*TGI, *CUSTOM), "engine.kvCache.pages"),
    refused(CUSTOM, "engine.kvCache.memoryFraction"),
    refused(VLLM, "engine.kvCache.dtype", "float32"),
    refused(SGLANG, "engine.kvCache.dtype", "float32", "float16"),
    refused((*TGI, *CUSTOM), "engine.kvCache.dtype"),
    refused(CUSTOM, "engine.kvCache.prefixCaching"),
    refused(TGI, "engine.scheduling.policy", "priority"),
    refused(CUSTOM, "engine.scheduling.policy"),
    refused(CUSTOM, "engine.scheduling.tokensPerStep"),
    refused((*TGI, *CUSTOM), "engine.scheduling.chunkTokens"),
    refused((*VLLM, *SGLANG, *CUSTOM), "engine.limits.promptTokens"),
    refused((*SGLANG, *TGI, *CUSTOM), "engine.limits.outputTokens"),
    refused((*TGI, *CUSTOM), "engine.limits.queued"),
    refused((*SGLANG, *TGI, *CUSTOM), "engine.limits.queuedTokens"),
    refused(FOREIGN, "engine.limits.answers"),
    refused((*TGI, *CUSTOM), "engine.toolCallParser"),
    *(refused(KNOWN, f"engine.{name}") for name in ("command", "port", "probes", "preStop", "metrics")),
    _required("engine.image"),
    _required("engine.probes"),
    *map(_needs_image, OTHERS),
    Rule(
        (),
        "spec.engine.metrics",
        f"!{_among(CUSTOM)} || has(self.engine.metrics) || !has(self.scaling) || !has(self.scaling.max) "
        "|| !has(self.scaling.min) || self.scaling.max <= self.scaling.min "
        "|| (has(self.scaling.mode) && self.scaling.mode == 'external')",
        "is required for runtime custom whose replicas follow the load (spec.scaling.max above min)",
    ),
)
