"""Text to tokens and back, and chat templates: Hugging Face `tokenizers` from tokenizer.json or GGUF metadata. No torch."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jinja2 import TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import AddedToken, Regex, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as Fast

from pagefleet_engine.model import config as configs
from pagefleet_engine.model.errors import SOURCE, ModelError
from pagefleet_engine.model.gguf_file import GGUF
from pagefleet_engine.model.source import Format, ModelSource

CONTROL_TOKEN, USER_TOKEN = 3, 4  # gguf's token types
LLAMA3 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"


class Tokenizer:
    """One model's tokenizer. Thread-safe: it holds no state between calls."""

    def __init__(
        self, fast: Fast, eos_token_ids: tuple[int, ...], template: str | None, special: Mapping[str, str]
    ) -> None:
        self._fast, self.eos_token_ids, self._special = fast, eos_token_ids, dict(special)
        environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
        environment.globals["raise_exception"] = _refuse
        self._template = environment.from_string(template) if template else None

    @property
    def vocab_size(self) -> int:
        return self._fast.get_vocab_size()

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        ids: list[int] = self._fast.encode(text, add_special_tokens=add_special_tokens).ids
        return ids

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        text: str = self._fast.decode(list(ids), skip_special_tokens=skip_special_tokens)
        return text

    def apply_chat_template(self, messages: Sequence[Mapping[str, Any]]) -> list[int]:
        """Token ids of a conversation with the prompt for the assistant's turn. Raises ValueError."""
        if self._template is None:
            raise ValueError("this model has no chat template: use /v1/completions")
        try:
            text = self._template.render(messages=messages, add_generation_prompt=True, **self._special)
        except TemplateError as error:
            raise ValueError(f"the model's chat template refuses these messages: {error}") from error
        return self.encode(text, add_special_tokens=False)


def load(source: ModelSource) -> Tokenizer:
    """The tokenizer that comes with a model. Raises ModelError."""
    match source.format:
        case Format.GGUF:
            return _from_gguf(GGUF(source.path))
        case Format.SAFETENSORS:
            return _from_folder(source.path)


def _from_folder(folder: Path) -> Tokenizer:
    path = folder / "tokenizer.json"
    if not path.is_file():
        raise ModelError(SOURCE, f"{folder} holds no tokenizer.json")
    settings: dict[str, Any] = {}
    if (folder / "tokenizer_config.json").is_file():
        settings = json.loads((folder / "tokenizer_config.json").read_text())
    template = settings.get("chat_template")
    if (folder / "chat_template.jinja").is_file():
        template = (folder / "chat_template.jinja").read_text()
    special = {name: _text(settings.get(name)) for name in ("bos_token", "eos_token", "unk_token", "pad_token")}
    return Tokenizer(Fast.from_file(str(path)), configs.from_json(folder).eos_token_ids, template, special)


def _from_gguf(file: GGUF) -> Tokenizer:
    kind, splitter = file.field("tokenizer.ggml.model"), file.field("tokenizer.ggml.pre")
    if kind != "gpt2":
        raise ModelError(
            SOURCE, f"the GGUF file's tokenizer {kind!r} is not supported; supported: gpt2 (byte-level BPE)"
        )
    tokens: list[str] = file.field("tokenizer.ggml.tokens")
    merges = [tuple(merge.split(" ", 1)) for merge in file.field("tokenizer.ggml.merges")]
    vocabulary = {token: index for index, token in enumerate(tokens)}
    fast = Fast(models.BPE(vocab=vocabulary, merges=merges, ignore_merges=splitter == "llama-bpe"))
    fast.pre_tokenizer = _pre_tokenizer(splitter)
    fast.decoder = decoders.ByteLevel()
    types = file.field("tokenizer.ggml.token_type") or []
    fast.add_special_tokens(
        [AddedToken(tokens[i], special=True, normalized=False) for i, t in enumerate(types) if t == CONTROL_TOKEN]
    )
    fast.add_tokens([AddedToken(tokens[i], normalized=False) for i, t in enumerate(types) if t == USER_TOKEN])
    eos = file.field("tokenizer.ggml.eos_token_id")
    special = {
        name: tokens[index]
        for name, key in (
            ("bos_token", "bos"),
            ("eos_token", "eos"),
            ("unk_token", "unknown"),
            ("pad_token", "padding"),
        )
        if (index := file.field(f"tokenizer.ggml.{key}_token_id")) is not None
    }
    return Tokenizer(fast, (int(eos),) if eos is not None else (), file.field("tokenizer.chat_template"), special)


def _pre_tokenizer(name: str | None) -> pre_tokenizers.PreTokenizer:
    """llama.cpp's names of the rules that split text before byte-level BPE."""
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    match name:
        case "gpt-2" | "default" | None:
            return pre_tokenizers.ByteLevel(add_prefix_space=False)
        case "smollm":
            digits = pre_tokenizers.Digits(individual_digits=True)
            return pre_tokenizers.Sequence([digits, pre_tokenizers.ByteLevel(add_prefix_space=False)])
        case "llama-bpe" | "llama3":
            return pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(LLAMA3), "isolated"), byte_level])
        case _:
            raise ModelError(
                SOURCE,
                f"the GGUF file's pre-tokenizer {name!r} is not supported; use tokenizer.json beside safetensors",
            )


def _text(value: Any) -> str:
    return str(value["content"]) if isinstance(value, dict) else str(value or "")


def _refuse(message: str) -> None:
    raise TemplateError(message)
