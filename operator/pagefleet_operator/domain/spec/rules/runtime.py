"""Rules of what each runtime can do, each in CEL and in Python (see rules.py): what it cannot is refused by its field."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from pagefleet_contract.names import ENGINE_PORT
from pagefleet_operator.domain.runtimes.catalog import Runtime, images_of, runtime_of
from pagefleet_operator.domain.spec.rules.rule import RUNTIME, Rule

OTHERS = (Runtime.VLLM, Runtime.SGLANG, Runtime.TGI)
FOREIGN = (*OTHERS, Runtime.CUSTOM)
Test = Callable[[Any], bool]


def _among(runtimes: tuple[Runtime, ...]) -> str:
    """In CEL."""
    return f"({RUNTIME} in [{', '.join(repr(str(runtime)) for runtime in runtimes)}])"


def _given(path: tuple[str, ...]) -> str:
    steps = [".".join(("self", *path[: end + 1])) for end in range(len(path))]
    return " && ".join(f"has({step})" for step in steps)


def _at(spec: Mapping[str, Any], path: tuple[str, ...]) -> Any:
    value: Any = spec
    for name in path:
        value = value.get(name) if isinstance(value, Mapping) else None
    return value


def refused(runtimes: tuple[Runtime, ...], field: str, *values: str) -> Rule:
    """`field` (of these values; without any, at all) is nothing that these runtimes can do."""
    path = tuple(field.split("."))
    word = ".".join(("self", *path))
    which = f" && {word} in [{', '.join(repr(value) for value in values)}]" if values else ""
    named, said = " and ".join(values), ", ".join(runtimes)

    def holds(spec: Any) -> bool:
        value = _at(spec, path)
        return value is None or (bool(values) and value not in values) or runtime_of(spec) not in runtimes

    cel = f"!{_among(runtimes)} || !({_given(path)}{which})"
    message = f"{named + ' ' if named else ''}cannot be had with runtime {said}; remove it"
    if runtimes == KNOWN:
        message = "is for runtime custom only; remove it"
    return Rule((), f"spec.{field}", cel, message, holds)


def _needs_image(runtime: Runtime) -> Rule:
    """Where the runtime has no image of its own for the accelerator."""
    names = tuple(images_of(runtime))
    accelerated = "has(self.resources) && has(self.resources.accelerator)"
    known = f"{accelerated} && self.resources.accelerator.name in [{', '.join(repr(name) for name in names if name)}]"
    plain = f" || !({accelerated})" if "" in names else ""
    said = ", ".join(name or "no accelerator" for name in names)

    def holds(spec: Any) -> bool:
        name = (_at(spec, ("resources", "accelerator")) or {}).get("name", "")
        return runtime_of(spec) is not runtime or name in names or bool(_at(spec, ("engine", "image")))

    cel = f"!{_among((runtime,))} || has(self.engine.image) || ({known}){plain}"
    message = f"is required: runtime {runtime} has an image of its own for {said} only"
    return Rule((), "spec.engine.image", cel, message, holds)


def _required(field: str) -> Rule:
    path = tuple(field.split("."))
    return Rule(
        (),
        f"spec.{field}",
        f"!{_among((Runtime.CUSTOM,))} || ({_given(path)})",
        "is required for runtime custom",
        lambda spec: runtime_of(spec) is not Runtime.CUSTOM or _at(spec, path) is not None,
    )


def _other_port(spec: Mapping[str, Any]) -> bool:
    """Whether gateways are to be led to a port that the operator writes no route to."""
    routed = _at(spec, ("traffic", "provider")) == "GatewayAPI"
    return routed and _at(spec, ("engine", "port")) not in (None, ENGINE_PORT)


VLLM, SGLANG, TGI, CUSTOM = (Runtime.VLLM,), (Runtime.SGLANG,), (Runtime.TGI,), (Runtime.CUSTOM,)
KNOWN = (Runtime.PAGEFLEET, *OTHERS)

ROUTED = "has(self.traffic) && has(self.traffic.provider) && self.traffic.provider == 'GatewayAPI'"
RUNTIME_RULES = (
    Rule(
        (),
        "spec.engine.port",
        f"!({ROUTED}) || !(has(self.engine) && has(self.engine.port)) || self.engine.port == {ENGINE_PORT}",
        f"must be {ENGINE_PORT} with spec.traffic.provider GatewayAPI",
        lambda spec: not _other_port(spec),
    ),
    Rule(
        (),
        "spec.model.source",
        f"!{_among(FOREIGN)} || !self.model.source.startsWith('python://')",
        "python:// is for runtime pagefleet; use hf://, pvc:// or file://",
        lambda spec: runtime_of(spec) not in FOREIGN or not spec["model"]["source"].startswith("python://"),
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
        lambda spec: runtime_of(spec) is not Runtime.CUSTOM or _blind_at_will(spec),
    ),
)


def _blind_at_will(spec: Mapping[str, Any]) -> bool:
    scaling = spec.get("scaling") or {}
    fixed = "max" not in scaling or "min" not in scaling or scaling["max"] <= scaling["min"]
    return bool(_at(spec, ("engine", "metrics"))) or fixed or scaling.get("mode") == "external"
