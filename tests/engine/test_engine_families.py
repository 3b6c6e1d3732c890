"""Protects the reading of every supported family: config, rope tables, sliding layers and GGUF tensors equal those of
transformers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from gguf import GGMLQuantizationType, GGUFWriter
from gguf.quants import dequantize, quantize
from support.engine.files import FAMILIES, SIZES, YARN, random_model
from transformers import CONFIG_MAPPING, AutoConfig, LlamaConfig, PreTrainedConfig, PreTrainedModel
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from pagefleet_engine.model import rope
from pagefleet_engine.model.checkpoint import gguf_blocks, source
from pagefleet_engine.model.checkpoint.config import ModelConfig, from_document, from_json
from pagefleet_engine.model.checkpoint.errors import ModelError
from pagefleet_engine.model.checkpoint.gguf_file import TYPES, Stored
from pagefleet_engine.model.checkpoint.weights import load
from pagefleet_engine.model.families.registry import model_types
from pagefleet_kernels.cpu.layout import floats


@pytest.mark.parametrize("family", FAMILIES)
def test_a_config_says_what_transformers_computes(family: str, tmp_path: Path) -> None:
    theirs = FAMILIES[family]
    theirs.save_pretrained(tmp_path)
    ours = from_json(tmp_path)
    assert (ours.kind, ours.layers, ours.heads, ours.kv_heads) == (theirs.model_type, 3, 4, 2)
    assert ours.head_dim == getattr(theirs, "head_dim", None) or 16
    assert (ours.tied, ours.qk_norm) == (theirs.tie_word_embeddings, "qwen3" in family or family == "gemma3")
    assert ours.attention_bias == ("qwen2" in family or getattr(theirs, "attention_bias", False))
    window = getattr(theirs, "sliding_window", None)
    kinds = getattr(theirs, "layer_types", None) or ["full_attention" if window is None else "sliding_attention"] * 3
    assert [ours.window(layer) for layer in range(3)] == [window if "sliding" in kind else None for kind in kinds]
    if (
        ours.rotary_dim == ours.head_dim and ours.options.sliding_theta is None
    ):  # others have several tables, or a part of one
        assert_rope_equal(ours, theirs, ours.max_position)


def assert_rope_equal(ours: ModelConfig, theirs: PreTrainedConfig, positions: int) -> None:
    """Compare every position's cos and sin. An angle may be off by the effect of rounding its frequency once more."""
    reference = LlamaRotaryEmbedding(theirs)
    cos, sin = reference(torch.zeros(1), torch.arange(positions).unsqueeze(0))
    assert ours.rope_scale == pytest.approx(reference.attention_scaling, rel=1e-6)
    tables = rope.table(ours.head_dim, ours.rope_theta, positions, ours.rope_divisors, ours.rope_scale)
    found_cos, found_sin = (half.repeat(1, 2) for half in tables)
    exact = not ours.rope_divisors
    angles = torch.outer(torch.arange(positions), reference.inv_freq).repeat(1, 2)
    allowed = torch.zeros_like(angles) if exact else 1e-6 + angles * 2.4e-7
    assert bool(((found_cos - cos[0]).abs() <= allowed).all())
    assert bool(((found_sin - sin[0]).abs() <= allowed).all())


def test_rope_settings_of_older_files_mean_the_same(tmp_path: Path) -> None:
    """Before transformers 5: rope_theta and rope_scaling apart, "type" for "rope_type", the first length left out."""
    LlamaConfig(**SIZES).save_pretrained(tmp_path)
    path = tmp_path / "config.json"

    document = json.loads(path.read_text())
    document.pop("rope_parameters")
    document |= {"rope_theta": 5000.0, "rope_scaling": {"type": "yarn", "factor": 2.0}}
    path.write_text(json.dumps(document))
    ours = from_json(tmp_path)
    assert (ours.rope_theta, ours.max_position) == (5000.0, 512)
    assert_rope_equal(ours, LlamaConfig.from_pretrained(tmp_path), 256)


@pytest.mark.parametrize("family", ["llama", "qwen3", "smollm3", "mixtral", "gpt_oss", "granitemoe"])
def test_a_config_without_rope_settings_means_the_familys(family: str, tmp_path: Path) -> None:
    FAMILIES[family].save_pretrained(tmp_path)
    path = tmp_path / "config.json"
    document = json.loads(path.read_text())
    document.pop("rope_parameters")
    path.write_text(json.dumps(document))
    assert from_json(tmp_path).rope_theta == AutoConfig.from_pretrained(tmp_path).rope_parameters["rope_theta"]


