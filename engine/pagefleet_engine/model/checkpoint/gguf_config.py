"""The shape of a model from GGUF metadata, as llama.cpp reads it. No torch."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from pagefleet_engine.model.checkpoint.config import ModelConfig, check_shape
from pagefleet_engine.model.checkpoint.errors import SOURCE, ModelError
from pagefleet_engine.model.checkpoint.rope_scaling import yarn_divisors, yarn_scale
from pagefleet_engine.model.families import registry
from pagefleet_engine.model.families.family import Family

# Settings that change the arithmetic, with the values that this implementation computes.
COMPUTED: dict[str, tuple[Any, ...]] = {
    "expert_count": (None, 0),
    "attention.causal": (None, True),
    "attention.clamp_kqv": (None, 0.0),
    "attention.max_alibi_bias": (None, 0.0),
    "attention.scale": (None, 0.0),
    "attention.sliding_window_pattern": (None,),
    "attention.temperature_scale": (None, 0.0),
    "attn_logit_softcapping": (None, 0.0),
    "final_logit_softcapping": (None, 0.0),
    "logit_scale": (None, 0.0, 1.0),
    "embedding_scale": (None, 0.0, 1.0),
    "residual_scale": (None, 0.0, 1.0),
    "rope.scaling.yarn_attn_factor": (None, 1.0),
    "rope.scaling.yarn_ext_factor": (None, 1.0, -1.0),
    "rope.scaling.yarn_log_multiplier": (None, 0.0),
    "use_parallel_residual": (None, False),
}
# Tokens that end an answer whatever else the metadata names, as in llama.cpp. A Qwen's end of a turn is in the metadata, and a
# text without turns ends with <|endoftext|>.
ENDS = frozenset({
    "<|endoftext|>", "<|end_of_text|>", "<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|end|>", "<end_of_turn>", "<EOT>", "_<EOT>",
})  # fmt: skip
Field = Callable[[str], Any]


def from_gguf(field: Field, vocab_size: int, divisors: tuple[float, ...], tied: bool) -> ModelConfig:
    """`field(name)` answers a metadata value or None. Raises ModelError.

    `vocab_size` is the length of the token list, which need not be decoded for it. `divisors` come from the file's rope
    table. The file of a `tied` model holds no output matrix.
    """
    architecture = field("general.architecture")
    family = registry.of_architecture(architecture)
    if family is None:
        supported = ", ".join(registry.architectures())
        raise ModelError(SOURCE, f"architecture {architecture!r} is not supported; supported: {supported}")
    try:
        return check_shape(_config(family, field, vocab_size, divisors, tied))
    except (TypeError, ValueError, OverflowError, ZeroDivisionError) as error:
        raise ModelError(SOURCE, f"the GGUF file's metadata cannot be used: {error!r}") from error


def eos_token_ids(field: Field) -> tuple[int, ...]:
    """The tokens that end an answer: of a text, of a turn, of a message (Llama 3.1's tool calls), and those of ENDS."""
    named = (field(f"tokenizer.ggml.{name}_token_id") for name in ("eos", "eot", "eom"))
    known = (index for index, token in enumerate(field("tokenizer.ggml.tokens") or ()) if token in ENDS)
    return tuple(dict.fromkeys(int(token) for token in (*named, *known) if token is not None))


def _config(family: Family, field: Field, vocab_size: int, divisors: tuple[float, ...], tied: bool) -> ModelConfig:
    kind = family.gguf

    def get(name: str, default: Any = None) -> Any:
        value = field(f"{kind}.{name}")
        return default if value is None else value

    def need(name: str) -> Any:
        value = field(f"{kind}.{name}")
        if value is None:
            raise ModelError(SOURCE, f"the GGUF file has no {kind}.{name}")
        return value

    heads, hidden, context = (
        int(need("attention.head_count")),
        int(need("embedding_length")),
        int(need("context_length")),
    )
    head_dim = int(get("attention.key_length") or hidden // heads)
    same = {"attention.value_length": (None, head_dim), "rope.dimension_count": (None, head_dim)}
    for name, allowed in {**COMPUTED, **same}.items():
        if get(name) not in allowed:
            raise ModelError(
                SOURCE, f"the GGUF file's {kind}.{name} {get(name)!r} is not supported; supported: {allowed[-1]}"
            )
    theta = float(get("rope.freq_base", 10000.0))
    if divisors and len(divisors) != head_dim // 2:
        raise ModelError(SOURCE, f"the GGUF file's rope table has {len(divisors)} entries for {head_dim // 2} pairs")
    scaled, scale, reach = _scaling(get, head_dim, theta, context)
    if divisors and scaled:
        scaled = tuple(one * other for one, other in zip(divisors, scaled, strict=True))
    window = int(get("attention.sliding_window", 0))
    if window and not family.gguf_window:
        raise ModelError(SOURCE, f"the GGUF file's {kind}.attention.sliding_window is not supported; supported: 0")
    layers = int(need("block_count"))
    return ModelConfig(
        kind=family.model_type,
        vocab_size=vocab_size,
        hidden_size=hidden,
        intermediate_size=int(need("feed_forward_length")),
        layers=layers,
        heads=heads,
        kv_heads=int(get("attention.head_count_kv") or heads),
        head_dim=head_dim,
        rope_theta=theta,
        norm_eps=float(need("attention.layer_norm_rms_epsilon")),
        max_position=max(context, reach),
        tied=tied,
        eos_token_ids=eos_token_ids(field),
        rope_divisors=scaled or divisors,
        rope_scale=scale,
        qk_norm=family.qk_norm,
        attention_bias=family.attention_bias,
        sliding_window=window or None,
        sliding_layers=(True,) * layers if window else (),
    )


def _scaling(
    get: Callable[..., Any], head_dim: int, theta: float, context: int
) -> tuple[tuple[float, ...], float, int]:
    """Divisors, cos and sin's factor, and the context reached. llama.cpp takes a factor without a type as linear."""
    factor = float(get("rope.scaling.factor") or get("rope.scale_linear") or 1.0)
    scale = float(get("rope.scaling.attn_factor", 1.0))
    if not 0 < factor < math.inf:
        raise ModelError(SOURCE, f"the GGUF file's rope.scaling.factor is {factor}")
    match get("rope.scaling.type", "linear"):
        case "none":
            return (), scale, 0
        case "linear":
            return () if factor == 1.0 else (factor,) * (head_dim // 2), scale, 0
        case "yarn":
            original = int(get("rope.scaling.original_context_length", context))
            fast, slow = float(get("rope.scaling.yarn_beta_fast", 32)), float(get("rope.scaling.yarn_beta_slow", 1))
            divisors = yarn_divisors(head_dim, theta, factor, original, fast, slow)
            return divisors, scale * yarn_scale(factor), int(original * factor)
        case other:
            raise ModelError(
                SOURCE, f"the GGUF file's rope scaling {other!r} is not supported; supported: none, linear, yarn"
            )
