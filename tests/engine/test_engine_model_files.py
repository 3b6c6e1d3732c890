"""Protects loading: a damaged or foreign file is refused with its defect by name, and the tokenizer equals transformers'."""

from __future__ import annotations

import json
import re
from pathlib import Path
from unicodedata import category

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from support.engine.files import SMOLLM2, small_llama
from tokenizers import Tokenizer, models
from transformers import AutoTokenizer

from pagefleet_engine.model.checkpoint import source
from pagefleet_engine.model.checkpoint.errors import SOURCE, ModelError
from pagefleet_engine.model.checkpoint.weights import load
from pagefleet_engine.model.decoder import Decoder
from pagefleet_engine.model.text import tokenizer
from pagefleet_kernels.cpu import operations


def build(folder: Path) -> Decoder:
    config, unread = load(source.resolve(f"file://{folder}"))
    return Decoder(config, unread, "none", 64, operations(1, "reference"))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model.norm.weight": None}, "lacks the tensor model.norm.weight"),
        ({"model.norm.weight": torch.ones(3)}, r"is \(3,\), the config says \(96,\)"),
        ({"model.norm.weight": torch.ones(96, dtype=torch.int8)}, "torch.int8; allowed: float32"),
        ({"model.layers.0.self_attn.q_norm.weight": torch.ones(16)}, "1 tensors are not of a llama model.*q_norm"),
        ({"model.layers.9.mlp.up_proj.weight": torch.ones(2)}, "1 tensors are not of a llama model"),
    ],
)
def test_weights_that_do_not_fit_the_config_are_refused(
    change: dict[str, torch.Tensor | None], message: str, tmp_path: Path
) -> None:
    small_llama(tmp_path)
    file = tmp_path / "model.safetensors"
    changed = {**load_file(file), **change}
    save_file({name: tensor for name, tensor in changed.items() if tensor is not None}, file)
    with pytest.raises(ModelError, match=message) as raised:
        build(tmp_path)
    assert raised.value.field == SOURCE


def test_an_untied_model_without_its_output_matrix_is_refused(tmp_path: Path) -> None:
    small_llama(tmp_path)
    document = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**document, "tie_word_embeddings": False}))
    with pytest.raises(ModelError, match=r"lacks the tensor lm_head.weight"):
        build(tmp_path)


@pytest.mark.parametrize("tied", [True, False])
def test_a_model_of_embeddings_may_be_saved_without_its_output(tied: bool, tmp_path: Path) -> None:
    """As Qwen3-Embedding is: its tensors have no prefix, and the largest is said to be untied."""
    small_llama(tmp_path)
    expected, file = build(tmp_path), tmp_path / "model.safetensors"
    save_file({name.removeprefix("model."): tensor for name, tensor in load_file(file).items()}, file)
    document = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**document, "tie_word_embeddings": tied}))
    (tmp_path / "1_Pooling").mkdir()
    (tmp_path / "1_Pooling/config.json").write_text('{"pooling_mode_lasttoken": true}')
    states = torch.randn(2, 96)
    assert torch.equal(build(tmp_path).logits(states), expected.logits(states))


def test_a_truncated_file_is_refused(tmp_path: Path) -> None:
    small_llama(tmp_path)
    file = tmp_path / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(ModelError, match="not a readable safetensors file"):
        build(tmp_path)


@pytest.mark.parametrize(
    ("index", "message"),
    [
        ({"model.norm.weight": "a.safetensors", "lm_head.weight": "b.safetensors"}, "lacks 1 of the 2 files.*: b.safe"),
        ({"model.norm.weight": "../a.safetensors"}, "names '../a.safetensors', which is not a file beside it"),
        ({"other.weight": "a.safetensors"}, "a.safetensors lacks the tensor other.weight"),
        (None, "model.safetensors.index.json cannot be used"),
    ],
)
def test_shards_that_an_index_promises_must_be_there(
    index: dict[str, str] | None, message: str, tmp_path: Path
) -> None:
    small_llama(tmp_path)
    (tmp_path / "model.safetensors").rename(tmp_path / "a.safetensors")
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
    with pytest.raises(ModelError, match=message):
        load(source.resolve(f"file://{tmp_path}"))


def test_a_second_copy_in_another_layout_is_left_alone(tmp_path: Path) -> None:
    small_llama(tmp_path)
    (tmp_path / "model.safetensors").rename(tmp_path / "a.safetensors")
    save_file({"layers.0.attention.wq.weight": torch.ones(2)}, tmp_path / "consolidated.safetensors")
    build(tmp_path)


def test_special_tokens_that_stand_apart_are_the_template_s(tmp_path: Path) -> None:
    small_llama(tmp_path)
    fast = Tokenizer(models.BPE({"a": 0}, []))
    fast.add_special_tokens(["<begin>", "<end>"])
    fast.save(str(tmp_path / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "chat_template": "{{ bos_token }}a{{ eos_token }}"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    tokens = {"bos_token": "<begin>", "eos_token": {"content": "<end>"}}
    (tmp_path / "special_tokens_map.json").write_text(json.dumps(tokens))
    ours, theirs = tokenizer.load(source.resolve(f"file://{tmp_path}")), AutoTokenizer.from_pretrained(tmp_path)
    message = [{"role": "user", "content": "a"}]
    assert ours.chat.render(message) == "<begin>a<end>" == theirs.apply_chat_template(message, tokenize=False)
    assert theirs.eos_token_id in ours.eos_token_ids


def test_the_gguf_tokenizer_equals_transformers(tmp_path: Path) -> None:
    """transformers builds its own from the same metadata, but leaves out what "smollm" adds to GPT-2's rule: every
    digit stands alone. So the text is cut at digits before transformers sees it, as llama.cpp does.
    """
    model = source.resolve(SMOLLM2)
    ours = tokenizer.load(model)
    theirs = AutoTokenizer.from_pretrained(model.path.parent, gguf_file=model.path.name)
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "What is 12 + 30?"}]
    expected = theirs.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
    assert ours.encode(ours.chat.render(messages), add_special_tokens=False) == list(expected)
    ends = ["<|im_end|>", "<|endoftext|>"]  # of a turn, which the metadata names, and of a text without turns
    assert ours.eos_token_ids == tuple(theirs.convert_tokens_to_ids(ends))

    @settings(max_examples=200)
    @given(st.one_of(st.text(), st.text(alphabet="aé 日1234\n\t'sTl<|im_end|>😀", max_size=60)))
    def equal(text: str) -> None:
        ids = ours.encode(text, add_special_tokens=False)
        pieces = re.split(
            "(" + "|".join({re.escape(c) for c in text if category(c).startswith("N")} or "\0") + ")", text
        )
        assert ids == [token for piece in pieces for token in theirs.encode(piece, add_special_tokens=False)]
        assert ours.decode(ids, skip_special_tokens=False) == theirs.decode(
            ids, skip_special_tokens=False, clean_up_tokenization_spaces=False
        )

    equal()