@pytest.mark.parametrize("family", ["qwen2, sliding", "qwen2_moe, sliding", "qwen3_moe, sliding", "gemma2"])
def test_a_config_without_layer_types_means_the_familys(family: str, tmp_path: Path) -> None:
    FAMILIES[family].save_pretrained(tmp_path)
    path = tmp_path / "config.json"
    document = json.loads(path.read_text())
    document.pop("layer_types", None)
    path.write_text(json.dumps(document))
    theirs, ours = AutoConfig.from_pretrained(tmp_path), from_json(tmp_path)
    kinds = getattr(theirs, "layer_types", None) or ["sliding_attention"] * 3
    assert [ours.window(layer) for layer in range(3)] == [16 if "sliding" in kind else None for kind in kinds]


@pytest.mark.parametrize(
    "entry",
    ["rms_norm_eps", "max_position_embeddings", "num_key_value_heads", "num_local_experts", "num_experts_per_tok"],
)
@pytest.mark.parametrize("family", model_types())
def test_a_config_without_an_entry_means_transformers_default(family: str, entry: str, tmp_path: Path) -> None:
    """Files of older versions, and those that are written by hand, leave entries out."""
    theirs = CONFIG_MAPPING[family]().to_dict()
    theirs.pop("num_experts" if entry == "num_local_experts" else entry, None)
    theirs.pop(entry, None)
    filled = CONFIG_MAPPING[family].from_dict(theirs).to_dict()
    assert from_document(tmp_path, theirs) == from_document(tmp_path, filled)


def test_qwen3_s_models_of_experts_without_head_dim_divide_the_hidden_size(tmp_path: Path) -> None:
    FAMILIES["qwen3_moe"].save_pretrained(tmp_path)
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "head_dim": None}))
    assert from_json(tmp_path).head_dim == 16


def test_a_matrix_with_fewer_heads_than_config_json_says_is_named(tmp_path: Path) -> None:
    random_model(FAMILIES["glm"]).save_pretrained(tmp_path)
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "num_key_value_heads": 4}))
    with pytest.raises(ModelError, match=r"k_proj.weight cannot be read"):
        load(source.resolve(f"file://{tmp_path}"))[1].take("model.layers.0.self_attn.k_proj.weight", 128, 64)


