"""Text to tokens and back, and chat templates: Hugging Face `tokenizers` from a folder's file or GGUF metadata. No
torch."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from tokenizers import AddedToken
from tokenizers import Tokenizer as Fast

from pagefleet_engine.model.checkpoint import config as configs
from pagefleet_engine.model.checkpoint import gguf_config
from pagefleet_engine.model.checkpoint.errors import SOURCE, ModelError
from pagefleet_engine.model.checkpoint.gguf_file import GGUF
from pagefleet_engine.model.checkpoint.source import Format, ModelSource, tokenizer_settings
from pagefleet_engine.model.text import sentence_piece, tekken, tokenizer_gguf
from pagefleet_engine.model.text.byte_level import byte_values
from pagefleet_engine.model.text.chat import MAX_TEMPLATE_CHARACTERS, ChatTemplates

# One text at a time is encoded, in the caller's thread: no pool of threads, and no warning when a process is forked.
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
TEMPLATE_FIELD = "spec.model.chatTemplate"
FILES = ("tokenizer.json", "tokenizer.model", "tekken.json")  # of a folder, the first that is there


class Tokenizer:
    """One model's tokenizer, and the templates that make texts of conversations for it.

    Thread-safe: it holds no state between calls.
    """

    def __init__(self, fast: Fast, eos_token_ids: tuple[int, ...], chat: ChatTemplates) -> None:
        self._fast, self.eos_token_ids, self.chat = fast, eos_token_ids, chat

    @property
    def vocab_size(self) -> int:
        """Tokens with a text, added ones as well; the model's output may be wider."""
        return self._fast.get_vocab_size()

    @property
    def backend(self) -> Fast:
        return self._fast

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Lets other threads run meanwhile: `encode_batch` releases the interpreter's lock, `encode` holds it."""
        ids: list[int] = self._fast.encode_batch_fast([text], add_special_tokens=add_special_tokens)[0].ids
        return ids

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        text: str = self._fast.decode(list(ids), skip_special_tokens=skip_special_tokens)
        return text

    def token_text(self, token: int) -> str:
        """A token by itself as text, special ones as they are written; broken characters become U+FFFD, an id without
        a token is empty.
        """
        return self.token_bytes(token).decode(errors="replace")

    def token_bytes(self, token: int) -> bytes:
        """The bytes that a token stands for, exactly; none for an id without a token."""
        text = self._fast.id_to_token(token)
        if text is None:
            return b""
        if token in self._added:
            return text.encode()
        if self._byte_level:
            values = byte_values()
            return bytes(values[character] for character in text) if all(c in values for c in text) else text.encode()
        if len(text) == 6 and text.startswith("<0x") and text.endswith(">"):
            return bytes.fromhex(text[3:5])
        return text.replace(sentence_piece.SPACE, " ").encode()

    @cached_property
    def special_ids(self) -> frozenset[int]:
        """The tokens that `decode` leaves out."""
        return frozenset(token for token, added in self._fast.get_added_tokens_decoder().items() if added.special)

    @cached_property
    def _added(self) -> frozenset[int]:
        return frozenset(self._fast.get_added_tokens_decoder())

    @cached_property
    def _byte_level(self) -> bool:
        return "ByteLevel" in repr(self._fast.decoder)


def load(source: ModelSource, chat_template: Path | None = None) -> Tokenizer:
    """The tokenizer that comes with a model; `chat_template` is a file that replaces its template. Raises ModelError."""
    override = None if chat_template is None else _read_template(chat_template)
    try:
        match source.format:
            case Format.GGUF:
                return _from_gguf(GGUF(source.path), override)
            case Format.SAFETENSORS:
                return _from_folder(source.path, override)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ModelError(SOURCE, f"the tokenizer of {source.path.name} cannot be used: {error}") from error


