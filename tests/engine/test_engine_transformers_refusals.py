"""Protects the transformers backend's refusals: what it cannot serve is named with its field, and nothing of a checkpoint runs."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from support.engine.backend_models import BACKEND, MANY_KV, ONE_KV, sharp
from support.engine.reference import answers, engine
from transformers import (
    BertConfig,
    BloomConfig,
    DeepseekV4Config,
    DiffLlamaConfig,
    FalconConfig,
    GPTJConfig,
    Lfm2Config,
    Llama4TextConfig,
    LlamaConfig,
    MambaConfig,
    PhiConfig,
    PreTrainedConfig,
    StableLmConfig,
)

from pagefleet_engine.core.requests import Speculation
from pagefleet_engine.model.checkpoint.errors import ModelError
from pagefleet_engine.runner.common import machine

OWN = "its code in transformers computes attention in a way of its own"
SMALL: dict[str, Any] = {"vocab_size": 96, "n_embd": 64, "n_layer": 2, "n_head": 4}
REFUSED: dict[str, tuple[PreTrainedConfig, str]] = {
    "bloom (alibi)": (BloomConfig(vocab_size=96, hidden_size=64, n_layer=2, n_head=4), OWN),
    "falcon": (FalconConfig(vocab_size=96, hidden_size=64, num_hidden_layers=2, num_attention_heads=4), OWN),
    "gptj": (GPTJConfig(**SMALL, n_positions=256, rotary_dim=8), OWN),
    "stablelm": (StableLmConfig(**ONE_KV), OWN),
    "mamba": (MambaConfig(vocab_size=96, hidden_size=64, num_hidden_layers=2), OWN),
    "convolutions": (
        Lfm2Config(**ONE_KV, layer_types=["conv", "full_attention", "conv"]),
        "layer 0 keeps another state than keys and values",
    ),
    "compressed attention": (
        DeepseekV4Config(
            **ONE_KV,
            head_dim=16,
            n_routed_experts=4,
            num_experts_per_tok=2,
            moe_intermediate_size=48,
            sliding_window=16,
        ),
        "layer 0 keeps another state than keys and values",
    ),
    "an encoder": (BertConfig(**MANY_KV), "attends to other tokens than those before it"),
    "attention in chunks": (
        Llama4TextConfig(**ONE_KV, head_dim=16, attention_chunk_size=32, num_local_experts=2, intermediate_size_mlp=96),
        "attends to other tokens than those before it",
    ),
    "two attentions a layer": (DiffLlamaConfig(**ONE_KV), "a layer attends more than once"),
    "large heads": (PhiConfig(**{**ONE_KV, "hidden_size": 1088}), "heads have 272 elements, at most 256"),
}


def refused(uri: str, **changes: Any) -> ModelError:
    with pytest.raises(ModelError) as raised:
        engine(uri, **changes)
    return raised.value


@pytest.mark.parametrize("name", REFUSED)
def test_models_that_it_cannot_serve_are_refused_by_name(name: str, tmp_path: Path) -> None:
    config, message = REFUSED[name]
    sharp(config, tmp_path)
    error = refused(f"file://{tmp_path}")
    assert error.field == "spec.model.source"
    assert repr(config.model_type) in error.message and message in error.message


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("neox")
    sharp(BACKEND["gpt_neox"], made)
    return made


def copied(folder: Path, target: Path, **changes: Any) -> str:
    """A copy whose config.json has `changes`."""
    for path in folder.iterdir():
        (target / path.name).write_bytes(path.read_bytes())
    document = json.loads((folder / "config.json").read_text())
    (target / "config.json").write_text(json.dumps({**document, **changes}))
    return f"file://{target}"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "toy"}, "'toy' is not supported: it is no causal text model of transformers"),
        ({"model_type": "llava"}, "'llava' is not supported: it is no causal text model"),
        ({"model_type": "t5"}, "'t5' is not supported: it is no causal text model"),
        ({"architectures": ["GPTNeoXForTokenClassification"]}, "'GPTNeoXForTokenClassification' is not supported"),
        ({"architectures": ["ToyForCausalLM"], "vision_config": {"depth": 2}}, "not supported (it is multimodal)"),
        ({"quantization_config": {"quant_method": "gptq"}}, "quantization_config 'gptq' of gpt_neox is not supported"),
        ({"vocab_size": 128}, "cannot be loaded"),
        ({"num_hidden_layers": 4}, "lacks the tensor"),
        ({"num_hidden_layers": 2}, "has a tensor too much"),
        ({"num_attention_heads": "many"}, "config.json"),
    ],
    ids=str,
)
def test_a_config_that_does_not_fit_is_refused(
    changes: dict[str, Any], message: str, folder: Path, tmp_path: Path
) -> None:
    error = refused(copied(folder, tmp_path, **changes))
    assert error.field == "spec.model.source"
    assert message in error.message


def test_a_rotation_that_depends_on_the_batch_is_refused_beyond_its_length(tmp_path: Path) -> None:
    factors = [1.0, 1.5]
    rope = {"rope_type": "longrope", "short_factor": factors, "long_factor": factors, "rope_theta": 10000.0,
            "original_max_position_embeddings": 64, "partial_rotary_factor": 0.25}  # fmt: skip
    sharp(PhiConfig(**ONE_KV, rope_parameters=rope), tmp_path)
    error = refused(f"file://{tmp_path}", max_model_len=65)
    assert error.field == "spec.model.maxLength"
    assert "65 is more than 64" in error.message and "'longrope'" in error.message
    assert len(answers(engine(f"file://{tmp_path}", max_model_len=64), [[5, 6, 7]], 4)[0]) == 4


@pytest.mark.parametrize(
    ("changes", "field", "message"),
    [
        ({"quantization": "int8"}, "spec.model.quantization", "'int8' is not supported through transformers' own code"),
        ({"adapters": (("a", "/a"),)}, "spec.model.adapters", "LoRA adapters are not supported"),
        (
            {"speculation": Speculation("draft", 2, "file:///draft")},
            "spec.model.speculation.model", "a draft model is not supported",
        ),
        ({"max_model_len": 300}, "spec.model.maxLength", "300 is not within 2..256"),
        ({"page_size": 24}, "spec.engine.kvCache.pageSize", "must be a multiple of 16, not 24"),
        ({"model_impl": "pagefleet"}, "spec.model.source", "'gpt_neox' is not supported; supported: llama"),
    ],
    ids=lambda value: ",".join(value) if isinstance(value, dict) else None,
)  # fmt: skip
def test_settings_that_do_not_go_with_it_are_refused(
    changes: dict[str, Any], field: str, message: str, folder: Path
) -> None:
    error = refused(f"file://{folder}", **changes)
    assert error.field == field
    assert message in error.message


def test_a_window_that_only_transformers_cache_has_is_refused(tmp_path: Path) -> None:
    """`generate` would forget tokens to which the mask lets the layers attend."""
    sharp(LlamaConfig(**ONE_KV, sliding_window=16), tmp_path)
    error = refused(f"file://{tmp_path}", model_impl="transformers")
    assert error.field == "spec.model.source"
    assert "layer 0 has a window of 16 tokens in transformers' cache, and not in its mask" in error.message
    assert len(answers(engine(f"file://{tmp_path}", model_impl="transformers", max_model_len=16), [[5, 6]], 4)[0]) == 4


def test_an_adapter_cannot_be_loaded_later_either(folder: Path) -> None:
    with pytest.raises(ValueError, match="LoRA adapters of a gpt_neox model are not supported"):
        engine(f"file://{folder}").load_adapter("a", str(folder))


def test_memory_that_does_not_hold_the_weights_is_refused_before_they_are_read(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "memory_limit", lambda: 704 << 20)
    (error := refused(f"file://{folder}"))
    assert error.field == "spec.resources.memory"
    assert "4 bytes a weight" in error.message


def test_an_image_without_transformers_says_so(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    error = refused(f"file://{folder}")
    assert error.field == "spec.model.source"
    assert "the package transformers is not installed" in error.message and "llama, mistral" in error.message


def test_code_of_a_checkpoint_never_runs(folder: Path, tmp_path: Path) -> None:
    """Neither the class that config.json names, nor kernels of a hub in place of our attention."""
    uri = copied(
        folder, tmp_path, auto_map={"AutoConfig": "evil.Config", "AutoModelForCausalLM": "evil.Model"},
        attn_implementation="kernels-community/evil", _attn_implementation="kernels-community/evil",
    )  # fmt: skip
    (tmp_path / "evil.py").write_text("raise SystemExit('code of the checkpoint ran')")
    expected = answers(engine(f"file://{folder}"), [[5, 6, 7]], 8)
    assert answers(engine(uri), [[5, 6, 7]], 8) == expected


def test_a_model_that_mixes_its_batch_is_found_out(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The comparison at the start protects from code that nobody foresaw; here each token's layer sees its neighbour."""
    from transformers.models.gpt_neox.modeling_gpt_neox import GPTNeoXMLP

    forward = GPTNeoXMLP.forward
    monkeypatch.setattr(GPTNeoXMLP, "forward", lambda self, x: forward(self, x + torch.roll(x, 1, dims=1)))
    error = refused(f"file://{folder}")
    assert error.field == "spec.model.source"
    assert "over KV pages it is not what it is without" in error.message


def test_a_gguf_file_is_not_read_through_it(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(b"GGUF")
    error = refused(f"file://{path}", model_impl="transformers")
    assert (error.field, "not GGUF" in error.message) == ("spec.engine.args", True)
