"""Writes a Qwen3 folder as a GGUF file, which llama.cpp's own program then quantises."""

from __future__ import annotations

import json
from pathlib import Path

# A layer's tensors in safetensors and in GGUF.
NAMES = {
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm",
}  # fmt: skip


def write(folder: Path, target: Path) -> None:
    """Matrices as float16, norms as float32."""
    from gguf import GGUFWriter, TokenType
    from safetensors import safe_open

    described = json.loads((folder / "config.json").read_text())
    writer = GGUFWriter(target, "qwen3")
    writer.add_block_count(described["num_hidden_layers"])
    writer.add_context_length(described["max_position_embeddings"])
    writer.add_embedding_length(described["hidden_size"])
    writer.add_feed_forward_length(described["intermediate_size"])
    writer.add_head_count(described["num_attention_heads"])
    writer.add_head_count_kv(described["num_key_value_heads"])
    writer.add_key_length(described["head_dim"])
    writer.add_value_length(described["head_dim"])
    writer.add_layer_norm_rms_eps(described["rms_norm_eps"])
    writer.add_rope_freq_base(described["rope_theta"])
    words = json.loads((folder / "tokenizer.json").read_text())
    special = {token["id"] for token in words["added_tokens"]}
    vocabulary = sorted(words["model"]["vocab"], key=words["model"]["vocab"].__getitem__)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(vocabulary)
    writer.add_token_types(
        [TokenType.CONTROL if number in special else TokenType.NORMAL for number in range(len(vocabulary))]
    )
    writer.add_token_merges([" ".join(pair) if isinstance(pair, list) else pair for pair in words["model"]["merges"]])
    writer.add_bos_token_id(described["bos_token_id"])
    writer.add_eos_token_id(described["eos_token_id"])
    with safe_open(folder / "model.safetensors", framework="pt") as stored:
        for name in stored.keys():  # noqa: SIM118 (no mapping)
            tensor = stored.get_tensor(name)
            values = tensor.float() if tensor.dim() == 1 else tensor.half()
            writer.add_tensor(_name(name), values.numpy())
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
    writer.close()


def _name(name: str) -> str:
    """The GGUF name of "model.layers.0.mlp.up_proj.weight" is "blk.0.ffn_up.weight"."""
    if not name.startswith("model.layers."):
        return {"model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight"}[name]
    layer, part = name.removeprefix("model.layers.").removesuffix(".weight").split(".", 1)
    return f"blk.{layer}.{NAMES[part]}.weight"