def _read_template(path: Path) -> str:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ModelError(TEMPLATE_FIELD, f"{path} cannot be read: {error}") from error
    if len(text) > MAX_TEMPLATE_CHARACTERS:
        raise ModelError(
            TEMPLATE_FIELD, f"{path} has {len(text)} characters, at most {MAX_TEMPLATE_CHARACTERS} are allowed"
        )
    return text


def _from_folder(folder: Path, override: str | None) -> Tokenizer:
    settings = tokenizer_settings(folder)
    names = ("bos_token", "eos_token", "unk_token", "pad_token")
    special = {name: _text(settings[name]) for name in names if settings.get(name) is not None}
    templates = {"default": override} if override is not None else _templates(folder, settings)
    eos = configs.eos_token_ids(folder, _json(folder / "config.json"))
    path = next((path for name in FILES if (path := folder / name).is_file()), None)
    if path is None:
        raise ModelError(SOURCE, f"{folder} holds no {' or '.join(FILES)}")
    try:
        fast = _fast(path, settings)
    except Exception as error:  # the library raises nothing narrower
        raise ModelError(SOURCE, f"{path.name} of {folder.name} cannot be used: {error}") from error
    return Tokenizer(fast, eos, ChatTemplates(templates, special))


def _fast(path: Path, settings: Mapping[str, Any]) -> Fast:
    if path.name == "tekken.json":
        return tekken.build(path)
    if path.name == "tokenizer.json":
        fast: Fast = Fast.from_file(str(path))
        fast.no_truncation()  # training tools save theirs; a prompt is whole, or refused
        fast.no_padding()
        return fast
    pieces = sentence_piece.read(path)
    fast = sentence_piece.build(pieces.tokens, pieces.scores, pieces.types, pieces.unknown, pieces.prefix)
    sentence_piece.add_named(fast, pieces.tokens, pieces.types)
    added = sorted((int(index), entry) for index, entry in (settings.get("added_tokens_decoder") or {}).items())
    for index, entry in added:
        token = AddedToken(str(entry["content"]), special=bool(entry.get("special")), normalized=False)
        if index >= len(pieces.tokens):
            fast.add_special_tokens([token]) if token.special else fast.add_tokens([token])
    bos = pieces.bos if settings.get("add_bos_token", True) and pieces.bos >= 0 else None
    sentence_piece.add_ends(fast, pieces.tokens, bos, pieces.eos if settings.get("add_eos_token", False) else None)
    return fast


def _templates(folder: Path, settings: Mapping[str, Any]) -> dict[str, str]:
    """Read templates where transformers does: chat_template.jinja, additional_chat_templates/, chat_template.json, config."""
    templates: dict[str, str] = {}
    given = settings.get("chat_template")
    if isinstance(given, list):
        templates = {str(entry["name"]): str(entry["template"]) for entry in given}
    elif given is not None:
        templates = {"default": str(given)}
    inside = _json(folder / "chat_template.json").get("chat_template")
    if isinstance(inside, str):
        templates["default"] = inside
    for path in sorted((folder / "additional_chat_templates").glob("*.jinja")):
        templates[path.stem] = path.read_text(encoding="utf-8")
    if (folder / "chat_template.jinja").is_file():
        templates["default"] = (folder / "chat_template.jinja").read_text(encoding="utf-8")
    return templates


def _from_gguf(file: GGUF, override: str | None) -> Tokenizer:
    templates = {
        name: file.field(key)
        for name, key in (("default", "tokenizer.chat_template"), ("tool_use", "tokenizer.chat_template.tool_use"))
        if file.field(key) is not None
    }
    chat = ChatTemplates(
        {"default": override} if override is not None else templates, tokenizer_gguf.special_tokens(file)
    )
    return Tokenizer(tokenizer_gguf.build(file), gguf_config.eos_token_ids(file.field), chat)


def _json(path: Path) -> dict[str, Any]:
    document = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    return document if isinstance(document, dict) else {}


def _text(value: Any) -> str:
    return str(value["content"]) if isinstance(value, dict) else str(value)
