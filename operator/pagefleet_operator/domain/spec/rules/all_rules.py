"""Rules that cross fields, each in CEL (for the CRD) and in Python (for the operator); a test holds them together."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pagefleet_contract.quantity import fraction
from pagefleet_operator.domain.spec.rules.accelerator import ACCELERATOR_RULES
from pagefleet_operator.domain.spec.rules.guard import GUARD_RULES
from pagefleet_operator.domain.spec.rules.nodes import NODE_RULES
from pagefleet_operator.domain.spec.rules.rollout import ROLLOUT_RULES, weights
from pagefleet_operator.domain.spec.rules.rule import Rule
from pagefleet_operator.domain.spec.rules.runtime import RUNTIME_RULES
from pagefleet_operator.domain.spec.rules.scaling import SCALING_RULES, scaling_errors
from pagefleet_operator.domain.spec.rules.traffic import TRAFFIC_RULES, header_errors
from pagefleet_operator.domain.spec.structure import SpecError


def _names(model: Mapping[str, Any]) -> list[str]:
    return [adapter["name"] for adapter in model.get("adapters") or ()]


def fetched(model: Mapping[str, Any]) -> tuple[str, str]:
    """The sources that a replica may have to fetch."""
    return model["source"], (model.get("speculation") or {}).get("model", "")


def _at_most(part: Mapping[str, Any], less: str, more: str) -> bool:
    """Whether `less` is at most `more` where both are given."""
    return less not in part or more not in part or bool(part[less] <= part[more])


def _limit(spec: Mapping[str, Any], name: str) -> int:
    return int(((spec.get("engine") or {}).get("limits") or {}).get(name, 0))


def _length(spec: Mapping[str, Any]) -> float:
    return float(spec["model"].get("maxLength", "inf"))


HUB = "hf://"
# In CEL: whether the limit NAME and the model's length are both given.
BOTH = "has(self.engine) && has(self.engine.limits) && has(self.engine.limits.NAME) && has(self.model.maxLength)"

RULES = (
    Rule(
        (),
        "spec.engine.limits.promptTokens",
        f"!({BOTH.replace('NAME', 'promptTokens')}) || self.engine.limits.promptTokens < self.model.maxLength",
        "must be below spec.model.maxLength, or no room is left for an answer",
        lambda spec: _limit(spec, "promptTokens") < _length(spec),
    ),
    Rule(
        (),
        "spec.engine.limits.outputTokens",
        f"!({BOTH.replace('NAME', 'outputTokens')}) || self.engine.limits.outputTokens <= self.model.maxLength",
        "must not be above spec.model.maxLength",
        lambda spec: _limit(spec, "outputTokens") <= _length(spec),
    ),
    Rule(
        ("model", "speculation"),
        "spec.model.speculation.model",
        "self.method != 'draft' || has(self.model)",
        "is required for method draft",
        lambda speculation: speculation["method"] != "draft" or "model" in speculation,
    ),
    Rule(
        ("model", "speculation"),
        "spec.model.speculation.model",
        "self.method == 'draft' || !has(self.model)",
        "belongs to method draft; remove it",
        lambda speculation: speculation["method"] == "draft" or "model" not in speculation,
    ),
    Rule(
        ("model",),
        "spec.model.adapters",
        "!has(self.adapters) || self.adapters.all(a, self.adapters.exists_one(b, b.name == a.name))",
        "no name may come twice",
        lambda model: len(set(_names(model))) == len(_names(model)),
    ),
    Rule(
        ("model",),
        "spec.model.adapters",
        "!has(self.adapters) || !has(self.servedName) || self.adapters.all(a, a.name != self.servedName)",
        "no adapter may have the model's own name, spec.model.servedName",
        lambda model: model.get("servedName") not in _names(model),
    ),
    Rule(
        ("model",),
        "spec.model.cache",
        "!has(self.cache) || self.source.startsWith('hf://')"
        " || (has(self.speculation) && has(self.speculation.model) && self.speculation.model.startsWith('hf://'))",
        "keeps what is fetched: it needs a source of hf://; a claim that holds weights is a source of pvc://",
        lambda model: "cache" not in model or any(source.startswith(HUB) for source in fetched(model)),
    ),
    Rule(
        ("engine", "scheduling"),
        "spec.engine.scheduling.tokensPerStep",
        "!has(self.maxSequences) || !has(self.tokensPerStep) || self.maxSequences <= self.tokensPerStep",
        "must not be below maxSequences: every running sequence takes a token of each step",
        lambda scheduling: _at_most(scheduling, "maxSequences", "tokensPerStep"),
    ),
    Rule(
        ("engine", "scheduling"),
        "spec.engine.scheduling.chunkTokens",
        "!has(self.chunkTokens) || !has(self.tokensPerStep) || self.chunkTokens <= self.tokensPerStep",
        "must not be above tokensPerStep",
        lambda scheduling: _at_most(scheduling, "chunkTokens", "tokensPerStep"),
    ),
    *SCALING_RULES,
    *ROLLOUT_RULES,
    *GUARD_RULES,
    *TRAFFIC_RULES,
    *ACCELERATOR_RULES,
    *RUNTIME_RULES,
    *NODE_RULES,
)


def check(spec: Mapping[str, Any]) -> list[SpecError]:
    """Errors of a spec whose structure holds and whose defaults are filled in."""
    errors = []
    for rule in RULES:
        part: Any = spec
        for name in rule.at:
            part = part.get(name) if isinstance(part, Mapping) else None
        if part is not None and not rule.holds(part):
            errors.append(SpecError(rule.field, rule.message))
    steps = (spec.get("rollout") or {}).get("steps") or ()
    errors += scaling_errors(spec)
    given = weights(spec.get("rollout") or {})
    if given != sorted(given):
        errors.append(SpecError("spec.rollout.steps", f"weights must rise, not {', '.join(map(str, given))}"))
    for index, step in enumerate(steps):
        if "mirror" in step and fraction(step["mirror"]) > 1:
            errors.append(SpecError(f"spec.rollout.steps[{index}].mirror", "must be at most 100%"))
    pages = ((spec.get("rollout") or {}).get("guard") or {}).get("freePages")
    if pages and fraction(pages["min"]) > 1:
        errors.append(SpecError("spec.rollout.guard.freePages.min", "must be at most 100%"))
    kinds = ["preview" if "preview" in step else "weight" for step in steps if "preview" in step or "weight" in step]
    if kinds != sorted(kinds):
        errors.append(SpecError("spec.rollout.steps", "preview must come before the first weight"))
    return [*errors, *header_errors(spec.get("traffic") or {})]
