"""Reads a GGUF file: metadata, and tensors dequantised to float32 under Hugging Face's names. No torch."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy
from gguf import GGUFReader, dequantize

from pagefleet_engine.model.config import ModelConfig
from pagefleet_engine.model.errors import SOURCE, ModelError

Array = numpy.ndarray[Any, numpy.dtype[numpy.float32]]

NAMES = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
ROPE_DIVISORS = "rope_freqs.weight"


class GGUF:
    """One open file. Raises ModelError when it is not GGUF."""

    def __init__(self, path: Path) -> None:
        try:
            self._reader = GGUFReader(path)
        except (OSError, ValueError, IndexError, KeyError) as error:
            raise ModelError(SOURCE, f"{path.name} is not a readable GGUF file: {error}") from error
        self._tensors = {hugging_face_name(tensor.name): tensor for tensor in self._reader.tensors}

    @property
    def names(self) -> list[str]:
        return list(self._tensors)

    def field(self, name: str) -> Any:
        """A metadata value as Python has it, None when it is not there."""
        found = self._reader.get_field(name)
        return None if found is None else found.contents()

    def read(self, name: str, config: ModelConfig) -> Array:
        """One tensor by its Hugging Face name, writable. Raises NotImplementedError for an unknown quantisation."""
        tensor = self._tensors[name]
        array = dequantize(tensor.data, tensor.tensor_type)
        if ".self_attn.q_proj." in name:
            array = unpermute(array, config.heads)
        elif ".self_attn.k_proj." in name:
            array = unpermute(array, config.kv_heads)
        return numpy.require(array, requirements=["C", "W"])

    def rope_divisors(self) -> tuple[float, ...]:
        """What each rotary frequency is divided by (Llama 3.1's scaling, precomputed); empty when it is not scaled."""
        tensor = self._tensors.get(ROPE_DIVISORS)
        return () if tensor is None else tuple(dequantize(tensor.data, tensor.tensor_type).tolist())


def hugging_face_name(name: str) -> str:
    """ "blk.3.attn_q.weight" -> "model.layers.3.self_attn.q_proj.weight"; a name not known here stays as it is."""
    match = re.fullmatch(r"(?:blk\.(\d+)\.)?(\w+)\.(weight|bias)", name)
    if not match or match[2] not in NAMES:
        return name
    prefix = f"model.layers.{match[1]}." if match[1] else ""
    return f"{prefix}{NAMES[match[2]]}.{match[3]}"


def unpermute(weights: Array, heads: int) -> Array:
    """Undo llama.cpp's interleaving of rotary halves: rows (pair, half) of each head back to (half, pair)."""
    half = weights.shape[0] // heads // 2
    return weights.reshape(heads, half, 2, *weights.shape[1:]).swapaxes(1, 2).reshape(weights.shape)
