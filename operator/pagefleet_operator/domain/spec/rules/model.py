"""Rules within `.spec.model`, of the limits that its length sets, and within `.spec.engine.scheduling`."""

from __future__ import annotations

from pagefleet_contract.engine_options import DEFAULT_PAGE_SIZE, MIN_CACHE_TOKENS
from pagefleet_operator.domain.spec.rules.rule import RUNTIME, Rule, given

# In CEL: whether the model's length and one of the limits of requests are both given.
PROMPT = f"{given('engine.limits.promptTokens')} && has(self.model.maxLength)"
OUTPUT = f"{given('engine.limits.outputTokens')} && has(self.model.maxLength)"
# In CEL: the tokens of a page, where spec.engine.kvCache is given.
PAGE = f"(has(self.engine.kvCache.pageSize) ? self.engine.kvCache.pageSize : {DEFAULT_PAGE_SIZE})"

MODELS = "['draft', 'eagle', 'eagle3']"  # methods of speculation that have a model of their own

# In CEL: whether a model of speculation is given.
DRAFT = "has(self.speculation) && has(self.speculation.model)"

# In CEL, within spec.model: whether an adapter lies in an image or artifact.
ADAPTED = "has(self.adapters) && self.adapters.exists(a, a.source.startsWith('oci://'))"

# In CEL: whether the spec gives SGLang the tokens of a page and those of a chunk.
CHUNKED = f"{given('engine.scheduling.chunkTokens')} && {RUNTIME} == 'sglang' && {given('engine.kvCache')}"
CHUNKED += " && (has(self.engine.kvCache.pageSize) || has(self.engine.kvCache.pages))"


def fetched(source: str) -> str:
    """In CEL, within spec.model: whether this source of a model is fetched."""
    return f"({source}.matches('^(hf|s3|gs|az)://') || (has(self.oci) && self.oci == 'Fetch' && {source}.startsWith('oci://')))"


MODEL_RULES = (
    Rule(
        (),
        "spec.engine.limits.promptTokens",
        f"!({PROMPT}) || self.engine.limits.promptTokens < self.model.maxLength",
        "must be below spec.model.maxLength, or no room is left for an answer",
    ),
    Rule(
        (),
        "spec.engine.limits.outputTokens",
        f"!({OUTPUT}) || self.engine.limits.outputTokens <= self.model.maxLength",
        "must not be above spec.model.maxLength",
    ),
    Rule(
        (),
        "spec.engine.kvCache.pages",
        f"!({given('engine.kvCache.pages')}) || self.engine.kvCache.pages * {PAGE} >= {MIN_CACHE_TOKENS}",
        f"must hold at least {MIN_CACHE_TOKENS} tokens: pages times spec.engine.kvCache.pageSize, which is "
        f"{DEFAULT_PAGE_SIZE} when omitted; a chat template alone takes about 30",
    ),
    Rule(
        (),
        "spec.engine.kvCache.events",
        f"!({given('engine.kvCache.events')} && self.engine.kvCache.events) "
        "|| !has(self.engine.kvCache.prefixCaching) || self.engine.kvCache.prefixCaching",
        "are those of the prefix cache, which spec.engine.kvCache.prefixCaching switches off; remove one of them",
    ),
    Rule(
        ("model", "speculation"),
        "spec.model.speculation.model",
        f"!(self.method in {MODELS}) || has(self.model)",
        "is required for methods draft, eagle and eagle3",
    ),
    Rule(
        ("model", "speculation"),
        "spec.model.speculation.model",
        f"self.method in {MODELS} || !has(self.model)",
        "belongs to methods draft, eagle and eagle3; remove it",
    ),
    Rule(
        ("model",),
        "spec.model.adapters",
        "!has(self.adapters) || self.adapters.all(a, self.adapters.exists_one(b, b.name == a.name))",
        "no name may come twice",
    ),
    Rule(
        ("model",),
        "spec.model.adapters",
        "!has(self.adapters) || !has(self.servedName) || self.adapters.all(a, a.name != self.servedName)",
        "no adapter may have the model's own name, spec.model.servedName",
    ),
    Rule(
        ("model",),
        "spec.model.cache",
        f"!has(self.cache) || {fetched('self.source')} || ({DRAFT} && {fetched('self.speculation.model')})"
        f" || (has(self.oci) && self.oci == 'Fetch' && {ADAPTED})",
        "needs a source of hf://, s3://, gs:// or az://, or of oci:// with spec.model.oci: Fetch: it stores fetched weights; a claim that "
        "holds weights is a source of pvc://",
    ),
    Rule(
        ("model",),
        "spec.model.oci",
        f"!has(self.oci) || self.source.startsWith('oci://') || ({DRAFT} && self.speculation.model.startsWith('oci://'))"
        f" || ({ADAPTED})",
        "belongs to sources of oci://; remove it",
    ),
    Rule(
        ("engine", "scheduling"),
        "spec.engine.scheduling.tokensPerStep",
        "!has(self.maxSequences) || !has(self.tokensPerStep) || self.maxSequences <= self.tokensPerStep",
        "must not be below maxSequences: every running sequence takes a token of each step",
    ),
    Rule(
        ("engine", "scheduling"),
        "spec.engine.scheduling.chunkTokens",
        "!has(self.chunkTokens) || !has(self.tokensPerStep) || self.chunkTokens <= self.tokensPerStep",
        "must not be above tokensPerStep",
    ),
    Rule(
        (),
        "spec.engine.scheduling.chunkTokens",
        f"!({CHUNKED}) || self.engine.scheduling.chunkTokens % {PAGE} == 0",
        f"must be whole pages with runtime sglang, or it does not start: spec.engine.kvCache.pageSize, {DEFAULT_PAGE_SIZE} with "
        "spec.engine.kvCache.pages alone",
    ),
)
