"""Protects tokenizers that come without a tokenizer.json: SentencePiece's tokenizer.model gives the tokens of the same pieces in a
GGUF file, and Mistral's tekken.json those of the byte-level BPE that it states by ranks."""

from __future__ import annotations

import base64
import json
import struct
from pathlib import Path
from typing import Any

import pytest
from gguf import GGUFWriter
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig

from pagefleet_engine.model.checkpoint import source
from pagefleet_engine.model.checkpoint.errors import ModelError
from pagefleet_engine.model.text import tokenizer, tokenizer_gguf
from pagefleet_engine.model.text.byte_level import byte_values

TEXT = st.one_of(st.text(), st.text(alphabet="helowrdt aé日\n  .<>", max_size=60))
WORDS = [
    "▁wor",
    "▁the",
    "▁world",
    "▁hello",
    "hello",
    "the",
    "llo",
    "▁w",
    "▁t",
    "th",
    "he",
    "ll",
    "or",
    "ld",
    "▁▁",
    "▁",
    *"elohtwrda.",
]
TOKENS = ["<unk>", "<s>", "</s>", *(f"<0x{value:02X}>" for value in range(256)), *WORDS, "<|user|>"]
TYPES = [2, 3, 3, *[6] * 256, *[1] * len(WORDS), 4]
SCORES = [0.0] * 259 + [-float(index) for index in range(len(WORDS))] + [0.0]


def varint(value: int) -> bytes:
    text = b""
    while value > 127:
        text, value = text + bytes([value & 127 | 128]), value >> 7
    return text + bytes([value])


def field(number: int, value: int | float | bytes) -> bytes:
    if isinstance(value, float):
        return varint(number << 3 | 5) + struct.pack("<f", value)
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    return varint(number << 3 | 2) + varint(len(value)) + value


def sentence_piece(model_type: int = 2, remove_spaces: int = 0) -> bytes:
    """A message as SentencePiece's trainer writes it: pieces, the trainer's settings, the normaliser's settings."""
    pieces = b"".join(
        field(1, field(1, token.encode()) + field(2, score) + field(3, kind))
        for token, score, kind in zip(TOKENS, SCORES, TYPES, strict=True)
    )
    trainer = field(3, model_type) + field(10, 0.9995) + field(35, 1) + field(40, 0) + field(41, 1) + field(42, 2)
    return pieces + field(2, trainer) + field(3, field(1, b"identity") + field(3, 1) + field(4, remove_spaces))


def folder(path: Path, **files: bytes) -> tokenizer.Tokenizer:
    LlamaConfig(vocab_size=len(TOKENS), eos_token_id=2).save_pretrained(path)
    (path / "model.safetensors").touch()
    for name, data in files.items():
        (path / name.replace("_", ".")).write_bytes(data)
    return tokenizer.load(source.resolve(f"file://{path}"))


def test_a_sentencepiece_file_gives_the_tokens_of_its_pieces_in_gguf(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    writer = GGUFWriter(path, "llama")
    writer.add_tokenizer_model("llama")
    writer.add_token_list(TOKENS)
    writer.add_token_types(TYPES)
    writer.add_token_scores(SCORES)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    theirs = tokenizer.load(source.resolve(f"file://{path}"))
    ours = folder(tmp_path, tokenizer_model=sentence_piece())

    @settings(max_examples=100)
    @given(TEXT)
    def equal(text: str) -> None:
        ids = ours.encode(text)
        assert ids == theirs.encode(text)
        assert ids[0] == 1
        assert ours.decode(ids) == theirs.decode(ids)

    equal()
    words = [ours.token_text(token) for token in ours.encode("hello the world", add_special_tokens=False)]
    assert words == [" hello", " the", " world"]
    assert ours.encode("a<|user|>", add_special_tokens=False)[-1] == len(TOKENS) - 1


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (sentence_piece(model_type=1), "not a BPE: only tokenizer.json"),
        (sentence_piece(remove_spaces=1), "removes extra spaces"),
        (sentence_piece()[:-3], "cut off"),
        (b"\x0b", "damaged: a field of kind 3"),
    ],
)
def test_other_sentencepiece_files_are_refused(data: bytes, message: str, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=message):
        folder(tmp_path, tokenizer_model=data)


def test_a_tekken_file_gives_the_tokens_of_its_ranks(tmp_path: Path) -> None:
    theirs = Tokenizer(models.BPE())
    level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    theirs.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(tokenizer_gguf.TEKKEN), "isolated"), level]
    )
    theirs.decoder = decoders.ByteLevel()
    corpus = ["Hello world, it's 1234 o'clock. Don't stop!", "hello the world 日本語 text\n\n  with   spaces"] * 4
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    theirs.train_from_iterator(
        corpus, trainers.BpeTrainer(vocab_size=320, show_progress=False, initial_alphabet=alphabet)
    )
    values = byte_values()
    vocabulary = [
        {"rank": rank, "token_bytes": base64.b64encode(bytes(values[one] for one in theirs.id_to_token(rank))).decode()}
        for rank in range(theirs.get_vocab_size())
    ]
    document: dict[str, Any] = {
        "config": {"pattern": tokenizer_gguf.TEKKEN, "default_num_special_tokens": 10,
                   "default_vocab_size": 10 + len(vocabulary)},
        "vocab": vocabulary,
        "special_tokens": [{"rank": 1, "token_str": "<s>"}, {"rank": 2, "token_str": "</s>"}, {"rank": 3, "token_str": "[INST]"}],
    }  # fmt: skip
    ours = folder(tmp_path, tekken_json=json.dumps(document).encode())

    @settings(max_examples=100)
    @given(TEXT)
    def equal(text: str) -> None:
        ids = ours.encode(text, add_special_tokens=False)
        assert ids == [10 + index for index in theirs.encode(text).ids]
        assert ours.decode(ids) == text

    equal()
    assert ours.encode("[INST]")[:2] == [1, 3]
