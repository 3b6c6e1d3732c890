"""Rules of the runtimes, made from the registry: a field that a runtime does not support is refused by its name."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from pagefleet_contract.names import ENGINE_PORT
from pagefleet_operator.domain.runtimes.adapter import Adapter
from pagefleet_operator.domain.runtimes.catalog import REGISTRY
from pagefleet_operator.domain.spec.rules.rule import RUNTIME, Rule, given, listed

ROUTED = "has(self.traffic) && has(self.traffic.provider) && self.traffic.provider == 'GatewayAPI'"
ENGINES = tuple(REGISTRY.values())


def _among(runtimes: Iterable[str]) -> str:
    """In CEL: whether the spec's runtime is one of these."""
    return f"({RUNTIME} in {listed(runtimes)})"


def refused(runtimes: Iterable[str], field: str, *values: str) -> Rule:
    """These runtimes do not support `field`; with `values`, only these values of it."""
    which = f" && self.{field} in {listed(values)}" if values else ""
    named = " and ".join(part for part in (", ".join(values[:-1]), *values[-1:]) if part)
    subject = f"{named} {'are' if len(values) > 1 else 'is'}" if values else "is"
    message = f"{subject} not supported by runtime {', '.join(runtimes)}; remove it"
    return Rule((), f"spec.{field}", f"!{_among(runtimes)} || !({given(field)}{which})", message)


def _unsupported() -> Iterator[Rule]:
    """One rule for each field, or for values of it, that some runtimes do not support."""
    lacking: dict[tuple[str, ...], list[str]] = {}
    for engine in ENGINES:
        for field, values in engine.unsupported.items():
            lacking.setdefault((field, *values), []).append(engine.name)
    for (field, *refused_values), runtimes in lacking.items():
        yield refused(runtimes, field, *refused_values)


def _own_fields(engine: Adapter) -> Iterator[Rule]:
    """Fields that only this runtime has."""
    others = [other.name for other in ENGINES if other is not engine]
    for field in engine.own_fields:
        message = f"is for runtime {engine.name} only; remove it"
        yield Rule((), f"spec.{field}", f"!{_among(others)} || !({given(field)})", message)


def _required(engine: Adapter) -> Iterator[Rule]:
    for field in engine.required:
        message = f"is required for runtime {engine.name}"
        yield Rule((), f"spec.{field}", f"!{_among([engine.name])} || ({given(field)})", message)


def _needs_image(engine: Adapter) -> Iterator[Rule]:
    """`spec.engine.image` is required where the runtime has no image of its own for the accelerator."""
    if engine.images is None:
        return
    names = tuple(engine.images)
    accelerated = "has(self.resources) && has(self.resources.accelerator)"
    known = f"{accelerated} && self.resources.accelerator.name in {listed(name for name in names if name)}"
    plain = f" || !({accelerated})" if "" in names else ""
    accelerators = ", ".join(name or "no accelerator" for name in names)
    cel = f"!{_among([engine.name])} || has(self.engine.image) || ({known}){plain}"
    message = f"is required: runtime {engine.name} has images of its own only for {accelerators}"
    yield Rule((), "spec.engine.image", cel, message)


RUNTIME_RULES = (
    Rule(
        ("engine",),
        "spec.engine.startTimeout",
        "!has(self.startTimeout) || (duration(self.startTimeout) > duration('0s') "
        "&& duration(self.startTimeout) <= duration('24h'))",
        "must be above 0 and at most 24h",
    ),
    Rule(
        (),
        "spec.engine.port",
        f"!({ROUTED}) || !(has(self.engine) && has(self.engine.port)) || self.engine.port == {ENGINE_PORT}",
        f"must be {ENGINE_PORT} with spec.traffic.provider GatewayAPI",
    ),
    Rule(
        (),
        "spec.model.source",
        f"!{_among(engine.name for engine in ENGINES if not engine.reads_packages)} "
        "|| !self.model.source.startsWith('python://')",
        f"python:// is for runtime {', '.join(engine.name for engine in ENGINES if engine.reads_packages)}; "
        "use hf://, s3://, gs://, az://, pvc://, oci:// or file://",
    ),
    *_unsupported(),
    *(rule for engine in ENGINES for rule in _own_fields(engine)),
    *(rule for engine in ENGINES for rule in _required(engine)),
    *(rule for engine in ENGINES for rule in _needs_image(engine)),
    Rule(
        (),
        "spec.engine.metrics",
        f"!{_among(['custom'])} || has(self.engine.metrics) || !has(self.scaling) || !has(self.scaling.max) "
        "|| !has(self.scaling.min) || self.scaling.max <= self.scaling.min "
        "|| (has(self.scaling.mode) && self.scaling.mode == 'external')",
        "is required for runtime custom whose replicas follow the load (spec.scaling.max above min)",
    ),
)
