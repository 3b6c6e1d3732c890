"""The shape of a registry entry: how a family of decoder-only models differs from Llama. Every default is Llama's.

The layers are those of model/llama.py and runner/device/model/model.py, with the options of ModelConfig. A family
whose layers compute something else adds an option to ModelConfig and to both of them; everything else is here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

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
    qk_norm: RMSNorm over each head of q and k before the rotation.
    attention_bias: q, k and v have biases whatever config.json says.
    sliding: reads the window and the layers that slide. It raises NotSupported.
    """

    model_type: str
    gguf: str = ""
    config: Callable[[Document], Document] = dict
    tensor: Callable[[str], str] = str
    gguf_tensors: Mapping[str, str] = field(default_factory=lambda: GGUF_TENSORS)
    gguf_interleaved: bool = False
    gguf_window: bool = False
    head_dim: int | None = None
    qk_norm: bool = False
    attention_bias: bool = False
    sliding: Callable[[Document, int], Sliding] = no_window
