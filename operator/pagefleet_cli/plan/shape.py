"""The sizes of a decoder-only model that decide its memory, and where its parameters lie. Pure.

Parameters are counted as a Llama-like model has them: gated MLP, no biases counted (below 0.1 %), RMSNorm.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pagefleet_cli.base.errors import CommandError

MAX_LAYERS = 100_000  # a hundred times what any model has
# Families of which every N-th layer looks at everything, and the others have the window. Configurations written before transformers
# had `layer_types` do not say so. Source: transformers' configurations of these models.
PERIODS = {"gemma2": 2, "gemma3": 6, "gemma3_text": 6, "gpt_oss": 2, "cohere2": 4}


@dataclass(frozen=True)
class Shape:
    """Sizes in elements. `windows`: for each layer, the tokens that it attends to, None for all.

    `latent`: elements per layer and token of a compressed cache (DeepSeek's MLA) instead of keys and values.
    `linear`: parameters of all layers' matrices, which quantisation shrinks; `others`: embeddings, output, norms.
    `active`: of `linear`, those that one token meets (fewer in a mixture of experts). `stored`: bytes of the weights as
    they lie in the files, where that is known.
    """

    name: str
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    linear: int
    others: int
    active: int
    windows: tuple[int | None, ...]
    latent: int | None = None
    experts: int = 0
    experts_per_token: int = 0
    stored: int | None = None
    longest: int | None = None
    warnings: tuple[str, ...] = ()

    @property
    def parameters(self) -> int:
        return self.linear + self.others


def checked(shape: Shape) -> Shape:
    """Return the shape unchanged. Raises CommandError when it cannot be a model's, above all when the two kinds of heads are confused."""
    for name in ("layers", "heads", "kv_heads", "head_dim"):
        if getattr(shape, name) < 1:
            raise CommandError(f"{name} must be at least 1, not {getattr(shape, name)}")
    if shape.kv_heads > shape.heads:
        raise CommandError(
            f"{shape.kv_heads} KV heads are more than {shape.heads} query heads: are --heads and --kv-heads exchanged?"
        )
    if shape.heads % shape.kv_heads:
        raise CommandError(
            f"{shape.heads} query heads cannot be shared out among {shape.kv_heads} KV heads: one of the numbers is wrong"
        )
    return shape


def counted(layers: int) -> int:
    """The number of layers as it is, before something is made for each. Raises CommandError where no model has so many."""
    if layers > MAX_LAYERS:
        raise CommandError(f"layers must be at most {MAX_LAYERS}, not {layers}")
    return layers


def from_config(document: Mapping[str, Any], name: str, stored: int | None = None) -> Shape:
    """The shape of a config.json. Raises CommandError that names the missing entry."""
    config = document.get("text_config") or document
    try:
        layers, heads = int(config["num_hidden_layers"]), int(config["num_attention_heads"])
        hidden, vocabulary = int(config["hidden_size"]), int(config["vocab_size"])
    except (KeyError, TypeError, ValueError) as error:
        raise CommandError(f"{name}: config.json has no usable {error}") from error
    counted(layers)
    warnings = []
    if config.get("num_key_value_heads") is None:
        warnings.append(
            f"config.json has no num_key_value_heads: {heads}, the number of query heads, is used. If the model shares its "
            "KV heads (GQA, MQA), the KV cache below is several times too large; give --kv-heads"
        )
    kv_heads = int(config.get("num_key_value_heads") or heads)
    head_dim = int(config.get("head_dim") or hidden // heads)
    latent = (
        int(config["kv_lora_rank"]) + int(config.get("qk_rope_head_dim") or 0) if config.get("kv_lora_rank") else None
    )
    if latent:
        warnings.append("a compressed KV cache (MLA): the parameters of its attention are estimated as if it had none")
    attention = hidden * head_dim * (2 * heads + 2 * kv_heads)
    experts, chosen, block = _mlp(config, hidden)
    if experts and (config.get("n_shared_experts") or config.get("first_k_dense_replace")):
        warnings.append("shared experts and dense layers are not counted apart: the parameters are an estimate")
    tied = 1 if config.get("tie_word_embeddings", False) else 2
    return checked(
        Shape(
            name=name,
            layers=layers,
            heads=heads,
            kv_heads=kv_heads,
            head_dim=head_dim,
            linear=layers * (attention + block * max(1, experts) + hidden * experts),
            others=vocabulary * hidden * tied + (2 * layers + 1) * hidden,
            active=layers * (attention + block * max(1, chosen) + hidden * experts),
            windows=_windows(config, layers),
            latent=latent,
            experts=experts,
            experts_per_token=chosen,
            stored=stored,
            longest=config.get("max_position_embeddings"),
            warnings=tuple(warnings),
        )
    )


def _mlp(config: Mapping[str, Any], hidden: int) -> tuple[int, int, int]:
    """(experts, experts per token, parameters of one gated MLP); no experts: (0, 0, the MLP's)."""
    experts = int(config.get("num_local_experts") or config.get("num_experts") or config.get("n_routed_experts") or 0)
    width = int(
        (config.get("moe_intermediate_size") if experts else None) or config.get("intermediate_size") or 4 * hidden
    )
    return experts, int(config.get("num_experts_per_tok") or 1) if experts else 0, 3 * hidden * width


def _windows(config: Mapping[str, Any], layers: int) -> tuple[int | None, ...]:
    """Of each layer how far it looks back, as transformers reads `layer_types`, `sliding_window`, its pattern and its switches."""
    window = config.get("sliding_window")
    if not window or config.get("use_sliding_window") is False:
        return (None,) * layers
    kinds = config.get("layer_types")
    if kinds and len(kinds) == layers:
        return tuple(int(window) if kind == "sliding_attention" else None for kind in kinds)
    if config.get("use_sliding_window"):  # Qwen: the first layers look at everything
        first = int(config.get("max_window_layers") or 0)
        return tuple(int(window) if index >= first else None for index in range(layers))
    kind = str(config.get("model_type", ""))
    return periodic(int(window), layers, int(config.get("sliding_window_pattern") or PERIODS.get(kind, 0)))


def periodic(window: int, layers: int, period: int) -> tuple[int | None, ...]:
    """The window in all layers but every `period`-th; in all of them with period 0."""
    return tuple(None if period and (index + 1) % period == 0 else window for index in range(layers))


def from_sizes(
    layers: int, heads: int, kv_heads: int, head_dim: int, hidden: int, vocabulary: int, parameters: int
) -> Shape:
    """A shape from what the command line gives; `parameters` in all."""
    warnings = []
    if kv_heads == heads:
        warnings.append(
            f"{heads} KV heads are as many as query heads. Most models of today share them (GQA: num_key_value_heads in "
            f"config.json): with 8, say, the KV cache would be {heads / 8:g} times smaller"
            if heads > 8
            else f"{heads} KV heads are as many as query heads: is that num_key_value_heads in config.json?"
        )
    counted(layers)
    others = min(parameters, 2 * vocabulary * hidden + (2 * layers + 1) * hidden)
    linear = parameters - others
    name = f"{parameters / 1e9:.3g}B parameters"
    shape = Shape(
        name, layers, heads, kv_heads, head_dim, linear, others, linear, (None,) * layers, warnings=tuple(warnings)
    )
    return checked(shape)