@pytest.mark.parametrize("family", ["llama, llama3, untied, biases", "mistral", "qwen2", "qwen3, yarn"])
def test_safetensors_hold_every_tensor_of_a_family(family: str, tmp_path: Path) -> None:
    model = random_model(FAMILIES[family])
    model.save_pretrained(tmp_path, max_shard_size="40KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 2
    assert_equal_state(f"file://{tmp_path}", model)


def assert_equal_state(uri: str, model: PreTrainedModel) -> ModelConfig:
    config, unread = load(source.resolve(uri))
    for name, expected in model.state_dict().items():
        if name == "lm_head.weight" and config.tied:
            continue
        assert torch.equal(unread.take(name, *expected.shape), expected), name
    parts = [f"model.layers.0.mlp.{name}_proj.weight" for name in ("gate", "up")]
    expected = torch.cat([model.state_dict()[name] for name in parts])
    compact = load(source.resolve(uri))[1].take_compact(dict.fromkeys(parts, 96), 64)
    assert torch.equal(floats(compact), expected)
    assert [name for name in unread.left() if name != "lm_head.weight"] == []
    return config


GGUF_NAMES = {
    "model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output",
    "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm", "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm", "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
}  # fmt: skip


def write_gguf(path: Path, model: PreTrainedModel, kind: GGMLQuantizationType, **more: Any) -> PreTrainedModel:
    """Write a file as llama.cpp's converter does. The model gets the values that the quantised file holds."""
    config, architecture = model.config, model.config.model_type
    writer = GGUFWriter(path, "llama" if architecture == "mistral" else architecture)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    if getattr(config, "head_dim", None):
        writer.add_key_length(config.head_dim)
        writer.add_value_length(config.head_dim)
    writer.add_token_list([f"t{index}" for index in range(config.vocab_size)])
    writer.add_eos_token_id(2)
    writer.add_eot_token_id(5)
    for name, value in more.items():
        getattr(writer, name)(value)
    if config.rope_parameters["rope_type"] == "llama3":
        usual = 1.0 / 10000.0 ** (torch.arange(0, 16, 2).float() / 16)
        writer.add_tensor("rope_freqs.weight", (usual / LlamaRotaryEmbedding(config).inv_freq).numpy())
    for name, parameter in model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        module, _, last = name.rpartition(".")
        pieces = module.split(".", 3)
        prefix = f"blk.{pieces[2]}." if len(pieces) == 4 else ""
        module = pieces[3] if prefix else module
        array = parameter.numpy()
        if architecture in ("llama", "mistral") and module.endswith(("q_proj", "k_proj")):
            heads = config.num_attention_heads if "q_proj" in module else config.num_key_value_heads
            array = permuted(array, heads)
        if array.ndim == 1:
            writer.add_tensor(f"{prefix}{GGUF_NAMES[module]}.{last}", array)
            continue
        packed = quantize(array, kind)
        writer.add_tensor(f"{prefix}{GGUF_NAMES[module]}.{last}", packed, raw_dtype=kind)
        stored = dequantize(packed, kind)
        if architecture in ("llama", "mistral") and module.endswith(("q_proj", "k_proj")):
            stored = unpermuted(stored, heads)
        parameter.copy_(torch.from_numpy(numpy.ascontiguousarray(stored)))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return model


def permuted(array: Any, heads: int) -> Any:
    """LlamaModel.permute of llama.cpp's convert_hf_to_gguf.py."""
    shape = array.shape
    return array.reshape(heads, 2, shape[0] // heads // 2, *shape[1:]).swapaxes(1, 2).reshape(shape)


def unpermuted(array: Any, heads: int) -> Any:
    return array.reshape(heads, array.shape[0] // heads // 2, 2, *array.shape[1:]).swapaxes(1, 2).reshape(array.shape)


@pytest.mark.parametrize("kind", [GGMLQuantizationType.F32, GGMLQuantizationType.Q8_0, GGMLQuantizationType.Q4_1])
@pytest.mark.parametrize("family", ["llama, llama3, untied, biases", "mistral, full", "qwen2", "qwen3"])
def test_gguf_files_hold_what_transformers_holds(family: str, kind: GGMLQuantizationType, tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    model = write_gguf(path, random_model(FAMILIES[family]), kind)
    config = assert_equal_state(f"file://{path}", model)
    expected = "llama" if "mistral" in family else family.split(",")[0]
    assert (config.kind, config.vocab_size, config.eos_token_ids) == (expected, 96, (2, 5))
    assert (config.qk_norm, config.attention_bias) == (family == "qwen3", family == "qwen2")
    assert config.tied == model.config.tie_word_embeddings
    assert_rope_equal(config, model.config, 256)


def test_gguf_says_yarn_and_a_window(tmp_path: Path) -> None:
    theirs = LlamaConfig(**{**SIZES, "num_hidden_layers": 1}, head_dim=32, rope_parameters=YARN)
    path, model = tmp_path / "model.gguf", random_model(theirs)
    more = {"add_rope_scaling_type": _Yarn(), "add_rope_scaling_factor": 4.0, "add_rope_scaling_orig_ctx_len": 64}
    write_gguf(path, model, GGMLQuantizationType.F32, add_sliding_window=8, **more)
    ours = load(source.resolve(f"file://{path}"))[0]
    assert (ours.max_position, ours.window(0)) == (256, 8)
    assert_rope_equal(ours, theirs, 256)


class _Yarn:
    value = "yarn"


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("add_expert_count", 8, "llama.expert_count 8"),
        ("add_rope_dimension_count", 8, "llama.rope.dimension_count 8"),
        ("add_logit_scale", 0.5, "llama.logit_scale 0.5"),
        ("add_rope_scaling_yarn_ext_factor", 0.5, "yarn_ext_factor 0.5"),
    ],
)
def test_gguf_settings_that_are_not_computed_are_refused(name: str, value: Any, message: str, tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    write_gguf(path, random_model(LlamaConfig(**SIZES)), GGMLQuantizationType.F32, **{name: value})
    with pytest.raises(ModelError, match=message):
        load(source.resolve(f"file://{path}"))


@pytest.mark.parametrize("kind", [name for name, _, _ in TYPES.values()])
def test_blocks_are_dequantised_bit_for_bit(kind: str) -> None:
    columns, (_, elements, size) = 512, next(entry for entry in TYPES.values() if entry[0] == kind)
    rows = 2 * gguf_blocks.PIECE // columns + 3  # more than one piece, the last one not whole
    data = numpy.random.default_rng(7).integers(0, 120, (rows, columns // elements * size), dtype=numpy.uint8)
    stored, expected = Stored(kind, (rows, columns), data), dequantize(data, GGMLQuantizationType[kind])
    assert numpy.array_equal(gguf_blocks.dequantise(stored).numpy(), expected, equal_nan=True)
    codes = gguf_blocks.coded(stored)
    assert (codes is not None) == (kind in gguf_blocks.LAYOUTS)
    if codes is not None:
        assert numpy.array_equal(codes.floats().numpy(), expected, equal_nan=True)
        assert int(codes.codes.max()) < 2**codes.bits
