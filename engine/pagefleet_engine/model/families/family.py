"""The shape of a registry entry: how a family of decoder-only models differs from Llama. Every default is Llama's.

The layers are those of model/decoder.py and runner/device/model/model.py, with the options below. A family whose layers
compute something else adds an option here and to both of them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

Document = Mapping[str, Any]
# The window in tokens, itself included, as the document has it (None: nothing slides), and for each layer whether it slides.
Sliding = tuple[Any, Sequence[bool]]
# llama.cpp's names of tensors and Hugging Face's.
# https://github.com/ggml-org/llama.cpp/blob/master/gguf-py/gguf/constants.py
GGUF_TENSORS = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


class NotSupported(Exception):
    """A setting of config.json that is not supported for the family; the text names it and the supported ones."""


@dataclass(frozen=True)
class Experts:
    """A mixture of experts in place of the MLP: a router's `chosen` largest logits of `count` choose the experts of a row.

    inner: the size of each expert's gate, as `intermediate_size` is a dense layer's.
    normalised: the weights of the chosen experts add up to 1; otherwise they are their shares of all experts' softmax.
    shared_inner: the size of an expert that every row goes through as well; 0: there is none.
    shared_gate: a sigmoid of a product with the row multiplies the shared expert's result.
    sparse: for each layer whether it has experts; empty: all have.
    """

    count: int
    chosen: int
    inner: int
    normalised: bool = True
    shared_inner: int = 0
    shared_gate: bool = False
    sparse: tuple[bool, ...] = ()

    def within(self, layer: int) -> bool:
        return not self.sparse or self.sparse[layer]


@dataclass(frozen=True)
class Options:
    """What layers compute. Every default is Llama's.

    activation: of the gated MLP, one of pagefleet_kernels.cpu.ACTIVATIONS.
    pre_norms, post_norms: RMSNorm of the input of attention and MLP, and of their output before it is added.
    norm_offset: norms multiply by this plus their weight.
    whole_qk_norm: RMSNorm over all heads of q together, and of k (OLMo 2), in place of each head apart.
    embedding_scale, residual_scale, logit_scale: factors of the embedding's rows, of what attention and MLP add, and of
    the logits.
    attention_scale: of scores; None: head_dim ** -0.5. attention_cap, logit_cap: cap * tanh(x / cap); 0: none.
    rotary_fraction: of each head's elements, the first ones, is rotated. rotary_interleaved: pairs of neighbours.
    rotary_layers: for each layer whether it has positions; empty: all have. sliding_theta: of layers with a window.
    sinks: each head has a score without a value in its softmax.
    """

    activation: str = "silu"
    pre_norms: bool = True
    post_norms: bool = False
    norm_offset: float = 0.0
    whole_qk_norm: bool = False
    embedding_scale: float = 1.0
    residual_scale: float = 1.0
    logit_scale: float = 1.0
    attention_scale: float | None = None
    attention_cap: float = 0.0
    logit_cap: float = 0.0
    rotary_fraction: float = 1.0
    rotary_interleaved: bool = False
    rotary_layers: tuple[bool, ...] = ()
    sliding_theta: float | None = None
    sinks: bool = False
    experts: Experts | None = None


LLAMA = Options()


class Sizes(Protocol):
    """The rows of a layer's products."""

    @property
    def q_size(self) -> int: ...

    @property
    def kv_size(self) -> int: ...

    @property
    def intermediate_size(self) -> int: ...

    @property
    def options(self) -> Options: ...


@dataclass(frozen=True)
class Piece:
    """A part of a stored tensor: of matrix `expert` of several, the transpose if `transposed`, rows begin:end:step."""

    begin: int = 0
    end: int | None = None
    step: int = 1
    expert: int | None = None
    transposed: bool = False


def whole(name: str, sizes: Sizes) -> Mapping[str, Piece]:
    """No tensor is stored in another shape than Llama's."""
    return {}


