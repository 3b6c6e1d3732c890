"""Reads a GGUF file: metadata, and tensors dequantised to float32 under Hugging Face's names. No torch."""

from __future__ import annotations

import re
from collections.abc import Iterator
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


class GGUF:
    """One open file. Raises ModelError when it is not GGUF."""

    def __init__(self, path: Path) -> None:
        try:
            self._reader = GGUFReader(path)
        except (OSError, ValueError, IndexError) as error:
            raise ModelError(SOURCE, f"{path.name} is not a readable GGUF file: {error}") from error

    def field(self, name: str) -> Any:
        """A metadata value as Python has it, None when it is not there."""
        found = self._reader.get_field(name)
        return None if found is None else found.contents()

    def tensors(self, config: ModelConfig) -> Iterator[tuple[str, Array]]:
        """(Hugging Face name, float32 array) of every weight."""
        for tensor in self._reader.tensors:
            name = hugging_face_name(tensor.name)
            if name is None:
                continue
            array = dequantize(tensor.data, tensor.tensor_type)
            if name.endswith("q_proj.weight"):
                array = unpermute(array, config.heads)
            elif name.endswith("k_proj.weight"):
                array = unpermute(array, config.kv_heads)
            yield name, array


def hugging_face_name(name: str) -> str | None:
    """ "blk.3.attn_q.weight" -> "model.layers.3.self_attn.q_proj.weight"; None for what is no weight (rope tables)."""
    match = re.fullmatch(r"(?:blk\.(\d+)\.)?(\w+)\.(weight|bias)", name)
    if not match or match[2] not in NAMES:
        return None
    prefix = f"model.layers.{match[1]}." if match[1] else ""
    return f"{prefix}{NAMES[match[2]]}.{match[3]}"


def unpermute(weights: Array, heads: int) -> Array:
    """Undo llama.cpp's interleaving of rotary halves: rows (pair, half) of each head back to (half, pair)."""
    rows, columns = weights.shape
    return weights.reshape(heads, rows // heads // 2, 2, columns).swapaxes(1, 2).reshape(rows, columns)