def merged(name: str, sizes: Sizes) -> Mapping[str, Piece]:
    """Q, K and V of one tensor `qkv_proj`, gate and up of one tensor `gate_up_proj`."""
    module, _, last = name.rpartition(".")
    if module.endswith(".self_attn.qkv_proj"):
        prefix, q, kv = module.removesuffix("qkv_proj"), sizes.q_size, sizes.kv_size
        return {
            f"{prefix}q_proj.{last}": Piece(0, q), f"{prefix}k_proj.{last}": Piece(q, q + kv),
            f"{prefix}v_proj.{last}": Piece(q + kv, q + 2 * kv),
        }  # fmt: skip
    if module.endswith(".mlp.gate_up_proj"):
        prefix, inner = module.removesuffix("gate_up_proj"), sizes.intermediate_size
        return {f"{prefix}gate_proj.{last}": Piece(0, inner), f"{prefix}up_proj.{last}": Piece(inner, 2 * inner)}
    return {}


def renamed(names: Mapping[str, str]) -> Callable[[str], str]:
    """A `tensor` that replaces modules' names ("mlp.output_norm"), each at most once and all at the same time."""
    pattern = re.compile("|".join(rf"(?<=\.){re.escape(name)}(?=\.)" for name in names))
    return lambda name: pattern.sub(lambda match: names[match[0]], name)


def experts_count(document: Document, default: int) -> int:
    """The number of a layer's experts, by the entry's name of either version of transformers."""
    return int(document["num_experts"] if "num_experts" in document else document.get("num_local_experts", default))


def llama_options(document: Document) -> Options:
    return LLAMA


def layer_types(document: Document, layers: int, default: Sequence[bool]) -> Sliding:
    """Read `sliding_window`, and the layers of `layer_types`, or `default`. Raises NotSupported."""
    window, types = document.get("sliding_window"), document.get("layer_types")
    if types is None:
        return window, [window is not None and one for one in default]
    return window, [slides(layer_type, window) for layer_type in types]


def no_window(document: Document, layers: int) -> Sliding:
    """Return that no layer slides. Raises NotSupported for a config.json with a window."""
    if (window := document.get("sliding_window")) is not None:
        kind = document.get("model_type")
        raise NotSupported(f"sliding_window {window!r} of a {kind} model is not supported; supported: null")
    return None, [False] * layers


def slides(layer_type: str, window: int | None) -> bool:
    """Whether a layer of this entry of `layer_types` slides. Raises NotSupported."""
    match layer_type:
        case "full_attention":
            return False
        case "sliding_attention":
            return window is not None
        case _:
            raise NotSupported(
                f"layer type {layer_type!r} is not supported; supported: full_attention, sliding_attention"
            )


@dataclass(frozen=True)
class Family:
    """One entry of the registry.

    model_type: config.json's, and the name that the info metric shows.
    gguf: `general.architecture` of its GGUF files; empty when they name another family's.
    config: turns its config.json into one with Llama's keys.
    tensor: turns a name of its safetensors into Llama's name in transformers.
    gguf_tensors: the same for the names of its GGUF files, without the layer's prefix and the suffix.
    gguf_interleaved: llama.cpp stores the rotary halves of q and k interleaved.
    gguf_window: its GGUF files may have a window, which slides in every layer.
    head_dim: the default for a config.json without one; None: hidden_size / num_attention_heads.
    kv_heads, norm_eps, positions: transformers' defaults for a config.json without num_key_value_heads (None: as many as
    num_attention_heads), rms_norm_eps and max_position_embeddings.
    qk_norm: RMSNorm over each head of q and k before the rotation.
    attention_bias: q, k and v have biases whatever config.json says.
    sliding: reads the window and the layers that slide. It raises NotSupported.
    options: what the layers compute beside Llama's, from a config.json with Llama's keys. It raises NotSupported.
    pieces: the tensors that a stored one (by Llama's name) holds, by Llama's names; empty: it is one itself.
    hidden_act: config.json's `hidden_act` for the activation that the layers compute.
    """

    model_type: str
    gguf: str = ""
    config: Callable[[Document], Document] = dict
    tensor: Callable[[str], str] = str
    gguf_tensors: Mapping[str, str] = field(default_factory=lambda: GGUF_TENSORS)
    gguf_interleaved: bool = False
    gguf_window: bool = False
    head_dim: int | None = None
    kv_heads: int | None = None
    norm_eps: float = 1e-6
    positions: int = 2048
    qk_norm: bool = False
    attention_bias: bool = False
    sliding: Callable[[Document, int], Sliding] = no_window
    options: Callable[[Document], Options] = llama_options
    pieces: Callable[[str, Sizes], Mapping[str, Piece]] = whole
    hidden_act: str = "silu"
